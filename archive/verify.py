"""Read everything that counts in an archive and say what is wrong with it, file by file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from archive import layout, physical
from archive.delete import awaiting_deletion
from archive.layout import Part
from schemas import arrow
from schemas.errors import ArchiveError, Problem

_BELONGING = ("measurements", "counters", "outputs")
"""Tables whose rows each belong to an attempt."""
_NAMED = 20
"""Doubled attempts that are named one by one."""
_RESTORE = "restore it from a copy, or move it away: the rest still answers"


@dataclass(slots=True)
class _Read:
    """What was read of one archive."""

    problems: list[Problem] = field(default_factory=list)
    attempts: list[tuple[Path, pa.Array]] = field(default_factory=list)
    """The attempt ids of each file that holds attempts."""


def verify(archive: Path) -> list[Problem]:
    """Name every fault of an archive; an empty list means that there is none.

    Reads each file that counts to the last bit and checks its digest, every page and its schema; that ranges neither
    overlap nor leave gaps; that no attempt is there twice; that all rows belong to attempts of their run; that tables
    hold no file that no record stands for. Writers may be at work meanwhile. What only awaits deletion is no fault:
    `archive.delete.awaiting_deletion` names it.
    """
    found = layout.live(archive)
    read = _Read()
    for run, parts in layout.by_run((*found.open, *found.sealed)).items():
        read.problems += _ranges(run, parts)
        _read_run(archive, run, parts, read)
    return [*read.problems, *_doubled(read.attempts), *_strays(archive)]


def _ranges(run: str, parts: Sequence[Part]) -> Iterator[Problem]:
    expected = 1
    for before, part in zip([None, *parts], parts, strict=False):
        if before is not None and part.first < expected:
            doubled = f"holds appends {part.first} to {min(part.last, expected - 1)} of run {run}"
            yield Problem(str(part.path), f"{doubled}, which {before.path} holds too", "rows are there twice")
        if part.first > expected:
            missing = f"appends {expected} to {part.first - 1} are missing"
            yield Problem(f"run {run}", missing, "a file was taken out of open/ or runs/: restore it from a copy")
        expected = max(expected, part.last + 1)


def _read_run(archive: Path, run: str, parts: Sequence[Part], read: _Read) -> None:
    owned: list[pa.Array] = []
    belonging: list[tuple[str, Path, pa.Array]] = []
    complete = True
    for part in parts:
        for table, path in _files(archive, part):
            try:
                ids = _attempt_ids(part, table, path)
            except (ArchiveError, FileNotFoundError) as error:
                complete = False
                read.problems += _unreadable(archive, part, path, error)
                continue
            for name, array in ids.items():
                if name == "attempts":
                    owned.append(array)
                    read.attempts.append((path, array))
                else:
                    belonging.append((name, path, array))
    if complete:  # else rows may belong to attempts in the file that cannot be read
        read.problems += _unowned(run, owned, belonging)


def _files(archive: Path, part: Part) -> Iterator[tuple[str | None, Path]]:
    if part.table is None:
        yield None, part.path
    else:
        yield from ((table, layout.table_path(archive, table, part)) for table in arrow.TABLES)


def _attempt_ids(part: Part, table: str | None, path: Path) -> dict[str, pa.Array]:
    """Read a file whole; the attempt ids in it as 16 bytes each, by table. ArchiveError, FileNotFoundError."""
    if table is None:
        tables = physical.unnest(physical.read_nested(part), part.version)
        return {name: _distinct(name, rows.column("attempt_id")) for name, rows in tables.items() if _has_ids(name)}
    with physical.reading(path, table, part.version) as file:
        batches = (batch.column("attempt_id") if _has_ids(table) else None for batch in file.iter_batches())
        found = [_distinct(table, pa.chunked_array([ids])) for ids in batches if ids is not None]
    return {table: pa.chunked_array(found, pa.binary(16)).combine_chunks()} if _has_ids(table) else {}


def _has_ids(table: str) -> bool:
    return table == "attempts" or table in _BELONGING


def _distinct(table: str, column: pa.ChunkedArray) -> pa.Array:
    """Ids as bytes, each once where rows only belong to attempts; all of them in `attempts` itself."""
    ids = pa.chunked_array([chunk.storage for chunk in column.chunks], pa.binary(16)).combine_chunks()
    return ids if table == "attempts" else ids.unique()


def _unreadable(archive: Path, part: Part, path: Path, error: Exception) -> Iterator[Problem]:
    """Name a file that cannot be read, unless it stopped counting meanwhile."""
    now = layout.live(archive, part.run)
    if part in (*now.open, *now.sealed):
        what = "is missing, though its commit record stands" if isinstance(error, FileNotFoundError) else str(error)
        yield Problem(str(path), what.removeprefix(f"{path} "), _RESTORE)


def _unowned(run: str, owned: list[pa.Array], belonging: list[tuple[str, Path, pa.Array]]) -> Iterator[Problem]:
    known = pa.chunked_array(owned, pa.binary(16)).combine_chunks()
    for table, path, ids in belonging:
        strangers = len(ids) - pc.sum(pc.is_in(ids, known)).as_py() if len(ids) else 0
        if strangers:
            what = f"has {table} of {strangers} attempts that run {run} does not have"
            yield Problem(str(path), what, "the file that held the attempts is gone: restore it from a copy")


def _doubled(attempts: list[tuple[Path, pa.Array]]) -> Iterator[Problem]:
    counts = pc.value_counts(pa.chunked_array([ids for _, ids in attempts], pa.binary(16)))
    doubled = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    for each in doubled[:_NAMED]:
        paths = [str(path) for path, ids in attempts if pc.index(ids, each).as_py() >= 0]
        name = "without an id" if each.as_py() is None else str(UUID(bytes=each.as_py()))
        yield Problem(f"attempt {name}", f"is there more than once: in {', '.join(paths)}", "its rows count twice")
    if len(doubled) > _NAMED:
        yield Problem("", f"{len(doubled) - _NAMED} more attempts are there more than once")


def _strays(archive: Path) -> Iterator[Problem]:
    """Name files that a glob over a table would read though no commit record stands for them."""
    paths = [path for name in (layout.OPEN, *arrow.TABLES) for path in (archive / name).rglob(f"*{layout.SUFFIX}")]
    found = layout.live(archive)
    known = {part.path for part in (*found.open, *found.sealed)}.union(*(found.tables(name) for name in arrow.TABLES))
    known.update(awaiting_deletion(archive))
    for path in sorted(path for path in paths if path not in known and path.exists()):
        part = layout.parse_name(path)
        if part is None:
            yield Problem(str(path), "is no file of this archive", "move it away: a glob over the table reads it, too")
        else:
            remedy = f"`sweep resume {part.run}` seals it again; until then its rows count from {layout.OPEN}/"
            yield Problem(str(path), "has no commit record: a seal is under way or did not finish", remedy)
