"""Which files a failed query should do without: DuckDB names the corrupt one in some of its errors, not in all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from archive import layout, sandbox


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with files."""

    gone: frozenset[Path]
    """Files that are no longer there."""
    faults: dict[Path, str]
    """Files that cannot be read, and why."""


def damage(error: Exception, files: Collection[Path]) -> Damage | None:
    """Find what made a query over files fail; None where the files are not to blame, so the statement is."""
    import duckdb

    named = {path for path in files if str(path) in str(error)}
    may_be_any = (duckdb.SerializationException, duckdb.InternalException, duckdb.FatalException)  # others name theirs
    if not named and type(error) is not duckdb.Error and not isinstance(error, may_be_any):
        return None
    gone = frozenset(path for path in files if not path.exists())
    suspects = {path for path in files if path in named or not _looks_whole(path)} if named or gone else set(files)
    faults = _faults(suspects - gone)
    return Damage(gone, faults) if gone or faults else None


def _looks_whole(path: Path) -> bool:
    try:
        return layout.is_readable(path)
    except OSError:
        return False


def _faults(files: Collection[Path]) -> dict[Path, str]:
    """Read files to their end, each by itself: file -> why that failed."""
    import duckdb

    found: dict[Path, str] = {}
    folders = {path.parent for path in files}
    connection = None
    for path in sorted(files):
        connection = connection or sandbox.connect(folders, sandbox.Limits())
        try:
            query = f"SELECT bit_xor(hash(f)) FROM read_parquet({sandbox.quoted(path)}) AS f"  # noqa: S608 - quoted
            connection.execute(query).fetchall()
        except duckdb.Error as error:
            if path.exists():
                found[path] = f"cannot be read: {sandbox.one_line(error).replace(str(path), path.name)}"
            connection = None  # some errors end a database for good
    return found
