"""One attempt: what is launched, what came back, what was measured, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from schemas.spec import Level


class Outcome(StrEnum):
    """How an attempt ended: a closed set."""

    OK = "ok"
    WRONG = "wrong"
    FAILED = "failed"
    TIMEOUT = "timeout"
    LOST = "lost"
    UNPARSED = "unparsed"
    UNSUPPORTED = "unsupported"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Asked:
    """The question in the benchmark's own words: what a parser holds the output against."""

    benchmark: str
    operation: str
    sizes: tuple[int | None, ...] = (None,)
    nodes: int = 1
    ranks: int = 1
    parameters: Mapping[str, Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Role:
    """One part of a launch. Roles start in order; the last one decides the end.

    `ranks` None: a plain process on each of `nodes`; a number: that many ranks over `nodes`, started by the
    site's launcher. In `argv` and `files`, "{files}" is the attempt's own folder.
    """

    name: str
    argv: tuple[str, ...]
    ranks: int | None = None
    nodes: tuple[int, ...] = (0,)
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str | None = None
    """A regular expression: the next role starts once a line of this one matches."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a benchmark wants to be started for one trial."""

    roles: tuple[Role, ...]
    asked: Asked
    files: Mapping[str, str] = field(default_factory=dict)
    """Small text files to lay down first: name -> text."""


@dataclass(frozen=True, slots=True)
class Process:
    """A role made concrete by a launcher: what the node part of node `node` shall exec."""

    role: str
    node: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the user's own environment on that node."""
    path: tuple[str, ...] = ()
    """Folders put before PATH."""
    setup: tuple[str, ...] = ()
    """Bash lines run before exec."""
    ready: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output, without its newline, stamped when the node part read it."""

    t: float
    """Seconds since the attempt's start, monotonic."""
    text: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Everything that one role wrote to one stream on one node."""

    role: str
    node: int
    stream: Literal["stdout", "stderr"]
    lines: tuple[Line, ...] = ()
    size: int = 0
    """Bytes written by the program, kept or not."""
    truncated: bool = False
    """Whether the node part had to drop lines, or the last line has no newline though the role was killed."""

    @property
    def text(self) -> str:
        """The whole text."""
        return "\n".join(line.text for line in self.lines)


@dataclass(frozen=True, slots=True)
class Exit:
    """How one role's process ended: `exit_code` or `signal`, both None if it never started (see `error`)."""

    role: str
    node: int
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""


Counters = Mapping[str, Mapping[str, int]]
"""NIC -> counter -> its value; `tx_bytes` and `rx_bytes` in bytes, whatever the kernel counts in."""


@dataclass(frozen=True, slots=True)
class Looks:
    """What one node's counters said during an attempt: before, at lines of output, every period, and after."""

    start: float
    """Seconds since the epoch by the node's own clock, at the attempt's start there."""
    taken: tuple[tuple[float, Counters], ...] = ()
    """(seconds since that start, counters), in order."""
    idle_s: float | None = None
    """How long the node had been idle since the attempt before; None where there was none."""
    before: Counters | None = None
    """The counters when that idle time began: what moved in it was somebody else's."""


@dataclass(frozen=True, slots=True)
class Output:
    """Everything that came back from one attempt."""

    asked: Asked
    start: float
    """Seconds since the epoch, on the node."""
    elapsed: float
    """Seconds, monotonic, until the tree was empty."""
    ended: Literal["exited", "timeout", "stopped", "lost"]
    exits: tuple[Exit, ...] = ()
    streams: tuple[Stream, ...] = ()
    left: tuple[int, ...] = ()
    """Process ids that could not be killed: the node is not clean."""
    killed: int = 0
    """Processes that had to be killed after the roles ended (daemons, strays) or at the end of time."""
    notes: tuple[str, ...] = ()
    """What could not be made neutral: niceness, oom score, limits."""
    looks: Mapping[int, Looks] = field(default_factory=dict)
    """Node -> what its counters said."""
    until: float | None = None
    """Seconds until it was decided that it ended so; what was said later may be the effect of our own kill."""

    def lines(self, stream: str | None = None) -> Iterator[Line]:
        """Lines of all roles, stream after stream; only those of `stream` if given."""
        for each in self.streams:
            if stream is None or each.stream == stream:
                yield from each.lines


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number of one attempt, in the canonical unit of its metric."""

    metric: str
    value: float
    unit: str
    message_size: int | None = None
    """As the tool means it."""
    payload_bytes: int | None = None
    """In nccl-tests' sense: comparable between tools."""
    variant: str = ""
    """Placement, direction, mode: "in-place", "aggregate", …; empty where a tool has only one."""
    t_begin: float | None = None
    t_end: float | None = None
    """The window in which this size was measured, seconds since the attempt's start, from line stamps."""
    samples: int | None = None
    """Iterations behind the number, where the tool says."""
    partial: bool = False
    """The last row before a death: it may be cut."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the log proves happened. Per message size where the log says so, else under None."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """Said once per launch: library versions, providers, job lines."""
    algorithm: Mapping[int | None, str] = field(default_factory=dict)
    protocol: Mapping[int | None, str] = field(default_factory=dict)
    sharp: Mapping[int | None, bool] = field(default_factory=dict)
    nics: Mapping[int | None, int] = field(default_factory=dict)
    level: Literal["requested", "initialised", "selected", "counted"] = "requested"


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a parser found: complete rows, evidence, and whether every asked size is there."""

    measurements: tuple[Measurement, ...] = ()
    evidence: Evidence = Evidence()
    missing: tuple[int | None, ...] = ()
    """Asked sizes without a complete row; empty means complete."""
    wrong: str = ""
    """What the tool's own check found wrong; empty means nothing."""
    failure: str = ""
    """An error that the tool printed although it may have exited with 0; empty means none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, one line that a human understands, the lines that prove it, and whether to try again."""

    outcome: Outcome
    reason: str = ""
    lines: tuple[str, ...] = ()
    transient: bool = False
    unknown: bool = False
    """Whether no text that we know explains it: then it is transient at most once."""
