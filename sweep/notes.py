"""Short words for trials and sizes, the same in every listing."""

from __future__ import annotations

from collections.abc import Collection

from schemas.notation import format_number
from schemas.plan import Plan, Trial
from schemas.spec import text


def describe(trial: Trial, constant: Collection[str] = ()) -> str:
    """`imb.allreduce ranks_per_node=2 4..4M #3`: what a trial is, in one line, without the factors of one level."""
    combination = trial.combination
    own = f"{combination.benchmark}."
    factors = [
        f"{name.removeprefix(own)}={text(level)}" for name, level in combination.factors.items() if name not in constant
    ]
    return " ".join(
        filter(None, [f"{own}{combination.operation}", *factors, sizes(trial.sizes), f"#{trial.repeat + 1}"])
    )


def constants(plan: Plan) -> frozenset[str]:
    """The factors that have one level in all of a plan."""
    included = {name for each in plan.spec.include for name in each}
    return frozenset(name for name, levels in plan.spec.factors.items() if len(levels) == 1 and name not in included)


def sizes(asked: tuple[int | None, ...]) -> str:
    """`1..4M` for several sizes, `8K` for one, nothing where size is no factor."""
    known = [size for size in asked if size is not None]
    if not known:
        return ""
    if len(known) == 1:
        return format_number(known[0])
    return f"{format_number(known[0])}..{format_number(known[-1])}"


def span(seconds: float | None) -> str:
    """A duration for humans: `42 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 trial`, `2 trials`; with its own plural `2 launches`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
