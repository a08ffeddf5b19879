"""Foreign SQL runs here: one statement that only reads, in a locked database, within limits of memory and time.

Nothing in this module trusts the text it is given; what holds it back, from the inside to the outside:
`archive.statement.accept` (the parse tree only reads), the configuration (no file outside the folders given, no
extension, no Python variable, locked), the limits, and for a process of its own `restrict` (the kernel's fence).
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from archive.landlock import restrict
from archive.statement import Tree, refusal
from schemas.errors import InputError, Problem

if TYPE_CHECKING:
    import duckdb

__all__ = ["Limits", "connect", "limited", "one_line", "parse", "quoted", "restrict"]

_Result = TypeVar("_Result")

_GRACE = 5.0
"""Seconds that an interrupted query has to end before `Limits.stuck` is called."""

_SETTINGS = (
    "enable_progress_bar = false",  # it writes into stdout
    "disabled_optimizers = 'partitioned_execution'",  # DuckDB 2.0.1 rescans a file per range with it, 5 x slower
    "python_enable_replacements = false",  # a table's name never means a Python variable
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "allow_persistent_secrets = false",
    "TimeZone = 'UTC'",  # the same text gives the same answer everywhere
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one statement may use."""

    seconds: float | None = None
    """Wall time; None: for ever."""
    memory: str = "1.8GB"
    """In DuckDB's notation; what needs more goes to `temporary`, or fails."""
    temporary: Path | None = None
    """An existing folder for what does not fit into memory; None: a fresh one, made when needed and removed."""
    stuck: Callable[[], object] | None = None
    """Called when a query ignores its interruption for 5 s (a single function call may): end the process here."""


def connect(folders: Iterable[Path], limits: Limits) -> duckdb.DuckDBPyConnection:
    """Connect to an empty database in memory that can read below `folders`, and whose configuration is locked."""
    import duckdb

    temporary = limits.temporary or Path(tempfile.gettempdir()) / f"fabric-sweep-{uuid4().hex}"
    allowed = ", ".join(quoted(folder) for folder in folders)
    settings = (
        *_SETTINGS,
        f"memory_limit = {quoted(limits.memory)}",
        f"temp_directory = {quoted(temporary)}",
        f"allowed_directories = [{allowed}]",
        "enable_external_access = false",
        "lock_configuration = true",
    )
    connection = duckdb.connect()
    try:
        connection.execute("; ".join(f"SET {setting}" for setting in settings))
    except duckdb.Error as error:
        raise InputError(Problem("limits", one_line(error))) from error
    return connection


def parse(connection: duckdb.DuckDBPyConnection, text: str) -> Tree:
    """Parse a text without running it; the tree says itself if it could not. InputError where it is nested too deep."""
    query = "SELECT json_serialize_sql($text::VARCHAR, skip_null := true, skip_empty := true)"
    [(answer,)] = connection.execute(query, {"text": text}).fetchall()
    try:
        tree: Tree = json.loads(answer)
    except RecursionError as error:
        raise refusal("the statement is nested too deep", "write it flatter, with WITH") from error
    return tree


def limited(connection: duckdb.DuckDBPyConnection, limits: Limits, work: Callable[[], _Result]) -> _Result:
    """Do work on a connection within the time limit: InputError if it had to be interrupted, else what it gave."""
    if limits.seconds is None:
        return work()
    import duckdb

    done = threading.Event()
    late = threading.Event()

    def watch(seconds: float) -> None:
        if done.wait(seconds):
            return
        late.set()
        connection.interrupt()
        if not done.wait(_GRACE) and limits.stuck is not None:
            limits.stuck()

    watcher = threading.Thread(target=watch, args=(limits.seconds,), name="sql-time-limit", daemon=True)
    watcher.start()
    try:
        return work()
    except duckdb.InterruptException as error:
        if not late.is_set():
            raise
        raise refusal(f"took longer than {limits.seconds:g} s", "ask for less, or allow more time") from error
    finally:
        done.set()
        watcher.join()


def quoted(value: object) -> str:
    """Write a value as a SQL string."""
    return "'" + str(value).replace("'", "''") + "'"


def one_line(error: Exception) -> str:
    """Say in one line what DuckDB says in many, without the echo of the statement."""
    text = str(error).split("\n\nLINE ", maxsplit=1)[0]
    kind, colon, rest = text.partition(" Error: ")
    return " ".join((rest if colon and "\n" not in kind else text).split())
