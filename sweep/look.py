"""`sweep inventory` and `sweep plan`: what there is, and what would be done."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import typer

from archive.where import keep
from schemas.plan import Inventory, Plan, Trial
from schemas.spec import Spec, text
from sweep import hosts, load
from sweep.cost import estimate
from sweep.coverage import Coverage, coverage, warning
from sweep.expand import expand, point_id
from sweep.inventory import from_toml, to_toml
from sweep.listing import emit
from sweep.notes import constants, counted, describe, sizes, span
from sweep.redact import redacted
from sweep.site import load_site
from sweep.survey import survey
from sweep.topology import with_leaves
from tasks import benchmarks
from tasks.executor import Executor, InlineExecutor


def print_inventory(site: Path | None, address: str | None, kind: str | None, hostfile: Path | None) -> None:
    """What the nodes have, as TOML on stdout."""
    found = load_site(site, os.environ)
    executor: Executor
    if (reach := hosts.chosen(found, hostfile, kind)) is not None:
        executor = hosts.executor(reach, hostfile, os.environ)
    elif kind == "inline" or (kind is None and address is None):
        executor = InlineExecutor()
    else:
        from sweep.carrier import RayExecutor

        executor = RayExecutor(address)
    spec = Spec(name="inventory", factors={}, site=found)
    typer.echo(to_toml(asyncio.run(take(executor, spec, benchmarks.names()))), nl=False)


async def take(executor: Executor, spec: Spec, names: tuple[str, ...]) -> Inventory:
    """Open, survey, close."""
    try:
        await executor.open()
        return await survey(executor, spec.site, names)
    finally:
        await executor.close()


def print_plan(path: Path, site: Path | None, inventory: Path | None, style: str) -> None:
    """What a run of this spec would do here."""
    spec = load.load(path, site=site, environ=os.environ)
    names = tuple(sorted({str(level).partition(".")[0] for level in spec.factors["benchmark"]}))
    have = asyncio.run(take(InlineExecutor(), spec, names)) if inventory is None else from_toml(inventory)
    if inventory is not None and have.nodes is not None:
        have = dataclasses.replace(have, nodes=with_leaves(have.nodes, spec.site.fabric.topology))
    plan = expand(spec, have, keep, spec.run.seed if spec.run.seed is not None else 0)
    if (risk := warning(plan, coverage(plan, have))) is not None:
        typer.echo(f"warning: {risk}", err=True)
    if style == "json":
        emit_json(plan, have)
    elif style == "table":
        print_summary(plan, have)
    else:
        emit(TRIAL_COLUMNS, [_trial_row(trial) for trial in plan.trials], style)


def print_summary(plan: Plan, have: Inventory) -> None:
    """A plan for humans."""
    spec = plan.spec
    launched = [trial for trial in plan.trials if trial.unsupported is None]
    trials, points = counted(len(plan.trials), "trial"), counted(plan.points, "point")
    lines = [
        f"{spec.name} on {have.cluster}: {trials} for {points} × {counted(spec.run.repeats.min, 'repeat')}",
        f"  launches   {len(launched)}, {plan.launches_saved} saved by measuring several message sizes in one",
        f"  excluded   {counted(plan.excluded, 'point')} by `where`" if plan.excluded else "",
        f"  time       about {span(plan.estimate_s)}",
        f"  nodes      {_nodes(have)}",
        *_covered(plan, coverage(plan, have)),
        f"  order      {spec.run.order}, pairs {', '.join(_paired(plan)) or 'none'}",
    ]
    typer.echo("\n".join(line for line in lines if line))
    rows = [
        [f"{key[0]}", key[1], len(trials), sum(len(each.sizes) for each in trials), span(sum(map(estimate, trials)))]
        for key, trials in _groups(launched).items()
    ]
    if rows:
        typer.echo("")
        emit(("launches of", "message sizes", "launches", "points × repeats", "about"), rows, "table")
    refused = Counter(trial.unsupported for trial in plan.trials if trial.unsupported is not None)
    if refused:
        typer.echo("\nunsupported here (each becomes a row with that outcome, and is not launched):")
        for reason, count in refused.most_common():
            first = next(trial for trial in plan.trials if trial.unsupported == reason)
            for_example = ", e.g." if count > 1 else ""
            typer.echo(f"  {counted(count, 'trial')}{for_example} {describe(first, constants(plan))}: {reason}")


def _paired(plan: Plan) -> list[str]:
    return [name for name in plan.spec.run.pair if len(plan.spec.factors.get(name, ())) > 1]


def _nodes(have: Inventory) -> str:
    if have.nodes is None:
        return "unknown here"
    return f"{len(have.nodes)}: {', '.join(node.name for node in have.nodes[:8])}{' …' if len(have.nodes) > 8 else ''}"


def _covered(plan: Plan, covered: Coverage | None) -> Iterator[str]:
    """Lines about what each node does, and what it all costs."""
    if covered is None:
        return
    alike: dict[int, list[str]] = {}
    for name, count in covered.launches.items():
        if count:
            alike.setdefault(count, []).append(name)
    shares = [f"{_some(names)}: {counted(count, 'launch', 'launches')}" for count, names in sorted(alike.items())]
    if covered.anywhere:
        shares.append(f"{counted(covered.anywhere, 'launch', 'launches')} on whichever nodes are free")
    if shares:
        yield f"  coverage   {'; '.join(shares)}"
    if covered.unused:
        yield f"  unused     {', '.join(covered.unused)}"
    most = "at most " if plan.spec.run.concurrency == "disjoint" else ""
    hours, held = f"{covered.used_s / 3600:.3g}", f"{most}{covered.held_s / 3600:.3g}"
    yield f"  node-hours about {hours} used, {held} held"


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"


def _groups(trials: list[Trial]) -> dict[tuple[str, str], list[Trial]]:
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        combination = trial.combination
        groups.setdefault((f"{combination.benchmark}.{combination.operation}", sizes(trial.sizes)), []).append(trial)
    return groups


TRIAL_COLUMNS = ("block", "position", "repeat", "benchmark", "sizes", "factors", "unsupported", "trial_id")


def _trial_row(trial: Trial) -> list[object]:
    combination = trial.combination
    return [
        trial.block,
        trial.position,
        trial.repeat,
        f"{combination.benchmark}.{combination.operation}",
        sizes(trial.sizes),
        " ".join(f"{name}={text(level)}" for name, level in combination.factors.items()),
        trial.unsupported,
        trial.trial_id,
    ]


def emit_json(plan: Plan, have: Inventory) -> None:
    """The whole plan, in the order of execution."""
    import json

    covered = coverage(plan, have)
    document = {
        "name": plan.spec.name,
        "cluster": have.cluster,
        "seed": plan.seed,
        "points": plan.points,
        "excluded": plan.excluded,
        "launches_saved": plan.launches_saved,
        "estimate_s": plan.estimate_s,
        "coverage": None if covered is None else {**dataclasses.asdict(covered), "spare": covered.spare},
        "run": dataclasses.asdict(plan.spec.run),
        "trials": [_trial_document(trial) for trial in plan.trials],
    }
    typer.echo(json.dumps(document, indent=1, default=str))


def _trial_document(trial: Trial) -> dict[str, object]:
    combination = trial.combination
    return {
        "trial_id": trial.trial_id,
        "benchmark": combination.benchmark,
        "operation": combination.operation,
        "factors": dict(combination.factors),
        "parameters": dict(combination.parameters),
        "sizes": [size for size in trial.sizes if size is not None],
        "point_ids": [point_id(combination, size) for size in trial.sizes],
        "setup_id": combination.setup.setup_id,
        "setup": redacted(combination.setup.declared),
        "repeat": trial.repeat,
        "slot": trial.slot,
        "block_id": trial.block_id,
        "block": trial.block,
        "position": trial.position,
        "estimate_s": estimate(trial) if trial.unsupported is None else None,
        "unsupported": trial.unsupported,
    }
