"""Names in the archive, which of them count, and the one listing that finds them. Pure but for `live` and `scan`.

    open/<run>/<first>-<last>.v<schema>.parquet                                    rows of all tables, nested
    <table>/month=YYYY-MM/<run>.<first>-<last>.g<generation>.v<schema>.parquet     sealed rows of one table
    runs/<run>.<first>-<last>.g<generation>.v<schema>.parquet                      the `runs` table: commit records
    runs/<run>.forgotten                                                           a tombstone: covers the whole run

`<first>-<last>` counts appends of the run from 1. The month is that of the run's first start, which its id tells
(`r<YYYYMMDD>-<HHMMSS>-<4 characters of base32>`, UTC), so that a record's name implies the files of all its tables.
Nothing else is read by `live`; what has another name (temporaries are hidden and end in `.tmp`) does not count.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from schemas.errors import ArchiveError

GRACE = 60.0
"""Seconds for which a file that covers another must have had its name before the other may be deleted."""

OPEN = "open"
RECORDS = "runs"
SUFFIX = ".parquet"
TEMPORARY = ".tmp"

_RUN = r"r[0-9]{4}(?:0[1-9]|1[0-2])[0-9]{2}-[0-9]{6}-[0-9a-z]{4}"
_RANGE = r"(?P<first>[1-9][0-9]{0,17})-(?P<last>[1-9][0-9]{0,17})"
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_RUN_ID = re.compile(_RUN)
_OPEN_NAME = re.compile(rf"{_RANGE}\.v(?P<version>{_NUMBER})\.parquet")
_SEALED_NAME = re.compile(rf"(?P<run>{_RUN})\.{_RANGE}\.g(?P<generation>{_NUMBER})\.v(?P<version>{_NUMBER})\.parquet")
_TOMBSTONE_NAME = re.compile(rf"(?P<run>{_RUN})\.forgotten")
_TABLE = re.compile(r"[a-z]+")

_EVERYTHING = 10**18
_LAST_GENERATION = 10**9
_LISTINGS = 5


@dataclass(frozen=True, slots=True)
class Part:
    """One file: rows that appends `first` to `last` of a run brought, in one table or, in open/, in all of them."""

    path: Path
    table: str | None
    """None for a file in open/, which holds all tables nested."""
    run: str
    first: int
    last: int
    generation: int
    """0 for what a run wrote; a reparse or a compaction of the same rows is higher."""
    version: int
    """Of the schema, as `schemas.arrow` counts them."""

    @property
    def tombstone(self) -> bool:
        """Whether this says that the run is forgotten: it has no rows and covers everything."""
        return self.last == _EVERYTHING


@dataclass(frozen=True, slots=True)
class Live:
    """What counts in an archive at one moment."""

    archive: Path
    open: tuple[Part, ...] = ()
    """Files in open/ whose rows are in no sealed file yet, by run and range."""
    sealed: tuple[Part, ...] = ()
    """The commit records in runs/, by run and range; each stands for one file of every table."""
    dead: tuple[Part, ...] = ()
    """Files in runs/ and open/ that others cover: never read, they await deletion."""

    def tables(self, table: str) -> tuple[Path, ...]:
        """Name the sealed files of a table, one per record, by implication from the records' names."""
        return tuple(table_path(self.archive, table, record) for record in self.sealed)


def is_run(text: str) -> bool:
    """Tell whether a text has the form of a run id."""
    return _RUN_ID.fullmatch(text) is not None


def month(run: str) -> str:
    """Tell the month folder's value for a run, "2026-12". ValueError for what is no run id."""
    if not is_run(run):
        raise ValueError(f"{run!r} is no run id (r<YYYYMMDD>-<HHMMSS>-<4 characters>)")
    return f"{run[1:5]}-{run[5:7]}"


def open_part(archive: Path, run: str, first: int, last: int, *, version: int) -> Part:
    """Name the file in open/ that holds appends `first` to `last` of a run. ValueError for what cannot be a name."""
    return _checked(
        Part(archive / OPEN / run / f"{first}-{last}.v{version}{SUFFIX}", None, run, first, last, 0, version)
    )


def sealed_part(archive: Path, table: str, run: str, first: int, last: int, *, generation: int, version: int) -> Part:
    """Name the sealed file of a table; of "runs", the commit record. ValueError for what cannot be a name."""
    name = f"{run}.{first}-{last}.g{generation}.v{version}{SUFFIX}"
    path = _folder(archive, table, run) / name
    return _checked(Part(path, table, run, first, last, generation, version))


def tombstone(archive: Path, run: str) -> Part:
    """Name the record that covers everything of a run. ValueError for what is no run id."""
    path = archive / RECORDS / f"{run}.forgotten"
    return _checked(Part(path, RECORDS, run, 0, _EVERYTHING, _LAST_GENERATION, 0))


def table_path(archive: Path, table: str, record: Part) -> Path:
    """Name the file of a table that a commit record implies."""
    return _folder(archive, table, record.run) / record.path.name


def parse_name(path: Path) -> Part | None:
    """Undo `open_part`, `sealed_part` and `tombstone`, from the last parts of a path.

    None for any other name: it takes no part in the archive.
    """
    folder = path.parent.name
    if path.parent.parent.name == OPEN and is_run(folder):
        return _parse_open(path, folder, path.name)
    if folder == RECORDS:
        return _parse_sealed(path, RECORDS, path.name)
    table = path.parent.parent.name
    if folder.startswith("month=") and table not in {OPEN, RECORDS} and _TABLE.fullmatch(table):
        part = _parse_sealed(path, table, path.name)
        return part if part and not part.tombstone and folder == f"month={month(part.run)}" else None
    return None


def supersedes(cover: Part, part: Part) -> bool:
    """Tell whether `cover` makes `part` superfluous: same run, range inside its own, generation not higher.

    Of two with the same range and generation the sealed one wins, then the newer schema. A strict partial order.
    """
    return (
        cover.run == part.run
        and cover.first <= part.first
        and part.last <= cover.last
        and part.generation <= cover.generation
        and _rank(cover) > _rank(part)
    )


def covered(parts: Iterable[Part]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Separate the parts that count from those that another supersedes, each by run and range; tombstones count.

    Takes files of open/ and records of runs/ (or the files of one table): never two tables at once.
    """
    pairs = covers(parts)
    return tuple(part for part, cover in pairs if cover is None), tuple(part for part, cover in pairs if cover)


def covers(parts: Iterable[Part]) -> list[tuple[Part, Part | None]]:
    """Pair each part with one that counts and supersedes it, or with None if it counts itself; by run and range."""
    pairs: list[tuple[Part, Part | None]] = []
    for _, group in groupby(sorted(parts, key=_covers_first), key=lambda part: part.run):
        reaching: list[Part] = []
        for part in group:
            reaching = [other for other in reaching if other.last >= part.first]
            cover = next((other for other in reaching if supersedes(other, part)), None)
            pairs.append((part, cover))
            if cover is None:
                reaching.append(part)
    return pairs


def by_run(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """Group parts by run, each group by range."""
    ordered = sorted(parts, key=_covers_first)
    return {run: list(group) for run, group in groupby(ordered, key=lambda part: part.run)}


def live(archive: Path, run: str | None = None, grace: float = GRACE) -> Live:
    """Find what counts in an archive, or of one run, by one listing of runs/ and open/ within half the grace.

    A folder that does not exist holds nothing. ArchiveError where it cannot be listed, or not in time.
    """
    found, dead = covered(scan(archive, run, grace))
    found = tuple(part for part in found if not part.tombstone)
    return Live(
        archive,
        open=tuple(part for part in found if part.table is None),
        sealed=tuple(part for part in found if part.table is not None),
        dead=dead,
    )


def scan(archive: Path, run: str | None = None, grace: float = GRACE) -> list[Part]:
    """Find every file of open/ and record of runs/, dead ones and tombstones too, by one timely listing."""
    for _ in range(_LISTINGS):
        start = time.monotonic()
        try:
            parts = [*_open_parts(archive, run), *_record_parts(archive, run)]
        except OSError as error:
            raise ArchiveError(f"archive {archive} cannot be listed: {error.strerror}") from error
        if time.monotonic() - start < grace / 2:
            return parts
    raise ArchiveError(f"archive {archive}: listing it took over {grace / 2:g} s each of {_LISTINGS} times")


def entries(folder: Path) -> list[Path]:
    """List a folder, in no order; nothing where there is no such folder. NotADirectoryError for a file."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def is_readable(path: Path) -> bool:
    """Tell whether a file looks like whole Parquet: magic bytes at both ends and a footer that fits between them.

    Cheap, and no proof (`sweep verify` reads every page). OSError where it cannot be opened; FileNotFoundError
    of a file that was just listed means: list again.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            return False
        size = file.seek(0, os.SEEK_END)
        if size < 12:
            return False
        file.seek(size - 8)
        tail = file.read(8)
    return tail[4:] == b"PAR1" and 0 < int.from_bytes(tail[:4], "little") <= size - 12


def _open_parts(archive: Path, run: str | None) -> Iterator[Part]:
    top = archive / OPEN
    for folder in entries(top) if run is None else [top / run]:
        name = folder.name
        if not is_run(name):
            continue
        try:
            found = entries(folder)
        except NotADirectoryError:
            continue
        yield from _parts(_parse_open(path, name, path.name) for path in found)


def _record_parts(archive: Path, run: str | None) -> Iterator[Part]:
    prefix = "" if run is None else f"{run}."
    found = (path for path in entries(archive / RECORDS) if path.name.startswith(prefix))
    yield from _parts(_parse_sealed(path, RECORDS, path.name) for path in found)


def _parts(parsed: Iterable[Part | None]) -> Iterator[Part]:
    return (part for part in parsed if part is not None)


def _parse_open(path: Path, run: str, name: str) -> Part | None:
    match = _OPEN_NAME.fullmatch(name)
    if match is None:
        return None
    first, last = int(match["first"]), int(match["last"])
    return Part(path, None, run, first, last, 0, int(match["version"])) if first <= last else None


def _parse_sealed(path: Path, table: str, name: str) -> Part | None:
    match = _SEALED_NAME.fullmatch(name)
    if match is None:
        buried = _TOMBSTONE_NAME.fullmatch(name)
        return Part(path, table, buried["run"], 0, _EVERYTHING, _LAST_GENERATION, 0) if buried else None
    first, last = int(match["first"]), int(match["last"])
    generation, version = int(match["generation"]), int(match["version"])
    return Part(path, table, match["run"], first, last, generation, version) if first <= last else None


def _checked(part: Part) -> Part:
    if parse_name(part.path) != part:
        raise ValueError(f"{part.path} cannot be the name of a file in an archive")
    return part


def _folder(archive: Path, table: str, run: str) -> Path:
    return archive / RECORDS if table == RECORDS else _month_folder(archive, table, month(run))


@lru_cache(maxsize=1024)
def _month_folder(archive: Path, table: str, month: str) -> Path:
    return archive / table / f"month={month}"


def _rank(part: Part) -> tuple[int, int, bool, int]:
    return part.generation, part.last - part.first, part.table is not None, part.version


def _covers_first(part: Part) -> tuple[str, int, int, int, bool, int]:
    return part.run, part.first, -part.last, -part.generation, part.table is None, -part.version
