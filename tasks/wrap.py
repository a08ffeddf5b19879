"""Ranks started through the rank wrapper, and what they report: pure, the other end of `tasks/rank.py`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from schemas.attempt import Line, Output
from tasks.rank import MARK
from tasks.text import peel

SCRIPT, SPEC = "rank.py", "rank.json"
"""Names of the two files that must lie in the attempt's folder on every node of the launch."""

_HYDRA = ("MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK", "PMI_LOCAL_RANK")
_OPENMPI = ("OMPI_COMM_WORLD_LOCAL_RANK",)
_SLURM = ("SLURM_LOCALID",)
_OTHERS = ("PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID")
_RANK = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "MVP_COMM_WORLD_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
)


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank got: where it runs, on which CPUs ("0-3,8"), and the recorded part of its environment.

    `gpu` is CUDA_VISIBLE_DEVICES, None where it is not set; a rank whose launcher does not number it has None.
    """

    host: str
    rank: int | None
    local_rank: int | None
    cpus: str
    gpu: str | None
    env: Mapping[str, str] = field(default_factory=dict)


def local_rank_variables(launcher: str, flavour: str | None) -> tuple[str, ...]:
    """The variables that tell a rank its number on its node, the launcher's own first.

    A launcher inside an allocation or a job inherits what the outer one set: SLURM_LOCALID is 0 for all ranks of an
    mpiexec, so each launcher is asked in its own words.
    """
    if launcher == "srun":
        return (*_SLURM, *_OPENMPI, *_HYDRA, *_OTHERS)
    if flavour in ("openmpi4", "openmpi5"):
        return _OPENMPI
    if flavour in ("mpich", "intelmpi", "mvapich"):
        return _HYDRA
    return (*_OPENMPI, *_HYDRA, *_OTHERS, *_SLURM)


def files(
    ranks: Mapping[str, Sequence[Mapping[str, str]]], record: Collection[str], launcher: str, flavour: str | None
) -> dict[str, str]:
    """The wrapper and its spec, as files of a launch.

    `ranks` is what `tasks.transports.hold` says: node -> the environment of each local rank, or one for all of them;
    empty: the ranks get nothing and only report. `record`: variables that are reported, and no others.
    """
    sets: list[list[dict[str, str]]] = []
    nodes: dict[str, int] = {}
    for node, envs in ranks.items():
        wanted = [dict(env) for env in envs]
        if wanted not in sets:
            sets.append(wanted)
        nodes[node] = sets.index(wanted)
    spec = {
        "local": local_rank_variables(launcher, flavour),
        "rank": _RANK,
        "sets": sets or [[{}]],
        "nodes": nodes if len(sets) > 1 else {},
        "record": sorted(record),
    }
    script = (Path(__file__).parent / SCRIPT).read_text(encoding="utf-8")
    return {SCRIPT: script, SPEC: json.dumps(spec, separators=(",", ":"))}


def command(argv: Sequence[str], python: str = "python3") -> tuple[str, ...]:
    """The program's command line behind the wrapper; `python` is one that every node has."""
    return (python, "-I", "-S", f"{{files}}/{SCRIPT}", f"{{files}}/{SPEC}", *argv)


def reports(output: Output) -> tuple[Output, tuple[Rank, ...]]:
    """The output without the wrapper's lines, and what they say, by rank. A line that is no report stays."""
    found: dict[tuple[str, int | None, int | None], Rank] = {}
    streams = tuple(
        replace(stream, lines=tuple(_without_reports(stream.lines, found))) if stream.stream == "stderr" else stream
        for stream in output.streams
    )
    ordered = sorted(found.values(), key=lambda rank: (-1 if rank.rank is None else rank.rank, rank.host))
    return replace(output, streams=streams), tuple(ordered)


def evidence(ranks: Sequence[Rank]) -> dict[str, str]:
    """What the ranks got, as an attempt's evidence: `rank 0 cpus` -> "0-3"; also `node`, `gpu`, and each variable."""
    found: dict[str, str] = {}
    for rank in ranks:
        who = f"rank {rank.rank}" if rank.rank is not None else f"rank of {rank.host}"
        found[f"{who} node"] = rank.host
        found[f"{who} cpus"] = rank.cpus
        if rank.gpu is not None:
            found[f"{who} gpu"] = rank.gpu
        found |= {f"{who} {name}": value for name, value in rank.env.items()}
    return found


def _without_reports(lines: Sequence[Line], found: dict[tuple[str, int | None, int | None], Rank]) -> Iterator[Line]:
    for line in lines:
        rest, _, text = line.text.partition(MARK)
        report = _report(text)
        if report is None:
            yield line
            continue
        rank, after = report
        key = (rank.host, rank.rank, rank.local_rank)
        found[key] = replace(rank, env={**found[key].env, **rank.env}) if key in found else rank
        left = Line(line.t, rest + after)
        if any(each.text.strip() for each in peel([left])):  # another rank's words, and no mere label
            yield left


def _report(text: str) -> tuple[Rank, str] | None:
    """A report at the start of a text, and what stands behind it."""
    try:
        said, end = json.JSONDecoder().raw_decode(text)
        return Rank(**_readable(said)), text[end:]
    except (ValueError, TypeError):
        return None


def _readable(said: Any) -> dict[str, Any]:
    """With what is not UTF-8 replaced, since text in a row must be."""
    text = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
    readable: dict[str, Any] = json.loads(text)
    return readable
