"""Roles into processes: how ranks are started by each flavour of mpiexec.

On one node the ranks of all flavours inherit mpiexec's environment; on several, Hydra hands all of it on, Open MPI only
OMPI_MCA_* and what `-x` names. MPICH, Intel MPI and MVAPICH share Hydra's arguments; Open MPI refuses root and more
ranks than CPUs unless told.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from schemas.attempt import Launch, Process, Role
from schemas.errors import SiteError
from schemas.plan import Node, Tool
from schemas.spec import Way

_FLAVOURS = (
    ("intelmpi", re.compile(r"Intel\(R\) MPI Library")),
    ("mvapich", re.compile(r"mvapich", re.IGNORECASE)),  # Hydra too, and says so in its configure options
    ("mpich", re.compile(r"HYDRA build details")),
    ("openmpi5", re.compile(r"\(Open MPI\) (?:[5-9]|\d\d)\.|PRRTE")),
    ("openmpi4", re.compile(r"\(Open(?: MPI|RTE)\) [1-4]\.")),
)
"""Flavour -> what only its `mpiexec --version` says; the first that matches."""

_OVERSUBSCRIBE = {"openmpi4": ("--oversubscribe",), "openmpi5": ("--map-by", ":OVERSUBSCRIBE")}
_MAPPING = re.compile(r"--?(?:map-by|oversubscribe|nooversubscribe|rankfile|rf|npernode|hostfile|host)\b")
"""Arguments of a site that decide by themselves where ranks go; Open MPI 5 refuses a second --map-by."""

_LIBRARIES = ("libmpi.so", "libmpi.so.12", "libmpi.so.40")
_SYSTEM = (Path("/"), Path("/usr"), Path("/usr/local"))
_SEARCH = "LD_LIBRARY_PATH"


def flavour(version_text: str) -> str:
    """The flavour of an mpiexec by what it says of its version.

    One of "mpich", "intelmpi", "openmpi4", "openmpi5", "mvapich", or "unknown".
    """
    return next((name for name, pattern in _FLAVOURS if pattern.search(version_text)), "unknown")


def merge(*ways: Way) -> Way:
    """One way of running out of several: the later one wins, its folders come first, its lines and arguments last."""
    env: dict[str, str] = {}
    for way in ways:
        env |= way.env
    return Way(
        setup=tuple(line for way in ways for line in way.setup),
        path=tuple(dict.fromkeys(folder for way in reversed(ways) for folder in way.path)),
        env=env,
        args=tuple(argument for way in ways for argument in way.args),
        container=next((way.container for way in reversed(ways) if way.container is not None), None),
        launcher=next((way.launcher for way in reversed(ways) if way.launcher is not None), None),
    )


def processes(
    launch: Launch,
    way: Way,
    *,
    launcher: str,
    mpiexec: Tool | None,
    flavour: str | None,
    nodes: Sequence[Node],
) -> tuple[Process, ...]:
    """What the node parts shall start for a launch, in start order. SiteError for what cannot be started here.

    A role without ranks becomes a plain process on each of its nodes; one with ranks becomes one mpiexec on the first
    of its nodes, with the site's arguments before the program. `launcher` is what the site says, and `way` wins.
    """
    if way.container is not None:
        raise SiteError(f"running in a container ({way.container.engine}) is not yet supported")
    chosen = way.launcher if way.launcher is not None else launcher
    made: list[Process] = []
    for role in launch.roles:
        if role.ranks is None or (chosen == "none" and role.ranks == 1):
            made += [_process(role, node, role.argv, way) for node in role.nodes]
        else:
            made.append(_ranks(role, role.ranks, way, chosen, mpiexec, flavour, nodes))
    return tuple(made)


def _process(role: Role, node: int, argv: tuple[str, ...], way: Way) -> Process:
    return Process(role.name, node, argv, {**way.env, **role.env}, way.path, way.setup, role.ready)


def _ranks(
    role: Role,
    ranks: int,
    way: Way,
    launcher: str,
    mpiexec: Tool | None,
    flavour: str | None,
    nodes: Sequence[Node],
) -> Process:
    gang = [nodes[each] for each in role.nodes]
    if launcher == "srun":
        return _by_srun(role, ranks, way, mpiexec, flavour, gang)
    if launcher != "mpiexec":
        remedy = 'set launcher = "mpiexec" in [launch]'
        raise SiteError(f"launcher {launcher!r} starts no ranks, and {role.name} asks for {ranks}; {remedy}")
    if mpiexec is None:
        raise SiteError("mpiexec was not found; install an MPI, or name its folder in [launch] path")
    if flavour is None or flavour == "unknown":
        said = next(iter(mpiexec.version.splitlines()), "")
        remedy = "use MPICH, Intel MPI, Open MPI or MVAPICH"
        raise SiteError(f"{mpiexec.path} is of no flavour we know (its --version says {said!r}); {remedy}")
    own = _own_arguments(flavour, ranks // len(gang), way.args, min(each.cpus or ranks for each in gang))
    across: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    if len(gang) > 1:
        across = _across(flavour, gang, ranks // len(gang))
        exports = _exports(flavour, {**way.env, **role.env, _SEARCH: ""})
    argv = (mpiexec.path, *across, *own, *way.args, "-n", str(ranks), *exports, *role.argv)
    process = _process(role, role.nodes[0], argv, way)
    env = dict(process.env)
    if len(gang) > 1:
        env["SWEEP_SELF"] = ",".join((*names(gang[0]), "localhost", "127.0.0.1"))
    return _with_library(replace(process, env=env, setup=(_OUTSIDE, *process.setup)), mpiexec)


def _by_srun(
    role: Role, ranks: int, way: Way, mpiexec: Tool | None, flavour: str | None, gang: Sequence[Node]
) -> Process:
    """One step of the allocation that we are in, beside the steps that hold our node parts."""
    shape = (f"--nodes={len(gang)}", f"--ntasks={ranks}", f"--ntasks-per-node={ranks // len(gang)}")
    hosts = ",".join(node.name.partition(".")[0] for node in gang)
    interface = _PMI.get(flavour or "")
    told = interface is None or any(argument.startswith("--mpi") for argument in way.args)
    argv = (
        *("srun", "--overlap", *shape, f"--nodelist={hosts}", "--mem=0", "--export=ALL", "--kill-on-bad-exit=1"),
        *(() if told else (f"--mpi={interface}",)),
        *(*way.args, *role.argv),
    )
    process = _process(role, role.nodes[0], argv, way)
    process = replace(process, setup=(_STEP, *process.setup))
    return process if mpiexec is None else _with_library(process, mpiexec)


AGENT = "{files}/agent"
"""Where `tasks/agent.py` lies on the node that leads; launchers call it instead of ssh."""
SCHEDULERS = ("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_", "PRTE_")
"""Variables by which a launcher believes that it is inside a job step, and starts its ranks through the scheduler."""
_OUTSIDE = f"unset {' '.join(f'${{!{prefix}*}}' for prefix in SCHEDULERS)}"
_STEP = """\
for name in ${!SLURM_*} ${!PMI_*} ${!PMIX_*}
do case $name in SLURM_JOB_ID | SLURM_CONF) ;; *) unset $name ;; esac; done"""
"""An srun within a step would take the step's shape for its own; of the allocation it needs the number alone."""
_PMI = {"mpich": "pmi2", "mvapich": "pmi2", "intelmpi": "pmi2", "openmpi4": "pmix", "openmpi5": "pmix"}
"""How the ranks of each flavour find each other under srun; `args` of the site may name another `--mpi`."""


def host(node: Node) -> str:
    """How launchers call a node: by its address where it is known, for names may not resolve everywhere."""
    return node.address or node.name


def names(node: Node) -> tuple[str, ...]:
    """All that a launcher may call a node: its name, without its domain too, and its address."""
    return tuple(dict.fromkeys(name for name in (node.name, node.name.partition(".")[0], node.address) if name))


def _across(flavour: str, gang: Sequence[Node], ranks_per_node: int) -> tuple[str, ...]:
    """Arguments for ranks on several nodes, each reached by our agent; no host file, no ssh, no scheduler."""
    hosts = [host(node) for node in gang]
    how: tuple[str, ...]
    if flavour in ("mpich", "mvapich"):
        how = ("-launcher", "ssh", "-launcher-exec", AGENT, "-localhost", hosts[0])
        return (*how, "-hosts", ",".join(hosts), "-ppn", str(ranks_per_node))
    if flavour == "intelmpi":
        how = ("-bootstrap", "ssh", "-bootstrap-exec", AGENT)
        return (*how, "-hosts", ",".join(hosts), "-ppn", str(ranks_per_node))
    slots = ",".join(f"{each}:{ranks_per_node}" for each in hosts)
    if flavour == "openmpi5":
        how = (
            "--prtemca",
            "plm",
            "ssh",
            "--prtemca",
            "plm_ssh_agent",
            AGENT,
            "--prtemca",
            "plm_ssh_no_tree_spawn",
            "1",
        )
        return (*how, "--prtemca", "ras", "^slurm", "--leave-session-attached", "--host", slots)
    how = ("--mca", "plm", "rsh", "--mca", "plm_rsh_agent", AGENT, "--mca", "plm_rsh_no_tree_spawn", "1")
    return (*how, "--mca", "ras", "^slurm", "--leave-session-attached", "--host", slots)


def _exports(flavour: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Open MPI hands only named variables on to other nodes; Hydra all of them."""
    if flavour not in _OVERSUBSCRIBE:
        return ()
    return tuple(word for name in env for word in ("-x", name))


def _own_arguments(flavour: str, ranks: int, args: Sequence[str], cpus: int | None) -> tuple[str, ...]:
    """What Open MPI needs beyond the site's arguments; oversubscribing only where it must, for it unbinds the ranks."""
    if flavour not in _OVERSUBSCRIBE:
        return ()
    crowded = cpus is not None and ranks > cpus and not any(map(_MAPPING.match, args))
    return ("--allow-run-as-root", *(_OVERSUBSCRIBE[flavour] if crowded else ()))


def _with_library(process: Process, mpiexec: Tool) -> Process:
    """The process with the MPI library of its mpiexec found first.

    A program of one MPI under the mpiexec of another runs as many single processes, each the whole of its own world.
    """
    folder = _library_folder(mpiexec.path)
    if folder is None:
        return process
    env: Mapping[str, str] = process.env
    setup = process.setup
    if _SEARCH in env and not setup:
        env = {**env, _SEARCH: f"{folder}:{env[_SEARCH]}"}
    else:  # in front of what the user or the lines before have, which only the node knows
        setup = (*setup, f"export {_SEARCH}={shlex.quote(folder)}${{{_SEARCH}:+:${_SEARCH}}}")
    return Process(process.role, process.node, process.argv, env, process.path, setup, process.ready)


def _library_folder(mpiexec: str) -> str | None:
    """`lib` beside the `bin` of an mpiexec, if it holds an MPI library and is no folder of the system."""
    for program in (Path(mpiexec), Path(mpiexec).resolve()):
        prefix = program.parent.parent
        if prefix not in _SYSTEM and any((prefix / "lib" / name).exists() for name in _LIBRARIES):
            return str(prefix / "lib")
    return None
