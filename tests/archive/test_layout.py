"""Names in the archive, the cover rule, and the one listing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive import layout
from archive.layout import Part
from schemas.errors import ArchiveError

RUN = "r20261203-101112-ab3d"
OTHER = "r20270101-000000-zz77"
HERE = Path("/somewhere/archive")

runs = st.builds(
    "r{:04}{:02}{:02}-{:06}-{}".format,
    st.integers(2000, 2999),
    st.integers(1, 12),
    st.integers(1, 31),
    st.integers(0, 235959),
    st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=4, max_size=4),
)
ranges = st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)).map(lambda pair: (pair[0], pair[0] + pair[1]))
tables = st.sampled_from(["runs", "events", "nodes", "attempts", "measurements", "counters", "outputs"])


@st.composite
def small_parts(draw: st.DrawFn) -> Part:
    """Files of two runs in few short ranges, so that many cover each other."""
    run, first = draw(st.sampled_from([RUN, OTHER])), draw(st.integers(1, 6))
    last, version = draw(st.integers(first, 8)), draw(st.integers(1, 2))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return layout.tombstone(HERE, run)
    if kind < 5:
        return layout.open_part(HERE, run, first, last, version=version)
    generation = draw(st.integers(0, 2))
    return layout.sealed_part(HERE, "runs", run, first, last, generation=generation, version=version)


@given(runs, ranges, st.integers(0, 10**6))
def test_the_name_of_an_open_file_reads_back(run: str, span: tuple[int, int], version: int) -> None:
    part = layout.open_part(HERE, run, *span, version=version)
    assert layout.parse_name(part.path) == part
    assert part.table is None
    assert not part.tombstone


@given(tables, runs, ranges, st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_name_of_a_sealed_file_reads_back(
    table: str, run: str, span: tuple[int, int], generation: int, version: int
) -> None:
    part = layout.sealed_part(HERE, table, run, *span, generation=generation, version=version)
    record = layout.sealed_part(HERE, "runs", run, *span, generation=generation, version=version)
    assert layout.parse_name(part.path) == part
    assert layout.table_path(HERE, table, record) == part.path


@given(runs)
def test_a_tombstone_reads_back_and_covers_every_file_of_its_run(run: str) -> None:
    stone = layout.tombstone(HERE, run)
    assert layout.parse_name(stone.path) == stone
    assert layout.supersedes(stone, layout.sealed_part(HERE, "runs", run, 1, 10**17, generation=10**8, version=9))


def rebuilt(part: Part) -> Part:
    archive = part.path.parents[1 if part.table == "runs" else 2]
    if part.tombstone:
        return layout.tombstone(archive, part.run)
    if part.table is None:
        return layout.open_part(archive, part.run, part.first, part.last, version=part.version)
    generation, version = part.generation, part.version
    return layout.sealed_part(
        archive, part.table, part.run, part.first, part.last, generation=generation, version=version
    )


@given(small_parts(), st.data())
def test_a_name_with_a_slip_is_none_or_another_name(part: Part, data: st.DataObject) -> None:
    name = part.path.relative_to(HERE).as_posix()
    at = data.draw(st.integers(0, len(name)))
    slip = data.draw(st.text("0123456789-.gvpr/\n ", max_size=2))
    path = HERE / (name[:at] + slip + name[at + data.draw(st.integers(0, 2)) :]).lstrip("/")
    read = layout.parse_name(path)
    assert read is None or rebuilt(read) == read


@pytest.mark.parametrize(
    "name",
    [
        f"open/{RUN}/2-1.v1.parquet",
        f"open/{RUN}/01-2.v1.parquet",
        f"open/{RUN}/.1-2.v1.parquet.tmp",
        f"open/{RUN}/1-2.parquet",
        "open/elsewhere/1-2.v1.parquet",
        f"runs/{RUN}.0-2.g0.v1.parquet",
        f"measurements/month=2026-11/{RUN}.1-2.g0.v1.parquet",
        f"measurements/{RUN}.1-2.g0.v1.parquet",
        f"runs/month=2026-12/{RUN}.1-2.g0.v1.parquet",
        f"measurements/month=2026-12/{RUN}.forgotten",
        "runs/r20261303-101112-ab3d.1-2.g0.v1.parquet",
    ],
)
def test_what_is_nearly_a_name_is_none(name: str) -> None:
    assert layout.parse_name(HERE / name) is None


@pytest.mark.parametrize("run", ["", "nightly", "r2026-1", "../../etc", "r20261203-101112-AB3D"])
def test_a_name_is_refused_for_what_is_no_run_id(run: str) -> None:
    with pytest.raises(ValueError, match=r"no run id|cannot be the name"):
        layout.sealed_part(HERE, "runs", run, 1, 1, generation=0, version=1)
    with pytest.raises(ValueError, match=r"no run id|cannot be the name"):
        layout.open_part(HERE, run, 1, 1, version=1)


@given(st.lists(small_parts(), max_size=12))
def test_what_counts_is_exactly_what_nothing_supersedes(parts: list[Part]) -> None:
    live, dead = layout.covered(parts)
    assert sorted([*live, *dead], key=repr) == sorted(parts, key=repr)
    for part in parts:
        assert (part in live) == (not any(layout.supersedes(other, part) for other in parts))


@given(st.lists(small_parts(), max_size=12))
def test_each_covered_file_has_a_cover_that_counts(parts: list[Part]) -> None:
    live, _ = layout.covered(parts)
    for part, cover in layout.covers(parts):
        assert (cover is None) == (part in live)
        assert cover is None or (cover in live and layout.supersedes(cover, part))


@given(st.lists(small_parts(), max_size=8).flatmap(lambda parts: st.tuples(st.just(parts), st.permutations(parts))))
def test_the_order_of_a_listing_does_not_matter(both: tuple[list[Part], list[Part]]) -> None:
    assert layout.covered(both[0]) == layout.covered(both[1])


@given(small_parts(), small_parts(), small_parts())
def test_superseding_is_a_strict_partial_order(one: Part, two: Part, three: Part) -> None:
    assert not layout.supersedes(one, one)
    if layout.supersedes(one, two) and layout.supersedes(two, three):
        assert layout.supersedes(one, three)


def test_a_reparsed_range_is_not_covered_by_a_wider_one_of_an_older_generation() -> None:
    reparsed = layout.sealed_part(HERE, "runs", RUN, 2, 3, generation=1, version=1)
    wider = layout.sealed_part(HERE, "runs", RUN, 1, 9, generation=0, version=1)
    assert not layout.supersedes(wider, reparsed)


def test_a_missing_archive_holds_nothing(tmp_path: Path) -> None:
    assert layout.live(tmp_path / "none") == layout.Live(tmp_path / "none")


def test_a_file_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ArchiveError, match="cannot be listed: Not a directory"):
        layout.live(tmp_path / "file")


def lay(*parts: Part) -> None:
    for part in parts:
        part.path.parent.mkdir(parents=True, exist_ok=True)
        part.path.touch()


def test_one_listing_finds_what_counts_and_implies_the_tables_files(tmp_path: Path) -> None:
    record = layout.sealed_part(tmp_path, "runs", RUN, 1, 4, generation=0, version=1)
    still = [layout.open_part(tmp_path, RUN, 5, 5, version=1), layout.open_part(tmp_path, OTHER, 1, 2, version=1)]
    gone = [layout.open_part(tmp_path, RUN, 1, 4, version=1), layout.open_part(tmp_path, OTHER, 2, 2, version=1)]
    lay(record, *still, *gone)
    (tmp_path / "open" / RUN / ".half.tmp").touch()
    (tmp_path / "open" / "a note").touch()
    (tmp_path / "open" / OTHER.replace("-zz77", "-file")).touch()
    found = layout.live(tmp_path)
    assert (found.sealed, found.open, set(found.dead)) == ((record,), tuple(still), set(gone))
    assert found.tables("runs") == (record.path,)
    assert found.tables("outputs") == (tmp_path / "outputs/month=2026-12" / record.path.name,)
    assert layout.live(tmp_path, OTHER).open == (still[1],)
    assert layout.live(tmp_path, OTHER).sealed == ()
    assert layout.live(tmp_path, "../runs") == layout.Live(tmp_path)


def test_a_forgotten_run_does_not_count(tmp_path: Path) -> None:
    lay(layout.sealed_part(tmp_path, "runs", RUN, 1, 4, generation=3, version=1), layout.tombstone(tmp_path, RUN))
    lay(layout.open_part(tmp_path, OTHER, 1, 1, version=1))
    found = layout.live(tmp_path)
    assert found.sealed == ()
    assert [part.run for part in found.open] == [OTHER]


def test_a_listing_that_took_too_long_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(layout.open_part(tmp_path, RUN, 1, 1, version=1))
    pauses = [0.3, 0.0]

    def slow(folder: Path, read: Callable[[Path], list[Path]] = layout.entries) -> list[Path]:
        if folder.name == "runs":
            time.sleep(pauses.pop(0))
            if pauses:  # what the first listing missed
                lay(layout.open_part(tmp_path, RUN, 2, 2, version=1))
        return read(folder)

    monkeypatch.setattr(layout, "entries", slow)
    assert len(layout.live(tmp_path, grace=0.4).open) == 2
    assert pauses == []


def test_a_listing_that_never_is_quick_enough_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="listing it took over"):
        layout.live(tmp_path, grace=0.0)


@pytest.mark.parametrize(
    ("data", "readable"),
    [
        (b"PAR1" + b"x" * 20 + (12).to_bytes(4, "little") + b"PAR1", True),
        (b"PAR1" + b"x" * 20 + (21).to_bytes(4, "little") + b"PAR1", False),
        (b"PAR1" + b"x" * 20 + (0).to_bytes(4, "little") + b"PAR1", False),
        (b"PAR1" + b"x" * 20, False),
        (b"PAR2" + b"x" * 20 + (12).to_bytes(4, "little") + b"PAR1", False),
        (b"PAR1", False),
        (b"", False),
    ],
)
def test_a_cheap_look_tells_cut_files(tmp_path: Path, data: bytes, readable: bool) -> None:
    (tmp_path / "file").write_bytes(data)
    assert layout.is_readable(tmp_path / "file") is readable


def test_a_file_that_is_gone_is_not_called_unreadable(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        layout.is_readable(tmp_path / "gone")


def test_listing_needs_neither_pyarrow_nor_duckdb() -> None:
    code = "import sys, archive.layout; print(sorted({'pyarrow', 'duckdb', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_parts_are_grouped_by_run_in_the_order_of_their_ranges() -> None:
    parts = [layout.open_part(HERE, run, n, n, version=1) for run, n in product((OTHER, RUN), (3, 1, 2))]
    grouped = layout.by_run(parts)
    assert list(grouped) == [RUN, OTHER]
    assert [part.first for part in grouped[OTHER]] == [1, 2, 3]
