"""What the archive has of a run already, and what is left to do: pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.attempt import Outcome
from schemas.plan import Trial


@dataclass(frozen=True, slots=True)
class Past:
    """What the archive has of a trial already: its last attempt."""

    attempt: int
    block_try: int
    outcome: str
    final: bool
    missing: tuple[int, ...]
    sizes: tuple[int, ...]


Pasts = Mapping[uuid.UUID, Past]


def pasts(records: Sequence[Mapping[str, object]], *, again: bool) -> dict[uuid.UUID, Past]:
    """The archive's attempts of a run as the last one of each trial; `again`: what failed for good is not done."""
    latest: dict[object, Mapping[str, object]] = {}
    for each in sorted(records, key=lambda record: int(str(record["attempt"]))):
        if each["phase"] == "measure":
            latest[each["trial_id"]] = each
    return {uuid.UUID(str(key)): _past(each, again=again) for key, each in latest.items()}


def left(members: Sequence[Trial], past: Pasts) -> tuple[int, list[Trial]]:
    """What is left of a block, and under which try: a cut block of several is done again whole, under the next."""
    launched = [trial for trial in members if trial.unsupported is None and not _was_unsupported(trial, past)]
    block_try = max((past[trial.trial_id].block_try for trial in launched if trial.trial_id in past), default=0)
    todo = [trial for trial in members if not _is_done(trial, past, block_try)]
    begun = any(_is_begun(trial, past, block_try) for trial in launched)
    if len(launched) > 1 and begun and any(trial in todo for trial in launched):
        return block_try + 1, [trial for trial in members if trial in todo or trial in launched]
    return block_try, todo


def rest(trial: Trial, past: Past | None, block_try: int) -> Trial:
    """A trial with the sizes that this try of its block has not measured yet."""
    if past is None or past.block_try != block_try or not _is_half(trial, past):
        return trial
    return replace(trial, sizes=past.missing)


def _past(record: Mapping[str, object], *, again: bool) -> Past:
    outcome = str(record["outcome"])
    return Past(
        attempt=int(str(record["attempt"])),
        block_try=int(str(record["block_try"])),
        outcome=outcome,
        final=bool(record["final"]) and not (again and outcome not in (Outcome.OK, Outcome.UNSUPPORTED)),
        missing=tuple(_sizes(record["missing"])),
        sizes=tuple(_sizes(record["sizes"])),
    )


def _sizes(value: object) -> Iterator[int]:
    if isinstance(value, (list, tuple)):
        yield from (int(size) for size in value)


def _was_unsupported(trial: Trial, past: Pasts) -> bool:
    return trial.trial_id in past and past[trial.trial_id].outcome == Outcome.UNSUPPORTED


def _is_done(trial: Trial, past: Pasts, block_try: int) -> bool:
    last = past.get(trial.trial_id)
    return last is not None and last.final and (last.block_try == block_try or last.outcome == Outcome.UNSUPPORTED)


def _is_begun(trial: Trial, past: Pasts, block_try: int) -> bool:
    """Whether this try of the block has something of a trial that must stand beside the others."""
    last = past.get(trial.trial_id)
    return last is not None and last.block_try == block_try and (last.final or _is_half(trial, last))


def _is_half(trial: Trial, last: Past) -> bool:
    """Whether some of a trial's sizes are measured, by its last attempt or those before it, and some are not."""
    return bool(last.missing) and set(last.missing) < set(trial.sizes)
