"""Late deletion: what others have covered for a while goes away, entries before their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from archive import durable, layout
from archive.layout import GRACE, Part
from schemas.errors import InputError, Problem

_ASLEEP = 60
"""A writer that has slept for this many graces is taken for dead: its temporaries go, and tombstones it never saw."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """How many files went away, and how many still wait until what covers them is old enough."""

    files: int
    waiting: int


def delete_dead(archive: Path, run: str | None = None, grace: float = GRACE) -> Deleted:
    """Delete what a file that counts has covered for `grace` seconds by the store's own clock.

    With a run: only its files in open/ and runs/ (and those the records imply). Without: also tables' files whose
    record went first, temporaries of dead writers, empty folders, and tombstones that have nothing left to cover.
    Files that this user may not delete wait for somebody who may.
    """
    with durable.explained(archive):
        if not archive.is_dir():
            return Deleted(0, 0)
        return _Deletion(archive, grace).act(run)


def forget(archive: Path, run: str) -> None:
    """Make everything of a run not count any more, at once and durably; its files go away later.

    InputError where the archive has no such run.
    """
    if not layout.is_run(run) or not layout.scan(archive, run):
        raise InputError(Problem(f"run {run}", f"is not in the archive {archive}", "`sweep list` names the runs"))
    with durable.explained(archive):
        durable.put_new(layout.tombstone(archive, run).path, memoryview(b""))


def awaiting_deletion(archive: Path) -> tuple[Path, ...]:
    """Name what no longer counts but is still there, sorted: covered files, and temporaries.

    While a table's files are among them, a glob over that table from outside may see rows twice.
    """
    pairs = layout.covers(layout.scan(archive))
    counting = [part for part, cover in pairs if cover is None]
    dead = [part for part, cover in pairs if cover is not None]
    implied = [
        layout.table_path(archive, table, part) for table in _tables(archive) for part in dead if part.table is not None
    ]
    orphans = _orphans(archive, {part.path.name for part, _ in pairs if part.table}, counting)
    found = [*(part.path for part in dead), *(part.path for part, _ in orphans), *_temporaries(archive)]
    return tuple(sorted((*found, *(path for path in implied if path.exists()))))


class _Deletion:
    """One pass over an archive, at one moment of the store's clock."""

    def __init__(self, archive: Path, grace: float) -> None:
        self._archive = archive
        self._grace = grace
        self._now = durable.now(archive)
        self._named_at = cache(durable.named_at)
        self._files = 0
        self._waiting = 0

    def act(self, run: str | None) -> Deleted:
        pairs = layout.covers(layout.scan(self._archive, run, self._grace))
        counting = [part for part, cover in pairs if cover is None]
        dead = [(part, cover) for part, cover in pairs if cover is not None]
        tombstones = [part for part in counting if part.tombstone]
        orphans: list[tuple[Part, Part]] = []
        if run is None:
            orphans = list(_orphans(self._archive, {part.path.name for part, _ in pairs if part.table}, counting))
        self._parts(self._due(dead))
        self._unlink(part.path for part in self._due(orphans))
        if run is None:
            busy = {part.run for part, _ in (*dead, *orphans)}
            self._unlink(part.path for part in tombstones if part.run not in busy and self._is_old(part.path, _ASLEEP))
            self._unlink(path for path in _temporaries(self._archive) if self._is_old(path, _ASLEEP))
            self._empty_folders()
        return Deleted(self._files, self._waiting)

    def _due(self, dead: Iterable[tuple[Part, Part]]) -> list[Part]:
        due = []
        for part, cover in dead:
            if self._is_old(cover.path):
                due.append(part)
            else:
                self._waiting += 1
        return due

    def _is_old(self, path: Path, graces: int = 1) -> bool:
        try:
            return self._now - self._named_at(path) >= graces * self._grace
        except FileNotFoundError:
            return False  # somebody else is deleting, too

    def _parts(self, parts: list[Part]) -> None:
        """Entries first, so that a tables' file is never missing under a record, even after a loss of power."""
        self._unlink(part.path for part in parts)
        records = [part for part in parts if part.table is not None]
        if records:
            durable.sync_folder(self._archive / layout.RECORDS)
        for table in _tables(self._archive):
            self._unlink(layout.table_path(self._archive, table, record) for record in records)

    def _unlink(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except PermissionError:
                self._waiting += 1
            else:
                self._files += 1

    def _empty_folders(self) -> None:
        for folder in layout.entries(self._archive / layout.OPEN):
            if layout.is_run(folder.name) and not layout.entries(folder):
                try:
                    folder.rmdir()
                except OSError:  # a writer was quicker, or it belongs to another user: an empty folder does no harm
                    continue


def _tables(archive: Path) -> list[str]:
    """Name the tables with month folders: all but `runs`."""
    return [
        folder.name
        for folder in layout.entries(archive)
        if folder.name not in {layout.OPEN, layout.RECORDS} and folder.is_dir()
    ]


def _months(archive: Path) -> Iterator[Path]:
    for table in _tables(archive):
        yield from (folder for folder in layout.entries(archive / table) if folder.is_dir())


def _orphans(archive: Path, records: set[str], counting: list[Part]) -> Iterator[tuple[Part, Part]]:
    """Tables' files without a record, each with a part that covers what its record would say.

    Those that nothing covers may belong to a seal that is under way.
    """
    by_run = layout.by_run(counting)
    for folder in _months(archive):
        for path in layout.entries(folder):
            if path.name in records or (part := layout.parse_name(path)) is None:
                continue
            cover = next((each for each in by_run.get(part.run, ()) if layout.supersedes(each, part)), None)
            if cover is not None:
                yield part, cover


def _temporaries(archive: Path) -> Iterator[Path]:
    folders = [archive, archive / layout.RECORDS, *_months(archive)]
    folders += [folder for folder in layout.entries(archive / layout.OPEN) if layout.is_run(folder.name)]
    for folder in folders:
        yield from (path for path in layout.entries(folder) if path.name.endswith(layout.TEMPORARY))
