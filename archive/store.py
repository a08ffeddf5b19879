"""The writing half of the archive: rows of a run become durable, are merged while it is open, and sealed at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from archive import durable, layout, physical
from archive.delete import delete_dead
from archive.layout import GRACE, Part
from schemas import arrow
from schemas.errors import ArchiveError, OwnershipError

FAN_IN = 64
"""Files of open/ that are merged into one."""

_MERGE_BYTES = 64 << 20
"""Files larger than this together are not worth merging."""
_KEEP_BYTES = 1 << 20
"""An append larger than this is read back when it is merged instead of being kept in memory."""
_SEAL_BYTES = 64 << 20
"""Uncompressed bytes that are sorted in memory at once; a larger run is sealed in several ranges."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A file of open/ at the end of the run, that may still be merged."""

    part: Part
    size: int
    rows: pa.Table | None = None


class Writer:
    """The rows of one stint of a run on their way into an archive. One thread at a time; nothing to close.

    ArchiveError: the archive cannot be written (one line says why). OwnershipError: another driver works on the run.
    After either the same call may be repeated, and nothing that was appended before is lost.
    """

    def __init__(self, archive: Path, run: str, stint: int, grace: float = GRACE) -> None:
        layout.month(run)
        self._archive = archive
        self._run = run
        self._grace = grace
        self._marks = {"stint": str(stint), "writer": uuid4().hex}
        self._next = 0
        """The number of the next append; 0 before the archive was looked at."""
        self._tail: list[_Held] = []
        self._looked = self._deleted = 0.0
        """When the run's files were last looked at, and covered ones last deleted, by the store's clock."""

    def append(self, rows: arrow.Rows) -> None:
        """Make rows durable, all of them or none; no rows are no append.

        ValueError for a table or a column that does not exist.
        """
        if not any(rows.values()):
            return
        nested = physical.nest(rows)
        self.merge()
        data = physical.append_bytes(nested, self._marks)
        part = layout.open_part(self._archive, self._run, self._next, self._next, version=arrow.VERSION)
        named_at = self._put(part, data)
        if named_at - self._looked > self._grace / 2:
            self._look(part, named_at)
        self._next += 1
        self._tail.append(_Held(part, len(data), nested if nested.nbytes <= _KEEP_BYTES else None))

    def merge(self) -> None:
        """Merge the last files of open/ where there are many of about the same size; `append` does it by itself.

        Log-structured: each row is written again once per power of `FAN_IN`, so an append costs the same however
        many went before.
        """
        self._open()
        while batch := _alike(self._tail):
            try:
                with self._explained():
                    rows = pa.concat_tables(
                        [physical.read_nested(held.part) if held.rows is None else held.rows for held in batch]
                    )
            except OwnershipError:
                raise
            except ArchiveError:
                self._tail.clear()  # a file that cannot be read is not merged; `seal` and `sweep verify` name it
                return
            data = physical.merged_bytes(rows, self._marks)
            first, last = batch[0].part.first, batch[-1].part.last
            part = layout.open_part(self._archive, self._run, first, last, version=arrow.VERSION)
            named_at = self._put(part, data)
            self._tail[-len(batch) :] = [_Held(part, len(data))]
            if named_at - self._deleted > self._grace / 2:
                delete_dead(self._archive, self._run, self._grace)
                self._deleted = named_at

    def seal(self) -> None:
        """Write all rows of the run sorted, one file per table, the commit record last; then delete what is due.

        May be called again after more appends, or by a later stint: the new files cover the old ones. ArchiveError
        names a corrupt file; what is readable without it stays readable.
        """
        self._open()
        found = layout.live(self._archive, self._run, self._grace)
        with self._explained():
            for group in _groups(found):
                self._seal(group)
        self._tail.clear()
        delete_dead(self._archive, grace=self._grace)

    def _open(self) -> None:
        """Look once at what earlier stints wrote."""
        if self._next:
            return
        with self._explained():
            folder = self._archive / layout.OPEN / self._run
            durable.make_folder(folder)
            durable.sync_folders(folder, self._archive)
            now = durable.now(self._archive)
        parts, _ = layout.covered(layout.scan(self._archive, self._run, self._grace))
        if any(part.tombstone for part in parts):
            raise ArchiveError(f"run {self._run} was forgotten")
        self._tail = [_Held(part, _size(part)) for part in _last_open(parts)]
        self._looked = self._deleted = now
        self._next = 1 + max((part.last for part in parts), default=0)

    def _put(self, part: Part, data: memoryview) -> float:
        """Give bytes a name that must be new; when it got it, by the store's clock."""
        with self._explained():
            durable.put_new(part.path, data)
            return durable.named_at(part.path)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an OSError into one line; names that others took or removed mean another driver."""
        try:
            with durable.explained(self._archive):
                yield
        except ArchiveError as error:
            if isinstance(error.__cause__, FileExistsError | FileNotFoundError):
                raise self._lost() from error
            raise

    def _look(self, part: Part, named_at: float) -> None:
        """Make sure that an append counts that follows the last look by more than half the grace.

        Until then a name that another driver took is still there and refuses ours. Later the other may have covered
        and deleted it: our file would lie inside a covered range, or alone after the run was forgotten.
        """
        found = layout.live(self._archive, self._run, self._grace)
        before = any(each.last == part.first - 1 for each in (*found.open, *found.sealed))
        if part not in found.open or not (before or part.first == 1):
            with self._explained():
                part.path.unlink(missing_ok=True)
            raise self._lost()
        self._looked = named_at

    def _lost(self) -> OwnershipError:
        return OwnershipError(f"run {self._run}: another driver works on it or has forgotten it; this one stops")

    def _seal(self, group: Sequence[Part]) -> None:
        version, generation = group[0].version, max(part.generation for part in group)
        tables: dict[str, list[pa.Table]] = {table: [] for table in arrow.TABLES}
        for part in group:
            for table, rows in physical.read_tables(self._archive, part).items():
                tables[table].append(rows)
        for table in sorted(arrow.TABLES, key=lambda table: table == layout.RECORDS):  # the record last
            data = physical.sealed_bytes(table, tables.pop(table), version)
            part = layout.sealed_part(
                self._archive, table, self._run, group[0].first, group[-1].last, generation=generation, version=version
            )
            if table == layout.RECORDS:
                durable.put_new(part.path, data)
            else:
                durable.put(part.path, data)
            durable.sync_folders(part.path.parent, self._archive)


def _alike(tail: Sequence[_Held]) -> Sequence[_Held]:
    """Pick the last `FAN_IN` files if they hold about equally many appends and are small enough to merge."""
    batch = tail[-FAN_IN:]
    if len(batch) < FAN_IN or len({_level(held.part) for held in batch}) > 1:
        return []
    return batch if sum(held.size for held in batch) <= _MERGE_BYTES else []


def _level(part: Part) -> int:
    level, span = 0, part.last - part.first + 1
    while span >= FAN_IN:
        level, span = level + 1, span // FAN_IN
    return level


def _last_open(parts: Sequence[Part]) -> list[Part]:
    """Pick the files of open/ at the end of a run without a gap, all of today's schema, so that they may be merged."""
    tail: list[Part] = []
    for part in reversed(parts):
        if part.table is not None or part.version != arrow.VERSION or (tail and part.last != tail[-1].first - 1):
            break
        tail.append(part)
    return tail[::-1]


def _groups(found: layout.Live) -> Iterator[list[Part]]:
    """Find what is sealed together: neighbours of one schema version, not too large, not all of them sealed already."""
    group: list[Part] = []
    size = 0
    for part in sorted((*found.sealed, *found.open), key=lambda part: part.first):
        grown = size + _uncompressed(found.archive, part)
        if group and (group[-1].last != part.first - 1 or group[-1].version != part.version or grown > _SEAL_BYTES):
            yield from _unsealed(group)
            group, grown = [], grown - size
        group.append(part)
        size = grown
    yield from _unsealed(group)


def _unsealed(group: list[Part]) -> Iterator[list[Part]]:
    if any(part.table is None for part in group):
        yield group


def _uncompressed(archive: Path, part: Part) -> int:
    total = 0
    for table in arrow.TABLES if part.table is not None else [None]:
        path = part.path if table is None else layout.table_path(archive, table, part)
        with physical.reading(path, table, part.version) as file:
            total += sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    return total


def _size(part: Part) -> int:
    try:
        return part.path.stat().st_size
    except FileNotFoundError:
        return 0
