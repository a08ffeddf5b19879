"""Which hosts `reach = "ssh"` and `reach = "srun"` mean: those of a file, else those of the Slurm allocation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from schemas.errors import InputError, Problem, SiteError
from schemas.spec import Site
from sweep import topology
from sweep.document import text_of
from tasks.remote import RemoteExecutor

_ATTRIBUTES = re.compile(r"(\s+\w[\w-]*\s*=\s*\S+)+|:\d+")
"""`slots=8 max_slots=8` and `:8`: how many ranks a node gets is a factor of the spec, and nothing that a host has."""
_HOST = re.compile(r"[\w.-]+(@[\w.-]+)?", re.ASCII)
_HELP = "write one host a line: `node01`, `node01:8`, `node01 slots=8`, or `node[01-16]`"


def chosen(site: Site, file: Path | None, kind: str | None) -> Literal["ssh", "srun"] | None:
    """The reach that is meant, where it is one of these two; InputError for --hosts with another."""
    reach = site.reach if kind is None else None
    if reach in ("ssh", "srun"):
        return reach
    if file is not None:
        what = 'goes with reach = "ssh" or "srun", and another was chosen'
        remedy = "set `reach` under [launch] of the site, and leave out --executor"
        raise InputError(Problem("--hosts", what, remedy))
    return None


def executor(reach: Literal["ssh", "srun"], file: Path | None, environ: Mapping[str, str]) -> RemoteExecutor:
    """The executor for the hosts of a file, else for those of the allocation. SiteError where there are none."""
    if reach == "srun" and "SLURM_JOB_ID" not in environ:
        raise SiteError('reach = "srun" works inside a Slurm allocation alone; start this from `salloc` or `sbatch`')
    return RemoteExecutor(reach, of_file(file) if file is not None else of_allocation(environ))


def of_file(path: Path) -> tuple[str, ...]:
    """The hosts of a hostfile, each once, in its order; InputError with every line that names none."""
    hosts: dict[str, None] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text_of(path, "hostfile").splitlines(), 1):
        words = line.partition("#")[0].strip()
        host = _ATTRIBUTES.sub("", words)
        try:
            hosts |= dict.fromkeys((host,) if _HOST.fullmatch(host) or not host else topology.hosts(host))
        except InputError:
            problems.append(Problem(f"{path}:{number}", f"`{words}` names no host", _HELP))
    hosts.pop("", None)
    if not hosts and not problems:
        problems.append(Problem(str(path), "names no host", _HELP))
    if problems:
        raise InputError(problems)
    return tuple(hosts)


def of_allocation(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of the Slurm allocation that this runs in."""
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        remedy = "give --hosts FILE with one host a line, or start this inside a Slurm allocation"
        raise SiteError(f"no hosts are known; {remedy}")
    return topology.hosts(nodes)
