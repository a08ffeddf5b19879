"""One root for every error of ours; each class knows its exit code and whether trying again may help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the input: where, what, and what would be right."""

    where: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.remedy}" if self.remedy else text


class SweepError(Exception):
    """Root of all errors that Fabric Sweep raises; `str()` is what a user reads, without a traceback."""

    exit_code = 1
    transient = False


class InputError(SweepError):
    """The user's input is wrong (exit code 2). Carries every problem found, one line each."""

    exit_code = 2

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem("", problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class SiteError(SweepError):
    """The environment cannot do it: no nodes, no binary, no write access, another Ray version (exit code 3)."""

    exit_code = 3


class ArchiveError(SiteError):
    """The archive cannot be read or written: not a directory, read-only, full, or a file in it is corrupt."""


class OwnershipError(ArchiveError):
    """Another driver owns the run: a name that had to be new holds bytes that are not ours."""


class NodeLost(SweepError):
    """A node, its worker or its node part went away under an attempt; the attempt's outcome is `lost`."""

    transient = True


class ParseError(SweepError):
    """A benchmark's output is not what its parser knows; names the line (1-based, of the stream) where it stopped."""

    def __init__(self, what: str, line: int | None = None, text: str = "") -> None:
        self.line = line
        where = f"line {line}: " if line is not None else ""
        shown = f": {text.strip()[:120]!r}" if text.strip() else ""
        super().__init__(f"{where}{what}{shown}")


class Stopped(SweepError):
    """A run stopped at its deadline and can be resumed (exit code 4)."""

    exit_code = 4


class Interrupted(SweepError):
    """The user interrupted a run; it can be resumed (exit code 130)."""

    exit_code = 130
