"""Shows a run while it happens: bars on a terminal, one plain line per trial elsewhere. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Collection
from typing import IO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from schemas.attempt import Outcome
from schemas.plan import Plan, Trial
from sweep.notes import constants, describe
from sweep.rows import Attempt


class LineWatcher:
    """One plain line per attempt: for logs, pipes and CI."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self._done = 0
        self._constant: Collection[str] = ()

    def begin(self, plan: Plan, done: int) -> None:
        """Say how much there is to do."""
        self._total, self._done = len(plan.trials), done
        self._constant = constants(plan)
        resumed = f", {done} in the archive already" if done else ""
        self.say(f"{len(plan.trials)} trials, {plan.points} points{resumed}")

    def started(self, trial: Trial, number: int) -> None:
        """Nothing: the line comes when it ended."""

    def ended(self, attempt: Attempt) -> None:
        """One line: what ended, how, how long it took."""
        self._done += attempt.final and attempt.phase == "measure"
        self.say(f"[{self._done}/{self._total}] {sentence(attempt, self._constant)}")

    def say(self, text: str) -> None:
        """A plain line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to put away."""


class BarWatcher:
    """A bar with trials done, failed, retried, the current trial, elapsed time and what is left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._outcomes: Counter[str] = Counter()
        self._retried = 0
        self._constant: Collection[str] = ()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
            transient=False,
        )
        self._task: TaskID = self._bar.add_task("starting", total=None, counts="")

    def begin(self, plan: Plan, done: int) -> None:
        """Draw the bar."""
        self._constant = constants(plan)
        self._bar.update(self._task, total=len(plan.trials), completed=done)
        self._bar.start()

    def started(self, trial: Trial, number: int) -> None:
        """Show the current trial."""
        again = f" (attempt {number})" if number > 1 else ""
        self._bar.update(self._task, description=f"{describe(trial, self._constant)}{again}")

    def ended(self, attempt: Attempt) -> None:
        """Count it; what did not go well stays on the screen as a line."""
        if attempt.phase == "measure" and attempt.final:
            self._outcomes[attempt.verdict.outcome.value] += 1
            self._bar.advance(self._task)
        elif attempt.phase == "measure":
            self._retried += 1
        if attempt.verdict.outcome is not Outcome.OK:
            self.say(sentence(attempt, self._constant))
        failed = sum(count for name, count in self._outcomes.items() if name not in ("ok", "unsupported"))
        self._bar.update(self._task, counts=f"failed {failed} retried {self._retried}")

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        self._bar.stop()


def sentence(attempt: Attempt, constant: Collection[str] = ()) -> str:
    """What an attempt was and how it ended, in one line."""
    parts = [describe(attempt.trial, constant)]
    if attempt.phase != "measure":
        parts.append(attempt.phase)
    if attempt.number > 1:
        parts.append(f"attempt {attempt.number}")
    took = f" in {attempt.output.elapsed:.2f} s" if attempt.output is not None else ""
    parts.append(f"{attempt.verdict.outcome.value}{took}")
    if attempt.verdict.reason:
        parts.append(attempt.verdict.reason)
    return ": ".join(parts)


class Forgiving:
    """A text stream that may break: a full disk under the log, or a terminal that went away, ends no measuring."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it if that can be done."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush it if that can be done."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def watcher(stream: IO[str] | None = None) -> LineWatcher | BarWatcher:
    """Bars on a terminal, lines elsewhere; to stderr if no stream is given."""
    found = sys.stderr if stream is None else stream
    console = Console(file=cast("IO[str]", Forgiving(found))) if found is not None else Console(quiet=True)
    return BarWatcher(console) if console.is_terminal else LineWatcher(console)
