"""`sweep doctor`: what is here, what is missing, and what to type for it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from schemas.plan import Inventory
from schemas.spec import Spec
from sweep.listing import emit
from sweep.look import take
from sweep.place import archive_folder
from sweep.site import load_site
from tasks import benchmarks
from tasks.executor import InlineExecutor


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for: `bad` stops every run, `missing` only some."""

    state: Literal["ok", "missing", "bad"]
    what: str
    found: str
    remedy: str = ""


def examine(site_path: Path | None, folder: Path | None) -> int:
    """Print all findings; 3 if one of them stops every run."""
    site = load_site(site_path, os.environ)
    have = asyncio.run(take(InlineExecutor(), Spec(name="doctor", factors={}, site=site), benchmarks.names()))
    findings = [
        *_packages(),
        *_launchers(have),
        *_benchmarks(have),
        *_node(have),
        _archive(archive_folder(folder, site)),
    ]
    emit(
        ("", "what", "found", "what to do"),
        [[each.state, each.what, each.found, each.remedy] for each in findings],
        "table",
    )
    return 3 if any(each.state == "bad" for each in findings) else 0


def _packages() -> Iterator[Finding]:
    for name in ("ray", "pyarrow", "duckdb"):
        try:
            yield Finding("ok", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("bad", name, "not installed", "pip install fabric-sweep")


def _launchers(have: Inventory) -> Iterator[Finding]:
    for stack, tools in have.tools.items():
        what = "mpiexec" if stack is None else f"mpiexec of stack {stack}"
        if (tool := tools.get("mpiexec")) is None:
            remedy = (
                "pip install 'fabric-sweep[imb]' (Intel MPI) or 'fabric-sweep[mpi]' (MPICH), or load your MPI module"
            )
            yield Finding("missing", what, "not on the PATH", remedy)
        elif have.flavours.get(stack) == "unknown":
            yield Finding(
                "missing", what, f"{tool.path}: of no flavour we know", "use MPICH, Intel MPI, Open MPI or MVAPICH"
            )
        else:
            yield Finding("ok", what, f"{have.flavours[stack]} at {tool.path}")


def _benchmarks(have: Inventory) -> Iterator[Finding]:
    for name in benchmarks.names():
        module = benchmarks.get(name)
        for stack, tools in have.tools.items():
            label = name if stack is None else f"{name} of stack {stack}"
            for program in module.programs:
                if program in tools:
                    version = tools[program].version.splitlines()
                    yield Finding(
                        "ok", f"{label}: {program}", f"{tools[program].path} {version[0] if version else ''}".strip()
                    )
                else:
                    yield Finding("missing", f"{label}: {program}", "not on the PATH", module.install)


def _node(have: Inventory) -> Iterator[Finding]:
    for node in have.nodes or ():
        nics = ", ".join(nic.name for nic in node.nics or ())
        yield Finding(
            "ok" if nics else "missing", "NICs", nics or "none that carries traffic", "" if nics else "loopback only"
        )
        cpus = node.facts.get("cpus_allowed", str(node.cpus))
        if cpus != str(node.cpus):
            yield Finding("missing", "CPUs", f"{cpus} of {node.cpus}", "this cpuset is smaller than the node: leave it")
    if have.sharp:
        yield Finding("ok", "SHARP libraries", "found")
    else:
        yield Finding(
            "missing", "SHARP libraries", "none", "on InfiniBand: load HPC-X, or install nccl-rdma-sharp-plugins"
        )


def _archive(where: Path) -> Finding:
    """Whether rows can be written there, tried for real."""
    probe = where if where.is_dir() else where.absolute().parent
    try:
        if where.exists() and not where.is_dir():
            return Finding("bad", "archive", f"{where} is a file", "name a folder: --archive FOLDER")
        with tempfile.TemporaryFile(dir=probe):
            return Finding("ok", "archive", f"{where} can be written")
    except OSError as error:
        return Finding(
            "bad", "archive", f"{where}: {error.strerror}", "name a folder that you may write: --archive FOLDER"
        )
