"""Group commit: rows of attempts that end within a few milliseconds go into one append, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

Rows = Mapping[str, Sequence[Mapping[str, object]]]

WINDOW_S = 0.02
"""How long the first row of a group waits for company."""
BACKLOG = 256
"""Attempts that may wait for the disk before the sweep waits for it too."""


class Writer(Protocol):
    """Where rows become durable."""

    def append(self, rows: Rows) -> None:
        """All rows, atomically; durable on return."""


class Appender:
    """Takes rows from the loop, appends them in a thread, and says when they are durable."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._queue: asyncio.Queue[tuple[Rows, Callable[[], None]] | None] = asyncio.Queue(BACKLOG)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Appender:
        """Start appending."""
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *error: object) -> None:
        """Append what is left; an error of the writer is raised here at the latest."""
        assert self._task is not None
        await self._hand_over(None)
        await self._task

    async def put(self, rows: Rows, durable: Callable[[], None] = lambda: None) -> None:
        """Hand rows over; `durable` is called once they are. Raises what the writer raised before."""
        assert self._task is not None
        await self._hand_over((rows, durable))
        if self._task.done():
            self._task.result()

    async def flush(self) -> None:
        """Wait until everything handed over so far is durable. Raises what the writer raised."""
        assert self._task is not None
        joining = asyncio.ensure_future(self._queue.join())
        await asyncio.wait({joining, self._task}, return_when=asyncio.FIRST_COMPLETED)
        joining.cancel()
        if self._task.done():
            self._task.result()

    async def _hand_over(self, item: tuple[Rows, Callable[[], None]] | None) -> None:
        """Put an item into the queue, unless the writer has failed and nobody empties it any more."""
        assert self._task is not None
        putting = asyncio.ensure_future(self._queue.put(item))
        await asyncio.wait({putting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        putting.cancel()

    async def _serve(self) -> None:
        ended = False
        while not ended:
            batch = [first] if (first := await self._queue.get()) is not None else []
            ended = first is None
            if batch:
                await asyncio.sleep(WINDOW_S)
            while not self._queue.empty():
                if (item := self._queue.get_nowait()) is None:
                    ended = True
                else:
                    batch.append(item)
            if batch:
                await asyncio.to_thread(self._writer.append, joined([rows for rows, _ in batch]))
                for _, durable in batch:
                    durable()
                    self._queue.task_done()


def joined(parts: Sequence[Rows]) -> dict[str, list[Mapping[str, object]]]:
    """Several sets of rows as one."""
    whole: dict[str, list[Mapping[str, object]]] = {}
    for part in parts:
        for table, rows in part.items():
            whole.setdefault(table, []).extend(rows)
    return whole
