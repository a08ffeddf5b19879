"""Questions to the archive: `sql`, `list`, `status`, `show`, `verify`."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from itertools import compress
from pathlib import Path
from typing import Any, TextIO, TypeVar

import typer

import archive
from archive import Archive, Limits
from archive.landlock import restrict
from schemas.errors import ArchiveError, InputError, Problem, SiteError
from sweep.listing import emit
from sweep.place import archive_folder

T = TypeVar("T")


def answer(
    statement: str | None, folder: Path | None, run: str | None, style: str, output: Path | None, seconds: float
) -> None:
    """One statement, its rows on stdout or in a file."""
    text = _statement(statement)
    opened = archive.open(archive_folder(folder))
    chosen = opened.resolve(run) if run is not None else None
    with _target(output, style) as target:

        def ask(limits: Limits) -> tuple[list[str], list[tuple[Any, ...]]] | None:
            relation = opened.sql(text, run=chosen, limits=limits)
            if style != "parquet":
                return relation.columns, relation.fetchall()
            from archive.export import write_parquet  # Arrow costs half a second of import

            write_parquet(relation, target.buffer)
            return None

        rows = _fenced(opened.path, seconds, ask)
        if rows is not None:
            emit(*rows, style, None if output is None else target)
    _warn(opened)


@contextlib.contextmanager
def _target(output: Path | None, style: str) -> Iterator[TextIO]:
    """Where the answer goes: opened before the question is asked, and under its name only when it is whole."""
    if output is None:
        if style == "parquet" and sys.stdout.isatty():
            raise InputError(Problem("--format", "parquet is no text", "add `-o FILE`, or pipe it somewhere"))
        yield sys.stdout
        return
    place = output.resolve()
    beside = place if place.exists() and not place.is_file() else place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", newline="") as file:
            yield file
        if beside != place:
            beside.replace(place)
    except OSError as error:
        raise InputError(Problem(str(output), f"cannot be written: {error.strerror}", "name another file")) from error
    finally:
        if beside != place:
            beside.unlink(missing_ok=True)


def _fenced(folder: Path, seconds: float, ask: Callable[[Limits], T]) -> T:
    """What `ask` gives, from a thread that can read the archive and write one temporary folder, nothing else.

    That holds where the kernel has Landlock, and for all threads that it starts, DuckDB's among them. This thread
    stays outside: it starts the pager and removes the folder.
    """
    temporary = Path(tempfile.mkdtemp(prefix="fabric-sweep-"))
    limits = Limits(seconds=seconds, temporary=temporary, stuck=lambda: os._exit(SiteError.exit_code))
    asked: Future[T] = Future()

    def work() -> None:
        restrict(folder, temporary)
        try:
            asked.set_result(ask(limits))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for the answer
            asked.set_exception(error)

    try:
        threading.Thread(target=work, daemon=True).start()
        return asked.result()
    except KeyboardInterrupt:  # DuckDB works on, and would keep the process from ending
        shutil.rmtree(temporary, ignore_errors=True)
        os._exit(130)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _statement(given: str | None) -> str:
    """The statement from the command line, from a file, or from stdin."""
    where, text = "sql", given or ""
    try:
        if given is None or given == "-":
            if given is None and sys.stdin.isatty():
                remedy = "type `sweep sql 'FROM results'`, `sweep sql @FILE`, or pipe SQL in"
                raise InputError(Problem("", "no statement", remedy))
            where = "stdin"
            text = sys.stdin.buffer.read().decode()
        elif given.startswith("@"):
            where = given[1:]
            text = Path(where).read_bytes().decode()
        else:
            given.encode()
    except OSError as error:
        raise InputError(
            Problem(where, f"cannot be read: {error.strerror}", "name a file with one statement")
        ) from error
    except UnicodeError as error:
        raise InputError(Problem(where, "is not UTF-8", "give one SQL statement as text")) from error
    return text


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
    columns, rows = relation.columns, relation.fetchall()
    _warn(opened)
    if not rows:
        raise ArchiveError(f"run {name}: its record cannot be read; `sweep verify` names the file")
    if style == "table":
        emit(("fact", "value"), list(zip(columns, rows[0], strict=True)), style, footer=False)
    else:
        emit(columns, rows, style)
    _say_if_dead(dict(zip(columns, rows[0], strict=True)))


def _say_if_dead(progress: Mapping[str, Any]) -> None:
    """An open run whose driver is gone does not go on by itself."""
    pid, host = progress["driver_pid"], progress["driver_host"]
    if progress["state"] == "open" and host == socket.gethostname() and not Path(f"/proc/{pid}").exists():
        remedy = f"go on with: sweep resume {progress['run']}"
        typer.echo(f"sweep: the driver of this run (process {pid}) is gone; {remedy}", err=True)


def print_trials(run: str, folder: Path | None, style: str) -> None:
    """A run's trials, a line each."""
    _listing(folder, _TRIALS, run, style)


def _listing(folder: Path | None, text: str, run: str | None, style: str) -> None:
    opened = archive.open(archive_folder(folder))
    relation = opened.sql(text, run=opened.resolve(run) if run is not None else None)
    columns, rows = relation.columns, relation.fetchall()
    if style == "table" and rows:  # what nobody asked for, such as NICs, takes no room
        filled = [any(row[index] not in (None, "") for row in rows) for index in range(len(columns))]
        columns, rows = list(compress(columns, filled)), [tuple(compress(row, filled)) for row in rows]
    emit(columns, rows, style)
    _warn(opened)


def _run(run: str, folder: Path | None) -> tuple[Archive, str]:
    opened = archive.open(archive_folder(folder))
    return opened, opened.resolve(run)


def print_trial(run: str, trial: str, folder: Path | None, style: str) -> None:
    """Every attempt of one trial: its command, its environment, what it measured, its raw output."""
    if style not in ("table", "json"):
        raise InputError(Problem("--format", f"one trial is no listing for {style}", "write table or json"))
    opened, name = _run(run, folder)
    safe = trial.replace("'", "''").lower()
    attempts = _records(opened, name, f"FROM attempts WHERE starts_with(trial_id::VARCHAR, '{safe}') ORDER BY attempt")
    ids = {record["trial_id"] for record in attempts}
    if len(ids) != 1:
        what = "no trial" if not ids else f"{len(ids)} trials"
        raise InputError(
            Problem(f"run {name}", f"{what} whose id begins with {trial!r}", f"`sweep show {name}` lists them")
        )
    for record in attempts:
        its = f"WHERE attempt_id = '{record['attempt_id']}' ORDER BY ALL"
        record["measurements"] = _records(opened, name, f"SELECT {_MEASURED} FROM measurements {its}")  # noqa: S608 - our own id
        record["outputs"] = _records(opened, name, f"SELECT {_PRINTED} FROM outputs {its}")  # noqa: S608 - as above
    if style == "json":
        emit(list(attempts[0]), [list(record.values()) for record in attempts], style)
    else:
        for record in attempts:
            _print_attempt(record)
    _warn(opened)


_MEASURED = "message_size, metric, variant, value, unit, samples, partial, t_begin, t_end"
_PRINTED = 'role, node, stream, truncated, "text"'


def _records(opened: Archive, run: str, text: str) -> list[dict[str, Any]]:
    relation = opened.sql(text, run=run)
    columns = relation.columns
    return [dict(zip(columns, row, strict=True)) for row in relation.fetchall()]


def _print_attempt(record: Mapping[str, Any]) -> None:
    typer.echo(f"── attempt {record['attempt']}: {record['outcome']} {record['reason'] or ''}".rstrip())
    apart = {"run", "attempt", "outcome", "reason", "argv", "environment", "measurements", "outputs"}
    facts = [(key, value) for key, value in record.items() if key not in apart and value not in (None, [], {}, "")]
    emit(("fact", "value"), facts, "table", footer=False)
    for part in record["argv"] or ():
        typer.echo(f"\ncommand ({part['role']} on {part['node']}):\n  {shlex.join(part['argv'])}")
    for key, value in (record["environment"] or {}).items():
        typer.echo(f"  {key}={value}")
    measured = record["measurements"]
    if measured:
        typer.echo("\nmeasured:")
        emit(list(measured[0]), [list(each.values()) for each in measured], "table")
    for each in record["outputs"]:
        cut = ", cut in the middle" if each["truncated"] else ""
        typer.echo(f"\n{each['stream']} of {each['role']} on {each['node']}{cut}:")
        typer.echo(each["text"])


def print_verdict(folder: Path | None) -> int:
    """What is wrong in an archive; 3 if anything is."""
    from archive.verify import verify

    where = archive.open(archive_folder(folder)).path
    problems = verify(where)
    for problem in problems:
        typer.echo(str(problem))
    typer.echo(f"{where}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}", err=True)
    return 3 if problems else 0
