"""Which files a failed query should do without.

DuckDB names the corrupt file in some of its errors, in others none or a whole one beside it. Each of our files has a
digest of all its bytes, so the errors only say when to look, and the digests whom to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from archive import layout


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with files."""

    gone: frozenset[Path]
    """Files that are no longer there."""
    faults: dict[Path, str]
    """Files that are there and not whole, or cannot be read, and why."""


def damage(error: Exception, files: Collection[Path]) -> Damage | None:
    """Find what made a query over files fail; None where the files are not to blame, so the statement is."""
    named = {path for path in files if str(path) in str(error)}
    if not named and _is_of_the_statement(error):
        return None
    gone = frozenset(path for path in files if not path.exists())
    left = set(files) - gone
    faults = _faults(path for path in left if path in named or not _looks_whole(path))
    if not gone and not faults:
        faults = _faults(left)
    return Damage(gone, faults) if gone or faults else None


def _is_of_the_statement(error: Exception) -> bool:
    """Tell whether DuckDB says such things of statements alone (of broken footers and pages it says all others)."""
    import duckdb

    kinds = (
        duckdb.ParserException,
        duckdb.SyntaxException,
        duckdb.BinderException,
        duckdb.CatalogException,
        duckdb.ConversionException,
        duckdb.OutOfRangeException,
        duckdb.TypeMismatchException,
        duckdb.ConstraintException,
        duckdb.PermissionException,
    )
    return isinstance(error, kinds)


def _looks_whole(path: Path) -> bool:
    try:
        return layout.is_readable(path)
    except OSError:
        return False


def _faults(files: Iterable[Path]) -> dict[Path, str]:
    from archive.physical import is_whole  # loads pyarrow, which a query that succeeds does not need

    found: dict[Path, str] = {}
    for path in files:
        try:
            if not is_whole(path.read_bytes()):
                found[path] = "is corrupt: its digest does not fit its bytes"
        except OSError as error:
            if path.exists():
                found[path] = f"cannot be read: {error.strerror}"
    return found
