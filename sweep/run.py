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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import archive
from archive import durable
from archive.store import Writer
from archive.where import keep
from schemas.errors import ArchiveError, InputError, Interrupted, NodeLost, Problem, SiteError, SweepError
from schemas.identity import hash_id
from schemas.plan import Inventory, Plan
from schemas.spec import Spec
from sweep import hosts, load, rows
from sweep.append import Appender
from sweep.carrier import RayExecutor
from sweep.clock import clocks, with_clocks
from sweep.deadline import deadline
from sweep.document import read
from sweep.drive import Driver, Summary, Watcher, new_run_id
from sweep.expand import expand
from sweep.interrupt import Interrupts
from sweep.past import Pasts, pasts
from sweep.place import archive_folder
from sweep.redact import REDACTED, Mask, redact_argv, redact_text
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
        """0 all ok, 1 some trials not ok, 3 not one can run here, otherwise what stopped it."""
        if self.stopped is not None:
            return self.stopped.exit_code
        if self.impossible:
            return SiteError.exit_code
        return 0 if self.summary.all_ok else 1

    @property
    def impossible(self) -> bool:
        """Whether it came to its end, and all that there was to do is unsupported here."""
        return self.stopped is None and {name for name, count in self.summary.outcomes.items() if count} == {
            "unsupported"
        }


def start_run(
    spec_path: Path,
    folder: Path | None,
    site: Path | None,
    address: str | None,
    kind: str | None,
    hostfile: Path | None,
) -> int:
    """A new run of a spec, to its exit code."""
    with Interrupts() as interrupts:
        spec = load.load(spec_path, site=site, environ=os.environ)
        seed = spec.run.seed if spec.run.seed is not None else random.SystemRandom().randrange(2**31)
        expand(spec, Inventory(cluster=spec.site.cluster), keep, seed)  # bad input is told before anything is started
        where = archive_folder(folder, spec.site)
        who = Identity(new_run_id(time.time()), 0)
        return _shown(_Work(spec, who, seed, where, dict), _executor(spec, address, kind, hostfile), interrupts)


def resume_run(
    run: str, folder: Path | None, address: str | None, kind: str | None, hostfile: Path | None, *, again: bool
) -> int:
    """The rest of a run, its plan minus what the archive has, to its exit code."""
    with Interrupts() as interrupts:
        opened = archive.open(archive_folder(folder))
        row = opened.run_row(opened.resolve(run))
        site = _whole(row, "site") if row["site_path"] else None
        spec = load.reload(_whole(row, "spec"), site, os.environ)
        who = Identity(str(row["run"]), int(str(row["stint"])) + 1)

        def past() -> Pasts:
            return pasts(opened.attempts(who.run), again=again)

        work = _Work(spec, who, int(str(row["seed"])), opened.path, past)
        return _shown(work, _executor(spec, address, kind, hostfile), interrupts)


def _whole(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The path and the text of a spec or site; where the archive left secrets out, the text of the file itself."""
    path, text = str(row[f"{name}_path"]), str(row[name])
    if REDACTED not in text:
        return path, text
    file = Path(path)
    current = read(file, name, os.environ).text if file.is_file() else ""
    if hash_id({"text": current}) != row[f"{name}_hash"]:
        raise InputError(Problem(path, "has changed, and the archive keeps no secrets", "put it back as it was"))
    return path, current


@dataclass(frozen=True, slots=True)
class _Work:
    """What a stint is to do."""

    spec: Spec
    who: Identity
    seed: int
    folder: Path
    past: Callable[[], Pasts]
    """What the archive has; asked once nobody else can add to it any more."""


def _executor(spec: Spec, address: str | None, kind: str | None, hostfile: Path | None) -> Executor:
    """Ray, unless the site or the user wants another reach."""
    if (reach := hosts.chosen(spec.site, hostfile, kind)) is not None:
        return hosts.executor(reach, hostfile, os.environ)
    if kind == "inline" or (kind is None and spec.site.reach == "local"):
        return InlineExecutor()
    return RayExecutor(address)


def _shown(work: _Work, executor: Executor, interrupts: Interrupts) -> int:
    """Do it, show it, and say how it ended and what to type next."""
    run, folder = work.who.run, work.folder
    show = watcher()
    try:
        finished = asyncio.run(_run(work, executor, show, interrupts))
    finally:
        show.close()
    counts = ", ".join(f"{count} {name}" for name, count in sorted(finished.summary.outcomes.items()) if count)
    show.say(f"run {run}: {counts or 'nothing'}; {finished.summary.retried} attempts tried again; archive {folder}")
    if finished.impossible:
        show.say("sweep: nothing of this spec can run here; `sweep plan` says why, `sweep doctor` what to type")
    if finished.stopped is not None:
        show.say(f"{finished.stopped}; go on with: sweep resume {run} --archive {folder}")
    return finished.exit_code


async def _run(work: _Work, executor: Executor, show: Watcher, interrupts: Interrupts) -> Finished:
    """From the nodes to the seal. What is raised, and not told in `Finished`, leaves nothing new to resume."""
    with interrupts.heeded(lambda: None):  # what closes and seals comes to its end
        show.say(f"run {work.who.run} in {work.folder}")
        if (place := str(work.folder.absolute())) != rows.utf8(place):
            raise InputError(Problem(f"archive {rows.utf8(place)}", "its path is no UTF-8", "name another folder"))
        with durable.explained(work.folder):  # now rather than after the first hour
            durable.make_folder(work.folder)
            durable.now(work.folder)
        writer = Writer(work.folder, work.who.run, work.who.stint)
        try:
            starting = asyncio.ensure_future(_start(work, executor, writer))
            with interrupts.heeded(starting.cancel):
                begun = await _uninterrupted(starting, interrupts)
            finished = await _drive(work, begun, executor, writer, show, interrupts)
        finally:
            await executor.close()
        interrupts.forget()
        return finished


async def _uninterrupted(starting: asyncio.Future[_Begun], interrupts: Interrupts) -> _Begun:
    """What has begun. Interrupted where a signal came first; SiteError where the nodes were lost."""
    try:
        begun = await starting
    except NodeLost as error:
        raise SiteError(str(error)) from error
    except asyncio.CancelledError:
        if not interrupts.count:
            raise
    if interrupts.count:
        raise Interrupted("interrupted while it started; nothing was measured")
    return begun


@dataclass(frozen=True, slots=True)
class _Begun:
    """A stint that holds the nodes and the run."""

    plan: Plan
    inventory: Inventory
    past: Pasts


async def _start(work: _Work, executor: Executor, writer: Writer) -> _Begun:
    """Take the nodes, look at them, plan, and take the run: from its first append on nobody else can add to it."""
    await executor.open()
    names = sorted({str(level).partition(".")[0] for level in work.spec.factors["benchmark"]})
    inventory = await survey(executor, work.spec.site, names)
    plan = expand(work.spec, inventory, keep, work.seed)
    nodes = with_clocks(executor.nodes if inventory.nodes is None else inventory.nodes, await clocks(executor))
    first = {
        "runs": [_run_row(work.who, work.spec, plan)],
        "nodes": [rows.node_row(work.who, node) for node in nodes],
        "events": [rows.event(work.who, "started", f"stint {work.who.stint}: {len(plan.trials)} trials")],
    }
    writer.append(Mask(work.spec).rows(first))
    return _Begun(plan, inventory, work.past())


async def _drive(
    work: _Work, begun: _Begun, executor: Executor, writer: Writer, show: Watcher, interrupts: Interrupts
) -> Finished:
    stopped: SweepError | None = None
    end = deadline(begun.plan.spec.run.deadline, time.time(), os.environ)
    async with Appender(writer) as appender:
        driver = Driver(work.who, begun.plan, begun.inventory, executor, appender, show, begun.past, end)
        try:
            with interrupts.heeded(driver.interrupt):
                await driver.run()
        except ArchiveError:
            raise
        except SweepError as error:
            stopped = error
    kind, text = ("ended", "all trials have an outcome") if stopped is None else ("stopped", str(stopped))
    writer.append({"events": [rows.event(work.who, kind, text)]})
    await asyncio.to_thread(writer.seal)
    return Finished(driver.summary, stopped)


def _run_row(who: Identity, spec: Spec, plan: Plan) -> dict[str, object]:
    return {
        "run": who.run,
        "stint": who.stint,
        "name": rows.utf8(spec.name),
        "description": spec.description,
        "campaign": None,
        "tags": list(spec.tags),
        "cluster": spec.site.cluster,
        "spec": redact_text(spec.text),
        "spec_path": rows.utf8(os.path.abspath(spec.source)),  # noqa: PTH100 - resolve() follows links, which differ
        "spec_hash": hash_id({"text": spec.text}),
        "site": redact_text(spec.site.text),
        "site_path": rows.utf8(os.path.abspath(spec.site.source)) if spec.site.source else "",  # noqa: PTH100
        "site_hash": hash_id({"text": spec.site.text}),
        "versions": _versions(),
        "seed": plan.seed,
        "trials": len(plan.trials),
        "points": plan.points,
        "user": getpass.getuser(),
        "driver_host": socket.gethostname(),
        "driver_pid": os.getpid(),
        "job_id": os.environ.get("SLURM_JOB_ID"),
        "argv": list(redact_argv(map(rows.utf8, sys.argv))),
        "start": dt.datetime.now(dt.UTC),
    }


def _versions() -> dict[str, str]:
    names = ("fabric-sweep", "ray", "pyarrow", "duckdb")
    return {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in names}}
