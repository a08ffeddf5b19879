"""Group commit: what is appended together, when it counts as durable, and where an error of the writer ends up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import archive
from archive.store import Writer
from schemas.errors import ArchiveError
from sweep.append import BACKLOG, Appender, joined

Rows = Mapping[str, Sequence[Mapping[str, object]]]
RUN = "r20261203-101112-ab3d"


class Disk:
    """A writer that remembers its appends, takes its time, and fails when told."""

    def __init__(self) -> None:
        self.appends: list[Rows] = []
        self.free = threading.Event()
        self.free.set()
        self.fails_at = -1

    def append(self, rows: Rows) -> None:
        self.free.wait(30)
        if len(self.appends) == self.fails_at:
            raise ArchiveError("the disk is full")
        self.appends.append(rows)

    @property
    def names(self) -> list[list[object]]:
        """What each append brought."""
        return [[row["kind"] for row in rows["events"]] for rows in self.appends]


def event(kind: object) -> Rows:
    return {"events": [{"run": RUN, "kind": str(kind)}], "outputs": []}


def test_rows_that_come_together_are_one_append_in_their_order() -> None:
    disk = Disk()

    async def main() -> None:
        async with Appender(disk) as appender:
            for name in "abc":
                await appender.put(event(name))
            await appender.flush()
            await appender.put(event("d"))

    asyncio.run(main())
    assert disk.names == [["a", "b", "c"], ["d"]]


def test_nothing_is_called_durable_before_it_is() -> None:
    disk = Disk()
    disk.free.clear()
    told: list[int] = []

    async def main() -> None:
        async with Appender(disk) as appender:
            for number in range(3):
                await appender.put(event(number), note(told, disk))
            await asyncio.sleep(0.2)
            assert told == []
            disk.free.set()
            await appender.flush()
            assert told == [1, 1, 1]

    asyncio.run(main())


def note(told: list[int], disk: Disk) -> Callable[[], None]:
    """Notes how many appends there were when it was told."""
    return lambda: told.append(len(disk.appends))


def test_the_loop_goes_on_while_the_disk_is_busy() -> None:
    disk = Disk()
    disk.free.clear()

    async def main() -> None:
        async with Appender(disk) as appender:
            await appender.put(event("a"))
            await asyncio.sleep(0.1)
            await asyncio.wait_for(appender.put(event("b")), 5)
            disk.free.set()

    asyncio.run(main())
    assert disk.names == [["a"], ["b"]]


def test_a_slow_disk_holds_the_sweep_back_before_memory_is_full() -> None:
    disk = Disk()
    disk.free.clear()
    given_away = 0

    async def main() -> None:
        nonlocal given_away
        async with Appender(disk) as appender:
            asyncio.get_running_loop().call_later(1.0, disk.free.set)
            while not disk.free.is_set():
                given_away += 1
                await appender.put(event(given_away - 1))
            assert given_away <= 2 * BACKLOG + 3  # one append under way, a full queue, one that waits

    asyncio.run(main())
    assert given_away > BACKLOG
    assert [name for append in disk.names for name in append] == [str(number) for number in range(given_away)]


@pytest.mark.parametrize("where", ["put", "flush", "exit"])
def test_an_error_of_the_writer_reaches_whoever_comes_next_and_nothing_else_counts(where: str) -> None:
    disk = Disk()
    disk.fails_at = 1
    told: list[str] = []

    async def main() -> None:
        async with Appender(disk) as appender:
            await appender.put(event("a"), lambda: told.append("a"))
            await appender.flush()
            await appender.put(event("b"), lambda: told.append("b"))
            if where == "flush":
                await appender.flush()
            if where == "put":
                await asyncio.sleep(0.2)
                await appender.put(event("c"), lambda: told.append("c"))

    with pytest.raises(ArchiveError, match="the disk is full"):
        asyncio.run(main())
    assert told == ["a"]
    assert disk.names == [["a"]]


def test_a_full_backlog_does_not_hide_the_error_of_the_writer() -> None:
    disk = Disk()
    disk.free.clear()
    disk.fails_at = 0

    async def main() -> None:
        async with Appender(disk) as appender:
            asyncio.get_running_loop().call_later(0.3, disk.free.set)
            while True:
                await appender.put(event("x"))

    with pytest.raises(ArchiveError, match="the disk is full"):
        asyncio.run(main())


def test_what_was_handed_over_is_durable_when_the_block_is_left_whatever_left_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Appender(Writer(tmp_path, RUN, 0)) as appender:
            await appender.put(event("last words"))
            raise KeyError("something else")

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert archive.open(tmp_path).sql("SELECT kind FROM events").fetchall() == [("last words",)]


def test_many_appends_are_few_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with Appender(Writer(tmp_path, RUN, 0)) as appender:
            for number in range(300):
                await appender.put(event(number))

    start = time.monotonic()
    asyncio.run(main())
    rounds = (time.monotonic() - start) / 0.02 + 2
    files = list((tmp_path / "open" / RUN).glob("*.parquet"))
    assert len(files) <= rounds
    [(count,)] = archive.open(tmp_path).sql("SELECT count(DISTINCT kind) FROM events").fetchall()
    assert count == 300


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.lists(st.fixed_dictionaries({"x": st.integers()})))))
def test_joined_rows_are_all_the_rows_in_order(parts: list[dict[str, list[dict[str, int]]]]) -> None:
    whole = joined(parts)
    for table in "abc":
        assert whole.get(table, []) == [row for part in parts for row in part.get(table, [])]
