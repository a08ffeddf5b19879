"""What happened -> rows of the archive: pure, one function per table."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from schemas.attempt import Exit, Outcome, Output, Parsed, Process, Stream, Verdict
from schemas.identity import canonical
from schemas.metrics import METRICS
from schemas.plan import Node, Trial
from schemas.spec import CORE_FACTORS, text
from sweep import traffic
from sweep.expand import point_id
from sweep.redact import redact, redact_argv, redacted
from tasks import benchmarks

Row = dict[str, object]

ARCHIVED_BYTES = 256 * 1024
"""Raw text kept per stream: half of it from the head, half from the tail."""

ENVIRONMENT = re.compile(
    r"^(NCCL|RCCL|UCX|UCC|OMPI|PRTE|PMIX|MCA|I_MPI|FI|MPICH|MPIR|HYDRA|MV2|HCOLL|SHARP|OMP|GOMP|KMP|MKL|MLX5|IBV|RDMAV|"
    r"CUDA|HIP|ROCR|TORCH|GLOO|SWEEP)_\w+$|^(PATH|LD_LIBRARY_PATH|LD_PRELOAD)$"
)
"""Environment variables that change what is measured; nothing else is archived."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: the run and the stint, in every row."""

    run: str
    stint: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a trial: all that its rows say."""

    trial: Trial
    attempt_id: UUID
    number: int
    block_try: int
    verdict: Verdict
    final: bool
    phase: str = "measure"
    parsed: Parsed = Parsed()
    output: Output | None = None
    processes: tuple[Process, ...] = ()
    nodes: tuple[Node, ...] = ()
    start: float = 0.0
    """Seconds since the epoch, where there is no output."""
    nics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node -> the NICs that the launch was held to; empty where none were asked."""
    beside: tuple[str, ...] = ()
    """Attempts that ran at the same time, on other nodes."""


def attempt_rows(who: Identity, attempt: Attempt, *, series: bool = False) -> dict[str, list[Row]]:
    """Every row that one attempt leaves: itself, its measurements, its raw output, and its counters' `series`."""
    return {
        "attempts": [_attempt(who, attempt)],
        "measurements": list(_measurements(who, attempt)),
        "outputs": list(_outputs(who, attempt)),
        "counters": list(_counters(who, attempt)) if series else [],
    }


def event(who: Identity, kind: str, text: str, *, scope: str = "run", subject: str = "", author: str = "sweep") -> Row:
    """Something that happened, or that somebody said."""
    now = dt.datetime.now(dt.UTC)
    return {
        "run": who.run,
        "stint": who.stint,
        "time": now,
        "scope": scope,
        "subject": subject or who.run,
        "kind": kind,
        "author": author,
        "text": text,
    }


def node_row(who: Identity, node: Node) -> Row:
    """A node in a stint."""
    nics = None
    if node.nics is not None:
        fields = ("name", "link_layer", "rate_gbps", "state", "numa", "address", "firmware")
        nics = [{name: getattr(nic, name) for name in fields} for nic in node.nics]
    return {
        "run": who.run,
        "stint": who.stint,
        "node": node.name,
        "address": node.address,
        "cpus": node.cpus,
        "memory_bytes": node.memory_bytes,
        "nics": nics,
        "facts": {name: utf8(value) for name, value in node.facts.items()},
    }


def _core(trial: Trial) -> Row:
    combination = trial.combination
    core: Row = {
        name: combination.level(name) for name in CORE_FACTORS if name not in ("benchmark", "operation", "message_size")
    }
    return {"benchmark": combination.benchmark, "operation": combination.operation, **core}


def _attempt(who: Identity, attempt: Attempt) -> Row:
    trial, output = attempt.trial, attempt.output
    combination = trial.combination
    ended = _deciding_exit(output)
    return {
        "run": who.run,
        "stint": who.stint,
        "trial_id": trial.trial_id,
        "attempt_id": attempt.attempt_id,
        "attempt": attempt.number,
        "setup_id": combination.setup.setup_id,
        "block_id": trial.block_id,
        "block_try": attempt.block_try,
        "block": trial.block,
        "position": trial.position,
        "repeat": trial.repeat,
        "slot": trial.slot,
        "phase": attempt.phase,
        **_core(trial),
        "factors": {
            name: redact(name.removeprefix("env."), text(level))
            for name, level in combination.factors.items()
            if name not in CORE_FACTORS
        },
        "parameters": {name: redact(name, text(level)) for name, level in combination.parameters.items()},
        "setup": canonical(redacted(combination.setup.declared)),
        "sizes": [size for size in trial.sizes if size is not None],
        "missing": [size for size in attempt.parsed.missing if size is not None],
        "outcome": attempt.verdict.outcome.value,
        "reason": attempt.verdict.reason,
        "proof": list(attempt.verdict.lines),
        "final": attempt.final,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "node_names": [node.name for node in attempt.nodes],
        "nic_set": [f"{node} {nic}" for node, names in attempt.nics.items() for nic in names],
        "argv": [
            {"role": each.role, "node": _name(attempt.nodes, each.node), "argv": list(redact_argv(each.argv))}
            for each in attempt.processes
        ],
        "environment": {
            name: redact(name, value)
            for each in attempt.processes
            for name, value in each.env.items()
            if ENVIRONMENT.match(name) or name in _asked_environment(trial)
        },
        "start": moment(output.start if output is not None else attempt.start),
        "elapsed_s": output.elapsed if output is not None else None,
        "beside": list(attempt.beside),
        "killed": output.killed if output is not None else None,
        "left": list(output.left) if output is not None else None,
        "notes": list(output.notes) if output is not None else None,
        "evidence": {**attempt.parsed.evidence.facts, **_rose(attempt)},
        "traffic": _traffic(attempt),
        "contaminated": traffic.contaminated(output, attempt.nodes) if output is not None else None,
        "launch_revision": benchmarks.get(combination.benchmark).revision,
        "imported": False,
    }


def _traffic(attempt: Attempt) -> list[Row] | None:
    """Bytes per node and NIC."""
    if attempt.output is None:
        return None
    return [
        {"node": node.name, "nic": nic.name, "tx_bytes": tx, "rx_bytes": rx}
        for node, nic, tx, rx in traffic.totals(attempt.output, attempt.nodes)
    ]


def _counters(who: Identity, attempt: Attempt) -> Iterator[Row]:
    if attempt.output is None:
        return
    for node, nic, counter, elapsed, moved in traffic.series(attempt.output, attempt.nodes):
        yield {
            "run": who.run,
            "attempt_id": attempt.attempt_id,
            "node": node.name,
            "device": nic,
            "counter": counter,
            "start": moment(attempt.output.looks[attempt.nodes.index(node)].start),
            "elapsed": list(elapsed),
            "delta": list(moved),
        }


def _rose(attempt: Attempt) -> dict[str, str]:
    """Error counters that rose, as evidence."""
    if attempt.output is None:
        return {}
    return {f"counter {name}": f"+{rise}" for name, rise in traffic.errors(attempt.output, attempt.nodes).items()}


def _asked_environment(trial: Trial) -> set[str]:
    """Variables that are factors: their values are the question and always archived."""
    return {name.removeprefix("env.") for name in trial.combination.factors if name.startswith("env.")}


def _deciding_exit(output: Output | None) -> Exit:
    """How the role that decides the end ended."""
    return output.exits[-1] if output is not None and output.exits else Exit("", 0)


def _measurements(who: Identity, attempt: Attempt) -> Iterator[Row]:
    trial, parsed = attempt.trial, attempt.parsed
    if not parsed.measurements or attempt.output is None:
        return
    evidence = parsed.evidence
    common: Row = {
        "run": who.run,
        "start": moment(attempt.output.start),
        "trial_id": trial.trial_id,
        "attempt_id": attempt.attempt_id,
        "setup_id": trial.combination.setup.setup_id,
        "block_id": trial.block_id,
        **_core(trial),
        "phase": attempt.phase,
        "repeat": trial.repeat,
        "slot": trial.slot,
        "evidence": evidence.level,
        "parser_revision": benchmarks.get(trial.combination.benchmark).parser_revision,
    }
    points: dict[int | None, UUID] = {}
    for each in parsed.measurements:
        size = each.message_size
        if size not in points:
            points[size] = point_id(trial.combination, size)
        yield {
            **common,
            "point_id": points[size],
            "message_size": size,
            "payload_bytes": each.payload_bytes,
            "metric": each.metric,
            "value": each.value,
            "unit": each.unit if each.metric not in METRICS else METRICS[each.metric].unit,
            "variant": each.variant,
            "algorithm": evidence.algorithm.get(size, evidence.algorithm.get(None)),
            "protocol": evidence.protocol.get(size, evidence.protocol.get(None)),
            "sharp_observed": evidence.sharp.get(size, evidence.sharp.get(None)),
            "nics_observed": evidence.nics.get(size, evidence.nics.get(None)),
            "t_begin": each.t_begin,
            "t_end": each.t_end,
            "samples": each.samples,
            "partial": each.partial,
        }


def _outputs(who: Identity, attempt: Attempt) -> Iterator[Row]:
    if attempt.output is None:
        return
    for stream in attempt.output.streams:
        kept, cut = bounded(stream)
        yield {
            "run": who.run,
            "attempt_id": attempt.attempt_id,
            "role": stream.role,
            "node": _name(attempt.nodes, stream.node),
            "stream": stream.stream,
            "text": "\n".join(line.text for line in kept.lines),
            "stamps": [round(line.t, 6) for line in kept.lines],
            "size": stream.size,
            "truncated": cut or stream.truncated,
        }


def bounded(stream: Stream, limit: int = ARCHIVED_BYTES) -> tuple[Stream, bool]:
    """A stream's head and tail within `limit` bytes of text, and whether anything was cut."""
    sizes = [len(line.text.encode()) + 1 for line in stream.lines]
    if sum(sizes) <= limit:
        return stream, False
    head, room = 0, limit // 2
    while head < len(sizes) and sizes[head] <= room:
        room -= sizes[head]
        head += 1
    tail, room = len(sizes), limit // 2
    while tail > head and sizes[tail - 1] <= room:
        tail -= 1
        room -= sizes[tail]
    return replace(stream, lines=(*stream.lines[:head], *stream.lines[tail:])), True


def utf8(name: str) -> str:
    """A path or argument as a column holds it: bytes that are no UTF-8 become U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def moment(epoch: float) -> dt.datetime:
    """Seconds since the epoch as an aware time."""
    return dt.datetime.fromtimestamp(epoch, dt.UTC)


def _name(nodes: Sequence[Node], index: int) -> str:
    return nodes[index].name if index < len(nodes) else str(index)


def unsupported(trial: Trial, now: float, block_try: int, attempt_id: UUID, number: int) -> Attempt:
    """The row of a trial that cannot run here: never a silent skip."""
    verdict = Verdict(Outcome.UNSUPPORTED, trial.unsupported or "")
    return Attempt(
        trial, attempt_id, number, block_try, verdict, final=True, start=now, parsed=Parsed(missing=trial.sizes)
    )
