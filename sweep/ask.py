"""Questions to the archive: `sql`, `list`, `status`, `show`, `verify`."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import typer

import archive
from archive import Archive, Limits
from archive.landlock import restrict
from schemas.errors import InputError, Problem, SiteError
from sweep.listing import emit
from sweep.place import archive_folder


def answer(
    statement: str | None, folder: Path | None, run: str | None, style: str, output: Path | None, seconds: float
) -> None:
    """One statement, its rows on stdout or in a file."""
    text = _statement(statement)
    opened = archive.open(archive_folder(folder))
    chosen = opened.resolve(run) if run is not None else None
    with _target(output, style) as target, _fence(opened.path, seconds) as limits:
        relation = opened.sql(text, run=chosen, limits=limits)
        if style == "parquet":
            from archive.export import write_parquet  # Arrow costs half a second of import

            write_parquet(relation, target.buffer)
        else:
            emit(relation.columns, relation.fetchall(), style, None if output is None else target)
    _warn(opened)


@contextlib.contextmanager
def _target(output: Path | None, style: str) -> Iterator[TextIO]:
    """Where the answer goes; opened before the fence goes up."""
    if output is None:
        if style == "parquet" and sys.stdout.isatty():
            raise InputError(Problem("--format", "parquet is no text", "add `-o FILE`, or pipe it somewhere"))
        yield sys.stdout
        return
    try:
        file = output.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(Problem(str(output), f"cannot be written: {error.strerror}", "name another file")) from error
    with file:
        yield file


@contextlib.contextmanager
def _fence(folder: Path, seconds: float) -> Iterator[Limits]:
    """From here on this process reads the archive and writes one temporary folder, nothing else (where Landlock is).

    The kernel fences threads one by one: one that is older than the fence removes the folder in the end.
    """
    temporary = Path(tempfile.mkdtemp(prefix="fabric-sweep-"))
    done = threading.Event()

    def clean() -> None:
        done.wait()
        shutil.rmtree(temporary, ignore_errors=True)

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        restrict(folder, temporary)
        yield Limits(seconds=seconds, temporary=temporary, stuck=lambda: os._exit(SiteError.exit_code))
    finally:
        done.set()
        cleaner.join()


def _statement(given: str | None) -> str:
    if given is None or given == "-":
        if given is None and sys.stdin.isatty():
            raise InputError(
                Problem("", "no statement", "type `sweep sql 'FROM results'`, `sweep sql @FILE`, or pipe SQL in")
            )
        return sys.stdin.read()
    if given.startswith("@"):
        try:
            return Path(given[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                Problem(given[1:], f"cannot be read: {error}", "name a file with one SQL statement")
            ) from error
    return given


def _warn(opened: Archive) -> None:
    """Files that could not be read are named: the answer is without them."""
    for problem in opened.problems:
        typer.echo(f"sweep: {problem}", err=True)


def print_runs(folder: Path | None, style: str) -> None:
    """The runs of an archive, newest first."""
    _listing(folder, _RUNS, None, style)


_RUNS = """
SELECT run, name, cluster, state, start, stints, trials, done, ok, failed, unsupported, retried
FROM progress ORDER BY start DESC
"""

_TRIALS = """
SELECT left(trial_id::VARCHAR, 8) AS trial, benchmark || '.' || operation AS benchmark, repeat + 1 AS repeat,
       nodes, ranks_per_node AS ppn, nics, sharp, stack, factors, len(sizes) AS sizes, attempt AS attempts, outcome,
       elapsed_s, reason
FROM attempts_last ORDER BY start
"""


def print_status(run: str, folder: Path | None, style: str) -> None:
    """How far a run is: on a table, a line per fact."""
    opened, name = _run(run, folder)
    relation = opened.sql("FROM progress", run=name)
    rows = relation.fetchall()
    if style == "table":
        emit(("fact", "value"), list(zip(relation.columns, rows[0], strict=True)), style, footer=False)
    else:
        emit(relation.columns, rows, style)
    _warn(opened)


def print_trials(run: str, folder: Path | None, style: str) -> None:
    """A run's trials, a line each."""
    _listing(folder, _TRIALS, run, style)


def _listing(folder: Path | None, text: str, run: str | None, style: str) -> None:
    opened = archive.open(archive_folder(folder))
    relation = opened.sql(text, run=opened.resolve(run) if run is not None else None)
    emit(relation.columns, relation.fetchall(), style)
    _warn(opened)


def _run(run: str, folder: Path | None) -> tuple[Archive, str]:
    opened = archive.open(archive_folder(folder))
    return opened, opened.resolve(run)


def print_trial(run: str, trial: str, folder: Path | None) -> None:
    """Every attempt of one trial: its command, its environment, what it measured, its raw output."""
    opened, name = _run(run, folder)
    safe = trial.replace("'", "''").lower()
    relation = opened.sql(f"FROM attempts WHERE starts_with(trial_id::VARCHAR, '{safe}') ORDER BY attempt", run=name)
    columns, attempts = relation.columns, relation.fetchall()
    ids = {row[columns.index("trial_id")] for row in attempts}
    if len(ids) != 1:
        what = "no trial" if not ids else f"{len(ids)} trials"
        raise InputError(
            Problem(f"run {name}", f"{what} whose id begins with {trial!r}", f"`sweep show {name}` lists them")
        )
    for row in attempts:
        record = dict(zip(columns, row, strict=True))
        _print_attempt(opened, name, record)
    _warn(opened)


def _print_attempt(opened: Archive, run: str, record: dict[str, object]) -> None:
    typer.echo(f"── attempt {record['attempt']}: {record['outcome']} {record['reason'] or ''}".rstrip())
    skip = {"run", "outcome", "reason", "argv", "environment", "attempt"}
    facts = [(key, value) for key, value in record.items() if key not in skip and value not in (None, [], {}, "")]
    emit(("fact", "value"), facts, "table", footer=False)
    argv = record["argv"]
    for part in argv if isinstance(argv, list) else []:
        typer.echo(f"\ncommand ({part['role']} on {part['node']}):\n  {shlex.join(part['argv'])}")
    environment = record["environment"]
    for key, value in environment.items() if isinstance(environment, dict) else ():
        typer.echo(f"  {key}={value}")
    measured = opened.sql(
        "SELECT message_size, metric, variant, value, unit, samples, partial, t_begin, t_end FROM measurements "  # noqa: S608
        f"WHERE attempt_id = '{record['attempt_id']}' ORDER BY ALL",
        run=run,
    )
    typer.echo("\nmeasured:")
    emit(measured.columns, measured.fetchall(), "table")
    for role, node, stream, text, truncated in opened.sql(
        'SELECT role, node, stream, "text", truncated FROM outputs '  # noqa: S608
        f"WHERE attempt_id = '{record['attempt_id']}' ORDER BY ALL",
        run=run,
    ).fetchall():
        cut = ", cut in the middle" if truncated else ""
        typer.echo(f"\n{stream} of {role} on {node}{cut}:")
        typer.echo(text)


def print_verdict(folder: Path | None) -> int:
    """What is wrong in an archive; 3 if anything is."""
    from archive.verify import verify

    where = archive_folder(folder)
    problems = verify(where)
    for problem in problems:
        typer.echo(str(problem))
    typer.echo(f"{where}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}", err=True)
    return 3 if problems else 0
