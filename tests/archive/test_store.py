"""Rows of a run become durable, are merged while it is open, and sealed at its end."""

from __future__ import annotations

import datetime as dt
import errno
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import duckdb
import pyarrow.parquet as pq
import pytest

from archive import durable, layout, physical, store
from archive.store import Writer
from archive.verify import verify
from schemas import arrow
from schemas.errors import ArchiveError, OwnershipError

RowsOf = Callable[..., dict[str, list[dict[str, object]]]]
Numbers = Callable[[Path], list[int]]
Stored = Callable[[Path], dict[str, list[dict[str, object]]]]

WHOLE: dict[str, list[dict[str, object]]] = {
    "runs": [{"run": "r20261203-101112-ab3d", "stint": 1, "tags": ["a", "b"], "versions": {"ray": "2.60", "a": "1"}}],
    "events": [{"kind": "note", "text": "ümlaut \\x00 \\n line", "time": dt.datetime(2026, 1, 1, 0, 0, 0, 7, dt.UTC)}],
    "nodes": [{"node": "n1", "cpus": 0, "nics": [{"name": "eth0", "rate_gbps": 0.4}, {"name": "eth1", "numa": 1}]}],
    "attempts": [
        {
            "attempt_id": UUID(int=1),
            "factors": {"batch": "32x", "env.A": ""},
            "argv": [{"role": "ranks", "node": "n1", "argv": ["a", ""]}],
            "traffic": [{"node": "n1", "nic": "eth0", "tx_bytes": 2**62, "rx_bytes": 0}],
            "elapsed_s": 0.0,
            "final": False,
            "proof": [],
        }
    ],
    "measurements": [
        {"attempt_id": UUID(int=1), "metric": "time", "value": 0.0, "message_size": 0},
        {"attempt_id": UUID(int=1), "metric": "time", "value": float("inf"), "message_size": None},
    ],
    "counters": [{"attempt_id": UUID(int=1), "elapsed": [0.1, 0.2], "delta": [0, 2**40]}],
    "outputs": [{"attempt_id": UUID(int=1), "text": "", "stamps": [], "truncated": True, "size": 0}],
}
"""A row of every table, with the values that encodings like to confuse."""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "new" / "archive"


def named(rows: dict[str, list[dict[str, object]]]) -> dict[str, list[dict[str, object]]]:
    """The values that are there, maps as dicts."""
    maps = {"factors", "versions"}
    return {
        table: [
            {
                key: dict(value) if key in maps and isinstance(value, list) else value
                for key, value in row.items()
                if value is not None
            }
            for row in some
        ]
        for table, some in rows.items()
    }


def given() -> dict[str, list[dict[str, object]]]:
    """`WHOLE` as it comes back: nulls are not there, a struct has all its fields."""
    rows = {table: [{k: v for k, v in row.items() if v is not None} for row in some] for table, some in WHOLE.items()}
    fields = [field.name for field in arrow.schema("nodes").field("nics").type.value_type]
    nics = rows["nodes"][0]["nics"]
    assert isinstance(nics, list)
    rows["nodes"][0]["nics"] = [{field: nic.get(field) for field in fields} for nic in nics]
    return rows


def test_rows_of_all_tables_come_back_from_an_open_run_and_from_a_sealed_one(
    archive: Path, run_id: str, stored: Stored
) -> None:
    writer = Writer(archive, run_id, 1)
    writer.append(WHOLE)
    assert named(stored(archive)) == given()
    assert [part.path.name for part in layout.live(archive).open] == ["1-1.v1.parquet"]
    writer.seal()
    assert named(stored(archive)) == given()
    assert layout.live(archive).open == ()


def test_no_rows_are_no_append(archive: Path, run_id: str) -> None:
    Writer(archive, run_id, 1).append({"events": []})
    assert not archive.exists()


@pytest.mark.parametrize("rows", [{"measurement": [{}]}, {"events": [{"kind": "note", "txt": "misspelt"}]}])
def test_a_misspelt_name_is_refused_before_anything_is_written(
    archive: Path, run_id: str, rows: dict[str, list[dict[str, object]]]
) -> None:
    with pytest.raises(ValueError, match=r"no table measurement|no column txt"):
        Writer(archive, run_id, 1).append(rows)
    assert layout.live(archive) == layout.Live(archive)


def test_what_is_no_run_id_is_refused(archive: Path) -> None:
    with pytest.raises(ValueError, match="is no run id"):
        Writer(archive, "../elsewhere", 1)


def test_the_same_rows_of_the_same_writer_give_the_same_bytes(trial: RowsOf) -> None:
    encoded = [bytes(physical.append_bytes(physical.nest(trial(1)), {"writer": "one"})) for _ in range(2)]
    assert encoded[0] == encoded[1]
    assert encoded[0] != bytes(physical.append_bytes(physical.nest(trial(1)), {"writer": "two"}))


def test_sealed_files_have_the_physical_types_that_readers_count_on(archive: Path, run_id: str, trial: RowsOf) -> None:
    writer = Writer(archive, run_id, 1)
    for number in range(20):
        writer.append(trial(number))
    writer.seal()
    (path,) = layout.live(archive).tables("measurements")
    assert path.parent.name == "month=2026-12"
    file = pq.ParquetFile(path)
    columns = {file.schema.column(i).path: file.schema.column(i) for i in range(len(file.schema))}
    assert str(columns["attempt_id"].logical_type) == "UUID"
    assert columns["nodes"].physical_type == "INT32"
    assert b"ARROW:schema" not in (file.metadata.metadata or {})
    chunks = {chunk.path_in_schema: chunk for chunk in map(file.metadata.row_group(0).column, range(len(columns)))}
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
    assert chunks["run"].has_dictionary_page
    assert chunks["benchmark"].statistics.max == "imb"
    assert "PLAIN" in chunks["value"].encodings
    assert not chunks["value"].has_dictionary_page


def test_sealed_rows_are_sorted_and_any_tool_reads_them_by_glob(archive: Path, run_id: str, trial: RowsOf) -> None:
    writer = Writer(archive, run_id, 1)
    for number in range(20):
        writer.append(trial(number))
    writer.seal()
    with duckdb.connect() as connection:
        for table in arrow.TABLES:
            keys = ", ".join(arrow.SORT[table])
            select = f"SELECT {keys} FROM '{archive}/{table}/**/*.parquet'"
            rows = connection.execute(select).fetchall()
            assert len(rows) == {"measurements": 60, "attempts": 20, "outputs": 20}.get(table, 0)
            assert rows == connection.execute(f"{select} ORDER BY {keys}").fetchall()  # nulls last there, too


def test_a_later_stint_goes_on_where_the_last_one_ended(
    archive: Path, run_id: str, trial: RowsOf, numbers: Numbers
) -> None:
    Writer(archive, run_id, 1).append(trial(1))
    Writer(archive, run_id, 2).append(trial(2))
    later = Writer(archive, run_id, 3)
    later.append(trial(3))
    assert [part.first for part in layout.live(archive).open] == [1, 2, 3]
    later.seal()
    Writer(archive, run_id, 4).append(trial(4))
    assert [part.path.name for part in layout.live(archive).open] == ["4-4.v1.parquet"]
    assert numbers(archive) == [1, 2, 3, 4]


def test_many_appends_are_merged_so_that_a_listing_stays_short(
    archive: Path, run_id: str, trial: RowsOf, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FAN_IN", 4)
    for stint in range(3):  # a later stint merges what earlier ones wrote, too
        writer = Writer(archive, run_id, stint)
        for number in range(stint * 30, stint * 30 + 30):
            writer.append(trial(number))
    spans = [part.last - part.first + 1 for part in layout.live(archive).open]
    assert sum(spans) == 90
    assert len(spans) <= 3 * 4
    assert spans[0] == 64
    assert numbers(archive) == list(range(90))
    assert verify(archive) == []


def test_appends_that_are_large_together_are_not_merged(
    archive: Path, run_id: str, trial: RowsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FAN_IN", 4)
    monkeypatch.setattr(store, "_MERGE_BYTES", 1000)
    writer = Writer(archive, run_id, 1)
    for number in range(9):
        writer.append(trial(number))
    assert len(layout.live(archive).open) == 9


def test_an_append_too_large_to_keep_in_memory_is_merged_from_its_file(
    archive: Path, run_id: str, trial: RowsOf, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FAN_IN", 4)
    monkeypatch.setattr(store, "_KEEP_BYTES", 0)
    writer = Writer(archive, run_id, 1)
    for number in range(9):
        writer.append(trial(number))
    assert [part.last for part in layout.live(archive).open] == [4, 8, 9]
    assert numbers(archive) == list(range(9))


def test_a_run_that_was_sealed_goes_on_and_is_sealed_again_wider(
    archive: Path, run_id: str, trial: RowsOf, numbers: Numbers
) -> None:
    writer = Writer(archive, run_id, 1)
    for number in range(3):
        writer.append(trial(number))
        writer.seal()
        assert numbers(archive) == list(range(number + 1))
    resumed = Writer(archive, run_id, 2)
    resumed.append(trial(3))
    assert numbers(archive) == [0, 1, 2, 3]
    resumed.seal()
    (record,) = layout.live(archive).sealed
    assert (record.first, record.last) == (1, 4)
    assert numbers(archive) == [0, 1, 2, 3]
    assert verify(archive) == []


def test_sealing_twice_changes_nothing(archive: Path, run_id: str, trial: RowsOf, numbers: Numbers) -> None:
    writer = Writer(archive, run_id, 1)
    writer.append(trial(1))
    writer.seal()
    before = {path: path.stat().st_mtime_ns for path in archive.rglob("*.parquet")}
    writer.seal()
    Writer(archive, run_id, 2).seal()
    assert {path: path.stat().st_mtime_ns for path in archive.rglob("*.parquet")} == before
    assert numbers(archive) == [1]


def test_sealing_a_run_without_rows_writes_nothing(archive: Path, run_id: str) -> None:
    Writer(archive, run_id, 1).seal()
    assert list(archive.rglob("*.parquet")) == []


def test_a_large_run_is_sealed_in_several_ranges(
    archive: Path, run_id: str, trial: RowsOf, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(archive, run_id, 1)
    for number in range(10):
        writer.append(trial(number))
    size = store._uncompressed(archive, layout.live(archive).open[0])
    monkeypatch.setattr(store, "_SEAL_BYTES", 4 * size + size // 2)
    writer.seal()
    assert [(part.first, part.last) for part in layout.live(archive).sealed] == [(1, 4), (5, 8), (9, 10)]
    assert numbers(archive) == list(range(10))
    before = layout.live(archive)
    writer.seal()
    assert layout.live(archive) == before
    writer.append(trial(10))
    writer.seal()
    assert numbers(archive) == list(range(11))
    assert verify(archive) == []


def test_a_seal_never_covers_an_append_that_it_did_not_read(
    archive: Path, run_id: str, trial: RowsOf, numbers: Numbers
) -> None:
    writer = Writer(archive, run_id, 1)
    for number in range(3):
        writer.append(trial(number))
    missed = layout.live(archive).open[1].path
    missed.rename(archive / "aside")  # as if a listing had missed it
    Writer(archive, run_id, 2).seal()
    (archive / "aside").rename(missed)
    assert numbers(archive) == [0, 1, 2]


def test_a_seal_that_was_cut_is_done_again(archive: Path, run_id: str, trial: RowsOf, numbers: Numbers) -> None:
    writer = Writer(archive, run_id, 1)
    writer.append(trial(1))
    half = layout.sealed_part(archive, "attempts", run_id, 1, 1, generation=0, version=1).path
    half.parent.mkdir(parents=True)
    half.write_bytes(b"written by another version of a library")
    writer.seal()
    assert numbers(archive) == [1]
    assert verify(archive) == []


def test_a_corrupt_file_is_named_and_keeps_only_its_own_run_from_being_sealed(
    archive: Path, run_id: str, trial: RowsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FAN_IN", 4)
    writer = Writer(archive, run_id, 1)
    for number in range(2):
        writer.append(trial(number))
    path = layout.live(archive).open[0].path
    path.write_bytes(path.read_bytes()[:-100])
    later = Writer(archive, run_id, 2)
    for number in range(2, 9):  # appends go on, and merge what can be read
        later.append(trial(number))
    assert len(layout.live(archive).open) < 9
    with pytest.raises(ArchiveError, match=f"{path} is corrupt"):
        later.seal()
    assert [part.first for part in layout.live(archive).open][:2] == [1, 2]


def test_bytes_may_be_put_twice_but_not_replaced(tmp_path: Path) -> None:
    durable.put_new(tmp_path / "name", memoryview(b"ours"))
    durable.put_new(tmp_path / "name", memoryview(b"ours"))
    with pytest.raises(FileExistsError):
        durable.put_new(tmp_path / "name", memoryview(b"theirs"))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("name", b"ours")]


def test_a_passing_error_of_the_store_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [OSError(errno.ESTALE, "stale"), OSError(errno.EAGAIN, "again")]
    sync = os.fsync

    def stumbling(handle: int) -> None:
        if errors:
            raise errors.pop()
        sync(handle)

    monkeypatch.setattr(os, "fsync", stumbling)
    durable.put_new(tmp_path / "folder" / "name", memoryview(b"ours"))
    assert errors == []
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["name"]


def test_two_writers_on_one_run_do_not_mix(archive: Path, run_id: str, trial: RowsOf, numbers: Numbers) -> None:
    one, two = Writer(archive, run_id, 2), Writer(archive, run_id, 2)
    one.append(trial(1))
    two.append(trial(2))
    with pytest.raises(OwnershipError, match=f"run {run_id}: another driver"):
        one.append(trial(3))
    two.append(trial(4))
    assert numbers(archive) == [1, 2, 4]


RIVAL = """
import sys, uuid
from pathlib import Path
from archive import store
from schemas.errors import OwnershipError
store.FAN_IN = 4
writer = store.Writer(Path(sys.argv[1]), sys.argv[2], 2)
writer.merge()  # looks at the archive
print("ready", flush=True)
sys.stdin.readline()
try:
    for number in range(60):
        attempt = uuid.uuid4()
        writer.append({"attempts": [{"attempt_id": attempt, "outcome": "ok"}]})
        print(attempt.int, flush=True)
except OwnershipError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


def test_of_two_drivers_on_one_run_one_stops_and_no_row_is_lost(archive: Path, run_id: str, stored: Stored) -> None:
    command = [sys.executable, "-c", RIVAL, str(archive), run_id]
    drivers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for driver in drivers:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("go\n")
        driver.stdin.flush()
    said = [driver.communicate(timeout=60)[0].splitlines() for driver in drivers]
    assert sorted(driver.returncode for driver in drivers) == [0, 3]
    acknowledged = sorted(line for lines in said for line in lines if line.isdigit())
    assert [line for lines in said for line in lines if not line.isdigit()] == [
        f"run {run_id}: another driver works on it or has forgotten it; this one stops"
    ]
    ids = [row["attempt_id"] for row in stored(archive)["attempts"]]
    assert sorted(str(each.int) for each in ids if isinstance(each, UUID)) == acknowledged


def test_a_driver_that_slept_through_a_takeover_is_refused(
    archive: Path, run_id: str, trial: RowsOf, numbers: Numbers
) -> None:
    sleeper = Writer(archive, run_id, 1, grace=0.2)
    sleeper.append(trial(1))
    owner = Writer(archive, run_id, 2, grace=0.2)
    for number in range(2, 5):
        owner.append(trial(number))
    owner.seal()
    time.sleep(0.25)
    owner.seal()
    assert list((archive / "open").iterdir()) == []  # the name that the sleeper will take is free again
    with pytest.raises(OwnershipError):
        sleeper.append(trial(5))
    assert numbers(archive) == [1, 2, 3, 4]
    assert list((archive / "open" / run_id).iterdir()) == []


def private_mount(script: str, *arguments: Path | str) -> subprocess.CompletedProcess[str]:
    """Run Python where it may mount: in its own user and mount namespace."""
    command = ["unshare", "-Urm", sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done


FULL = """
import subprocess, sys, uuid
from pathlib import Path
from archive import layout, physical
from archive.store import Writer
from schemas.errors import ArchiveError
archive, run = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", archive], check=True)
ballast = archive / "ballast"
ballast.write_bytes(bytes(1 << 20))
writer, acknowledged, errors = Writer(archive, run, 1), [], 0
def rows(attempt):
    return {"attempts": [{"attempt_id": attempt, "outcome": "ok"}]}
while errors < 3:
    attempt = uuid.uuid4()
    try:
        writer.append(rows(attempt))
        acknowledged.append(attempt)
    except ArchiveError as error:
        errors += 1
        assert str(error) == (
            f"archive {archive}: the disk is full; what was archived is safe: free some space, then resume"
        ), str(error)
        assert not list(archive.rglob("*.tmp"))
        try:
            writer.append(rows(attempt))
            raise AssertionError("still full")
        except ArchiveError:
            pass
        ballast.write_bytes(bytes((3 - errors) * ((1 << 20) // 3)))
        writer.append(rows(attempt))
        acknowledged.append(attempt)
def stored():
    found = layout.live(archive)
    parts = [physical.read_tables(archive, part)["attempts"] for part in (*found.sealed, *found.open)]
    return [each for part in parts for each in part.column("attempt_id").to_pylist()]
assert sorted(stored()) == sorted(acknowledged)
try:
    while True:
        attempt = uuid.uuid4()
        writer.append(rows(attempt))
        acknowledged.append(attempt)
except ArchiveError:
    pass
try:
    writer.seal()
except ArchiveError as error:
    assert "the disk is full" in str(error)
assert sorted(stored()) == sorted(acknowledged)
print(len(acknowledged))
"""


def test_a_full_disk_loses_nothing_and_the_same_append_may_be_repeated(tmp_path: Path, run_id: str) -> None:
    assert int(private_mount(FULL, tmp_path, run_id).stdout) > 64


READ_ONLY = """
import subprocess, sys
from pathlib import Path
from archive.store import Writer
archive = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", archive], check=True)
try:
    Writer(archive, sys.argv[2], 1).append({"events": [{"kind": "note"}]})
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_read_only_archive_is_one_clear_line(tmp_path: Path, run_id: str) -> None:
    said = private_mount(READ_ONLY, tmp_path, run_id).stdout
    assert said == f"ArchiveError archive {tmp_path}: is on a read-only file system; name another with --archive\n"


DENIED = """
import os, sys
from pathlib import Path
from archive.store import Writer
rows = {"events": [{"kind": "note"}]}
os.chdir(sys.argv[1])
Writer(Path("warm"), sys.argv[2], 1).append(rows)  # every module is loaded now
Path("archive").mkdir(mode=0o555)
if os.geteuid() == 0:
    os.setuid(65534)  # permissions do not bind root
try:
    Writer(Path("archive"), sys.argv[2], 1).append(rows)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_folder_that_this_user_may_not_write_is_one_clear_line(tmp_path: Path, run_id: str) -> None:
    command = [sys.executable, "-c", DENIED, str(tmp_path), run_id]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("ArchiveError archive archive: archive")
    assert "may not be written by this user; change its permissions" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("below", ["", "below", "below/that"])
def test_an_archive_path_that_is_a_file_is_one_clear_line(tmp_path: Path, run_id: str, below: str) -> None:
    (tmp_path / "file").write_text("a user's file")
    archive = tmp_path / "file" / below
    with pytest.raises(ArchiveError) as caught:
        Writer(archive, run_id, 1).append({"events": [{"kind": "note"}]})
    assert str(caught.value) == f"archive {archive}: {tmp_path / 'file'} is no folder; name another with --archive"
    assert (tmp_path / "file").read_text() == "a user's file"


def test_a_file_system_without_hard_links_is_one_clear_line(
    archive: Path, run_id: str, trial: RowsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(ArchiveError, match="its file system has no hard links"):
        Writer(archive, run_id, 1).append(trial(1))
    assert list(archive.rglob("*.tmp")) == []
