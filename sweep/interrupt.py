"""Ctrl-C, SIGTERM and SIGUSR1 (Slurm's warning): who is in charge at the moment says what they do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from schemas.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupts:
    """Takes the signals of the main thread while it is entered. Until somebody heeds them they raise Interrupted."""

    def __init__(self) -> None:
        self.count = 0
        """How many came."""
        self._heed: Callable[[], object] = _give_up
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        """Take over."""
        self._before = {each: signal.signal(each, self._hear) for each in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Hand back."""
        for each, handler in self._before.items():
            signal.signal(each, handler)

    @contextmanager
    def heeded(self, act: Callable[[], object]) -> Iterator[None]:
        """Have `act` called, in the running loop, for each signal."""
        loop = asyncio.get_running_loop()
        before, self._heed = self._heed, lambda: loop.call_soon_threadsafe(act)
        try:
            yield
        finally:
            self._heed = before

    def forget(self) -> None:
        """From here on nothing is left to interrupt."""
        self._heed = _nothing

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._heed()


def _give_up() -> None:
    raise Interrupted("interrupted before anything was started")


def _nothing() -> None:
    """Do nothing."""
