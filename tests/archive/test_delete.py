"""Late deletion: what others have covered for a while goes away, entries before their files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from archive import delete, durable, layout
from archive.delete import Deleted, awaiting_deletion, delete_dead, forget
from archive.store import Writer
from archive.verify import verify
from schemas import arrow
from schemas.errors import ArchiveError, InputError, OwnershipError

RowsOf = Callable[..., dict[str, list[dict[str, object]]]]
Numbers = Callable[[Path], list[int]]

GRACE = 0.3
AGED = GRACE + 0.05  # kernels stamp files with a coarse clock
OTHER = "r20270101-000000-zz77"


@pytest.fixture
def archive(tmp_path: Path, run_id: str, trial: RowsOf) -> Path:
    """A run that was sealed, resumed and sealed again just now, and another that is open."""
    writer = Writer(tmp_path, run_id, 1)
    for number in range(3):
        writer.append(trial(number))
    writer.seal()
    writer.append(trial(3))
    writer.seal()
    Writer(tmp_path, OTHER, 1).append(trial(10, OTHER))
    return tmp_path


def files(archive: Path) -> list[str]:
    return sorted(path.relative_to(archive).as_posix() for path in archive.rglob("*") if path.is_file())


def test_nothing_is_deleted_before_its_cover_is_old_enough(archive: Path, numbers: Numbers) -> None:
    before = files(archive)
    assert delete_dead(archive) == Deleted(0, waiting=5)
    assert files(archive) == before
    assert numbers(archive) == [0, 1, 2, 3, 10]


def test_what_was_covered_for_a_while_goes_and_nothing_else(archive: Path, run_id: str, numbers: Numbers) -> None:
    assert len(awaiting_deletion(archive)) == 4 + len(arrow.TABLES)
    time.sleep(AGED)
    assert delete_dead(archive, grace=GRACE) == Deleted(4 + len(arrow.TABLES), waiting=0)
    record = f"{run_id}.1-4.g0.v1.parquet"
    tables = [f"{table}/month=2026-12/{record}" for table in arrow.TABLES if table != "runs"]
    assert files(archive) == sorted([*tables, f"runs/{record}", f"open/{OTHER}/1-1.v1.parquet"])
    assert not (archive / "open" / run_id).exists()
    assert numbers(archive) == [0, 1, 2, 3, 10]
    assert awaiting_deletion(archive) == ()
    assert delete_dead(archive, grace=GRACE) == Deleted(0, waiting=0)


def test_deletion_of_one_run_leaves_the_others_alone(archive: Path) -> None:
    before = files(archive)
    time.sleep(AGED)
    assert delete_dead(archive, OTHER, GRACE) == Deleted(0, waiting=0)
    assert files(archive) == before


def test_the_age_of_a_cover_is_that_of_its_name_not_of_its_bytes(archive: Path, run_id: str) -> None:
    record = archive / "runs" / f"{run_id}.1-4.g0.v1.parquet"
    os.utime(record, (0, 0))  # as if the writer had slept for decades between writing and linking
    assert delete_dead(archive, run_id) == Deleted(0, waiting=5)


def test_files_of_tables_whose_record_went_first_are_found_again(
    archive: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(AGED)
    with monkeypatch.context() as patch:
        patch.setattr(delete, "_tables", lambda _: [])  # as if killed after the entries
        assert delete_dead(archive, run_id, GRACE).files == 5
    narrow = f"{run_id}.1-3.g0.v1.parquet"
    assert {path.name for path in awaiting_deletion(archive)} == {narrow}
    assert delete_dead(archive, grace=GRACE).files == len(arrow.TABLES) - 1
    assert awaiting_deletion(archive) == ()
    assert verify(archive) == []


def test_files_of_a_seal_under_way_are_left_alone(archive: Path) -> None:
    path = layout.sealed_part(archive, "attempts", OTHER, 1, 1, generation=0, version=1).path
    path.parent.mkdir()
    path.write_bytes(b"half")
    time.sleep(AGED)
    delete_dead(archive, grace=GRACE)
    assert path.exists()


def test_temporaries_of_dead_writers_go_and_those_of_others_stay(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = archive / "runs" / ".0123.tmp"
    temporary.touch()
    assert temporary in awaiting_deletion(archive)
    delete_dead(archive, grace=GRACE)
    assert temporary.exists()
    monkeypatch.setattr(durable, "now", lambda _: time.time() + 3600)
    delete_dead(archive)
    assert not temporary.exists()


def test_a_file_that_belongs_to_another_user_waits_for_its_owner(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(AGED)

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert delete_dead(archive, grace=GRACE) == Deleted(0, waiting=4 + len(arrow.TABLES))
    assert delete_dead(archive, grace=GRACE).files == 4 + len(arrow.TABLES)


def test_an_archive_that_does_not_exist_has_nothing_to_delete(tmp_path: Path) -> None:
    assert delete_dead(tmp_path / "none") == Deleted(0, waiting=0)
    assert not (tmp_path / "none").exists()


def test_a_forgotten_run_is_gone_at_once_its_files_later_the_tombstone_last(
    archive: Path, run_id: str, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(archive, run_id)
    assert numbers(archive) == [10]
    forget(archive, run_id)
    time.sleep(AGED)
    for _ in range(2):
        delete_dead(archive, grace=GRACE)
        assert files(archive) == [f"open/{OTHER}/1-1.v1.parquet", f"runs/{run_id}.forgotten"]
    monkeypatch.setattr(durable, "now", lambda _: time.time() + 3600)
    delete_dead(archive)
    assert files(archive) == [f"open/{OTHER}/1-1.v1.parquet"]
    with pytest.raises(InputError, match=f"run {run_id}: is not in the archive"):
        forget(archive, run_id)


@pytest.mark.parametrize("run", ["r20200101-000000-aaaa", "../..", ""])
def test_forgetting_what_is_not_there_is_refused(archive: Path, run: str) -> None:
    with pytest.raises(InputError, match="is not in the archive"):
        forget(archive, run)


def test_a_new_stint_of_a_forgotten_run_is_refused(archive: Path, run_id: str, trial: RowsOf) -> None:
    forget(archive, run_id)
    with pytest.raises(ArchiveError, match=f"run {run_id} was forgotten"):
        Writer(archive, run_id, 3).append(trial(4))


@pytest.mark.parametrize("swept", [False, True])
def test_a_driver_whose_run_is_forgotten_under_it_stops(
    archive: Path, run_id: str, trial: RowsOf, numbers: Numbers, monkeypatch: pytest.MonkeyPatch, swept: bool
) -> None:
    driver = Writer(archive, run_id, 3, grace=GRACE)
    driver.append(trial(4))
    forget(archive, run_id)
    time.sleep(AGED)
    if swept:
        with monkeypatch.context() as patch:
            patch.setattr(durable, "now", lambda _: time.time() + 3600)
            delete_dead(archive)
            delete_dead(archive)
        assert files(archive) == [f"open/{OTHER}/1-1.v1.parquet"]
    with pytest.raises(OwnershipError):
        driver.append(trial(5))
    assert numbers(archive) == [10]


def test_a_writer_deletes_what_it_merged_while_it_goes_on(
    tmp_path: Path, run_id: str, trial: RowsOf, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archive.store.FAN_IN", 4)
    writer = Writer(tmp_path, run_id, 1, grace=0.05)
    for number in range(60):
        writer.append(trial(number))
    time.sleep(0.05)
    for number in range(60, 69):
        writer.append(trial(number))
    assert len(files(tmp_path)) < 30
    assert numbers(tmp_path) == list(range(69))


def test_the_store_tells_the_time_even_of_a_folder_that_is_old(tmp_path: Path) -> None:
    os.utime(tmp_path, (0, 0))
    assert abs(durable.now(tmp_path) - time.time()) < 60
