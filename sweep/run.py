"""`sweep run` and `sweep resume`: from a spec to sealed rows."""

from __future__ import annotations

import asyncio
import datetime as dt
import getpass
import importlib.metadata
import os
import random
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from rich.console import Console

import archive
from archive.store import Writer
from archive.where import keep
from schemas.errors import Interrupted, Stopped, SweepError
from schemas.identity import hash_id
from schemas.plan import Inventory, Plan
from schemas.spec import Spec
from sweep import load, rows
from sweep.append import Appender
from sweep.deadline import deadline
from sweep.drive import Driver, Past, Summary, Watcher, new_run_id, pasts
from sweep.expand import expand
from sweep.place import archive_folder
from sweep.rows import Identity
from sweep.survey import survey
from sweep.watch import watcher
from tasks.executor import Executor, InlineExecutor


@dataclass(frozen=True, slots=True)
class Finished:
    """How a run ended, and what stopped it if it did not come to its end."""

    summary: Summary
    stopped: SweepError | None

    @property
    def exit_code(self) -> int:
        """0 all ok, 1 some trials not ok, otherwise what stopped it."""
        if self.stopped is not None:
            return self.stopped.exit_code
        return 0 if self.summary.all_ok else 1


def start_run(spec_path: Path, folder: Path | None, site: Path | None, address: str | None, kind: str | None) -> int:
    """A new run of a spec, to its exit code."""
    spec = load.load(spec_path, site=site, environ=os.environ)
    seed = spec.run.seed if spec.run.seed is not None else random.SystemRandom().randrange(2**31)
    expand(spec, Inventory(cluster=spec.site.cluster), keep, seed)  # bad input is told before anything is started
    where = archive_folder(folder, spec.site)
    who = Identity(new_run_id(time.time()), 0)
    return _shown(spec, who, seed, where, _executor(spec, address, kind), {})


def resume_run(run: str, folder: Path | None, address: str | None, kind: str | None, *, again: bool) -> int:
    """The rest of a run, its plan minus what the archive has, to its exit code."""
    opened = archive.open(archive_folder(folder))
    row = opened.run_row(opened.resolve(run))
    site = (row["site_path"], row["site"]) if row["site_path"] else None
    spec = load.reload((row["spec_path"], row["spec"]), site, os.environ)
    who = Identity(str(row["run"]), int(str(row["stint"])) + 1)
    past = dict(pasts(opened.attempts(who.run), again=again))
    return _shown(spec, who, int(str(row["seed"])), opened.path, _executor(spec, address, kind), past)


def _executor(spec: Spec, address: str | None, kind: str | None) -> Executor:
    """Ray, unless the site or the user wants this process alone."""
    if kind == "inline" or (kind is None and spec.site.reach == "local"):
        return InlineExecutor()
    from sweep.cluster import RayExecutor  # Ray costs a second of import; only who needs it pays

    return RayExecutor(address)


def _shown(spec: Spec, who: Identity, seed: int, folder: Path, executor: Executor, past: Mapping[UUID, Past]) -> int:
    """Run it, show it, and say how it ended and what to type next."""
    show = watcher(Console(stderr=True))
    try:
        finished = asyncio.run(_run(spec, who, seed, folder, executor, show, past))
    finally:
        show.close()
    counts = ", ".join(f"{count} {name}" for name, count in sorted(finished.summary.outcomes.items()) if count)
    show.say(f"run {who.run}: {counts or 'nothing'}; {finished.summary.retried} attempts tried again; archive {folder}")
    if finished.stopped is not None:
        show.say(f"{finished.stopped}; go on with: sweep resume {who.run} --archive {folder}")
    return finished.exit_code


async def _run(
    spec: Spec,
    who: Identity,
    seed: int,
    folder: Path,
    executor: Executor,
    watcher: Watcher,
    past: Mapping[UUID, Past],
) -> Finished:
    writer = Writer(folder, who.run, who.stint)
    watcher.say(f"run {who.run} in {folder}")
    try:
        await executor.open()
        names = sorted({str(level).partition(".")[0] for level in spec.factors["benchmark"]})
        inventory = await survey(executor, spec.site, names)
        plan = expand(spec, inventory, keep, seed)
        writer.append(
            {
                "runs": [_run_row(who, spec, plan)],
                "nodes": [rows.node_row(who, node) for node in executor.nodes],
                "events": [rows.event(who, "started", f"stint {who.stint}: {len(plan.trials)} trials")],
            }
        )
        return await _drive(plan, inventory, who, writer, executor, watcher, past)
    finally:
        await executor.close()


async def _drive(
    plan: Plan,
    inventory: Inventory,
    who: Identity,
    writer: Writer,
    executor: Executor,
    watcher: Watcher,
    past: Mapping[UUID, Past],
) -> Finished:
    stopped: SweepError | None = None
    end = deadline(plan.spec.run.deadline, time.time(), os.environ)
    async with Appender(writer) as appender:
        driver = Driver(who, plan, inventory, executor, appender, watcher, past, end)
        try:
            await driver.run()
        except (Interrupted, Stopped) as error:
            stopped = error
    kind, text = ("ended", "all trials have an outcome") if stopped is None else ("stopped", str(stopped))
    writer.append({"events": [rows.event(who, kind, text)]})
    await asyncio.to_thread(writer.seal)
    return Finished(driver.summary, stopped)


def _run_row(who: Identity, spec: Spec, plan: Plan) -> dict[str, object]:
    return {
        "run": who.run,
        "stint": who.stint,
        "name": spec.name,
        "description": spec.description,
        "campaign": None,
        "tags": list(spec.tags),
        "cluster": spec.site.cluster,
        "spec": spec.text,
        "spec_path": os.path.abspath(spec.source),  # noqa: PTH100 - resolve() would follow links, which differ elsewhere
        "spec_hash": hash_id({"text": spec.text}),
        "site": spec.site.text,
        "site_path": os.path.abspath(spec.site.source) if spec.site.source else "",  # noqa: PTH100
        "site_hash": hash_id({"text": spec.site.text}),
        "versions": _versions(),
        "seed": plan.seed,
        "trials": len(plan.trials),
        "points": plan.points,
        "user": getpass.getuser(),
        "driver_host": socket.gethostname(),
        "driver_pid": os.getpid(),
        "job_id": os.environ.get("SLURM_JOB_ID"),
        "argv": list(rows.redact_argv(sys.argv)),
        "start": dt.datetime.now(dt.UTC),
    }


def _versions() -> dict[str, str]:
    names = ("fabric-sweep", "ray", "pyarrow", "duckdb")
    return {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in names}}
