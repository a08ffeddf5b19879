"""When a run must have stopped: the allocation's end, a time, or a duration."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from schemas.errors import InputError, Problem
from schemas.notation import parse_duration


def deadline(asked: str, now: float, environ: Mapping[str, str]) -> float | None:
    """Seconds since the epoch, or None. "auto" is Slurm's end of the job, where there is one.

    InputError for what is neither "auto", "none", a duration ("8h"), nor an ISO time ("2026-12-01T06:00").
    """
    if asked == "none":
        return None
    if asked == "auto":
        end = environ.get("SLURM_JOB_END_TIME")
        return float(end) if end else None
    try:
        return dt.datetime.fromisoformat(asked).astimezone().timestamp()
    except ValueError:
        pass
    try:
        return now + parse_duration(asked)
    except (InputError, ValueError) as error:
        problem = Problem(
            "run.deadline", f"{asked!r} is no time", 'write "auto", a duration such as "8h", or "2026-12-01T06:00"'
        )
        raise InputError(problem) from error
