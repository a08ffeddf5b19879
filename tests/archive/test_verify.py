"""Every fault of an archive is named, file by file."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archive import layout
from archive.delete import delete_dead
from archive.store import Writer
from archive.verify import verify
from schemas import arrow

RowsOf = Callable[..., dict[str, list[dict[str, object]]]]

OTHER = "r20270101-000000-zz77"


@pytest.fixture
def archive(tmp_path: Path, run_id: str, trial: RowsOf) -> Path:
    """A sealed run of four attempts and an open one of three."""
    writer = Writer(tmp_path, run_id, 1)
    for number in range(4):
        writer.append(trial(number))
    writer.seal()
    delete_dead(tmp_path, grace=0.01)
    other = Writer(tmp_path, OTHER, 1)
    for number in range(10, 13):
        other.append(trial(number, OTHER))
    return tmp_path


def counting(archive: Path) -> list[Path]:
    found = layout.live(archive)
    return [part.path for part in found.open] + [path for table in arrow.TABLES for path in found.tables(table)]


def only(archive: Path) -> tuple[str, str]:
    (problem,) = verify(archive)
    return problem.where, problem.what


def test_a_sound_archive_has_no_faults_whether_or_not_something_awaits_deletion(archive: Path, trial: RowsOf) -> None:
    assert verify(archive) == []
    writer = Writer(archive, OTHER, 2)
    writer.append(trial(13, OTHER))
    writer.seal()
    assert verify(archive) == []


def test_an_archive_that_does_not_exist_has_no_faults(tmp_path: Path) -> None:
    assert verify(tmp_path / "none") == []


@pytest.mark.parametrize("seed", range(40))
def test_any_flipped_bit_anywhere_in_a_file_that_counts_is_found_and_the_file_named(archive: Path, seed: int) -> None:
    dice = random.Random(seed)
    path = dice.choice(counting(archive))
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    where, what = only(archive)
    assert where == str(path)
    assert what.startswith("is corrupt: ")
    assert "\n" not in what


@pytest.mark.parametrize("size", [0, 3, 8, 40, -1, -4, -100])
def test_a_cut_file_is_named(archive: Path, size: int) -> None:
    for path in counting(archive):
        whole = path.read_bytes()
        path.write_bytes(whole[:size])
        assert only(archive) == (str(path), "is corrupt: its digest does not fit its bytes")
        path.write_bytes(whole)


def test_a_missing_file_under_a_standing_record_is_named(archive: Path) -> None:
    (path,) = layout.live(archive).tables("outputs")
    path.unlink()
    assert only(archive) == (str(path), "is missing, though its commit record stands")


def test_a_file_of_another_table_is_no_match(archive: Path) -> None:
    (path,) = layout.live(archive).tables("events")
    shutil.copy(layout.live(archive).tables("counters")[0], path)
    assert only(archive) == (str(path), "is corrupt: it does not have version 1 of the schema of events")


def test_a_file_that_somebody_rewrote_is_named(archive: Path) -> None:
    (path,) = layout.live(archive).tables("measurements")
    pq.write_table(pq.ParquetFile(path).read(), path, store_schema=False)
    assert only(archive) == (str(path), "is corrupt: its digest does not fit its bytes")


def test_appends_that_were_taken_out_are_missed(archive: Path) -> None:
    layout.live(archive).open[1].path.unlink()
    assert only(archive) == (f"run {OTHER}", "appends 2 to 2 are missing")


def test_ranges_that_overlap_are_named_with_their_attempts(archive: Path, run_id: str) -> None:
    parts = layout.live(archive).open
    wide = layout.open_part(archive, OTHER, 3, 4, version=1).path
    again = layout.open_part(archive, OTHER, 2, 3, version=1).path
    shutil.copy(parts[2].path, wide)
    shutil.copy(parts[1].path, again)
    found = {problem.where: problem.what for problem in verify(archive)}
    assert found[str(wide)] == f"holds appends 3 to 3 of run {OTHER}, which {again} holds too"


def test_an_attempt_that_is_there_twice_is_named_with_its_files(archive: Path, trial: RowsOf) -> None:
    Writer(archive, OTHER, 2).append({"attempts": trial(11, OTHER)["attempts"]})
    where, what = only(archive)
    assert where == "attempt 00000000-0000-0000-0000-00000000000b"
    assert what.startswith("is there more than once: in ")
    assert f"{OTHER}/2-2.v1.parquet" in what
    assert f"{OTHER}/4-4.v1.parquet" in what


def test_many_doubled_attempts_do_not_flood(archive: Path, trial: RowsOf) -> None:
    writer = Writer(archive, OTHER, 2)
    for _ in range(2):
        writer.append({"attempts": [row for number in range(100, 150) for row in trial(number, OTHER)["attempts"]]})
    found = verify(archive)
    assert len(found) == 21
    assert str(found[-1]) == "30 more attempts are there more than once"


@pytest.mark.parametrize("table", ["measurements", "outputs", "counters"])
def test_rows_without_their_attempt_are_named(archive: Path, trial: RowsOf, table: str) -> None:
    rows = {**trial(50, OTHER), "counters": [{"attempt_id": trial(50)["attempts"][0]["attempt_id"]}]}
    Writer(archive, OTHER, 2).append({table: rows[table]})
    assert only(archive) == (
        str(archive / f"open/{OTHER}/4-4.v1.parquet"),
        f"has {table} of 1 attempts that run {OTHER} does not have",
    )


def test_rows_are_not_called_strangers_because_their_attempts_are_unreadable(archive: Path) -> None:
    (path,) = layout.live(archive).tables("attempts")
    path.write_bytes(b"")
    assert only(archive)[0] == str(path)


def test_a_table_file_without_a_record_is_named(archive: Path, run_id: str) -> None:
    record = layout.live(archive).sealed[0]
    orphan = layout.sealed_part(archive, "attempts", run_id, 5, 6, generation=0, version=1).path
    shutil.copy(layout.table_path(archive, "attempts", record), orphan)
    where, what = only(archive)
    assert (where, what.split(":")[0]) == (str(orphan), "has no commit record")


@pytest.mark.parametrize("name", ["measurements/other.parquet", "runs/mine.parquet", "open/x/1-1.v1.parquet"])
def test_parquet_that_is_not_ours_is_named(archive: Path, name: str) -> None:
    path = archive / name
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"a": [1]}), path)
    assert only(archive) == (str(path), "is no file of this archive")


def test_what_is_sealed_and_deleted_meanwhile_is_no_fault(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seal_first(found: layout.Live, live: Callable[..., layout.Live] = layout.live) -> layout.Live:
        monkeypatch.setattr(layout, "live", live)
        Writer(archive, OTHER, 2).seal()
        time.sleep(0.02)
        delete_dead(archive, grace=0.01)
        return found

    first = layout.live(archive)
    monkeypatch.setattr(layout, "live", lambda *_: seal_first(first))
    assert verify(archive) == []
    assert len(layout.live(archive).sealed) == 2
