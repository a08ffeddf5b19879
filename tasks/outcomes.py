"""How an attempt ended: output and exit codes turned into the closed set of outcomes, with a reason in words.

`FAILURES` is a table, not a ladder: what launchers, libraries and tools print when they fail, in their own words, each
seen in a genuine output (tests/tasks/recorded/failures).
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace

from schemas.attempt import Asked, Exit, Outcome, Output, Parsed, Verdict
from schemas.errors import ParseError
from tasks.benchmarks import Benchmark


@dataclass(frozen=True, slots=True)
class Failure:
    """A text that names a failure: what it means, what helps, and whether trying again may."""

    text: str
    """Found anywhere in a line."""
    what: str
    remedy: str
    transient: bool = False
    outcome: Outcome = Outcome.FAILED
    detail: str = ""
    """A regular expression whose one group is shown; searched from that line on."""


_PATH = "install it on the node, or name its folder in `path`"
_LIBRARY = "name the folder of that library in `path` or in env.LD_LIBRARY_PATH of its stack"
_STACKS = "run the program under the mpiexec of its own MPI: name both in one [levels.stack]"
_NETWORK = "correct the transports, devices or provider in `env`"
_ARGUMENTS = "correct `args` in [launch]"
_HOST = "check the node's name, that it is up, and that the nodes' ports are open to each other"
_LIMIT = "raise that limit, or leave it to `timeout` in [run]"
_KILLED = "look on the node for what ended it (`dmesg` tells of memory that ran out)"
_USAGE = "correct the program's arguments"
_SERVICE = "check that the other side runs and listens there"
_SPACE = "make room: look at `df` on the node, /dev/shm and TMPDIR included"

FAILURES: tuple[Failure, ...] = (
    # a program that cannot start
    Failure("execvp error on file", "cannot start", _PATH, detail=r"on file (.+)"),
    Failure("unable to launch the specified application", "cannot start", _PATH, detail=r"Executable: (\S+)"),
    Failure("error: execve(): ", "cannot start", _PATH, detail=r"execve\(\): (.+)"),
    Failure(": command not found", "cannot start", _PATH, detail=r"([^\s:]+): command not found"),
    Failure("error while loading shared libraries", "a library is missing", _LIBRARY, detail=r"libraries: ([^:]+):"),
    Failure("No module named", "a Python module is missing", _PATH, detail=r"No module named '?([\w.]+)"),
    # the wrong MPI
    Failure("uses unsupported PMI version", "mpiexec and the program are of different MPIs", _STACKS),
    Failure("suspicious MPI execution environment", "mpiexec and the program are of different MPIs", _STACKS),
    Failure("This test requires", "too few or too many ranks, or another MPI's mpiexec", _STACKS, detail=r"(This .+)"),
    # the launcher refuses
    Failure("unrecognized argument ", "mpiexec knows no such argument", _ARGUMENTS, detail=r"argument (\S+)"),
    Failure("unknown option", "mpiexec knows no such argument", _ARGUMENTS, detail=r'option "?([^\s"]+)'),
    Failure("An unrecognized option", "mpiexec knows no such argument", _ARGUMENTS, detail=r"Option: (\S+)"),
    Failure("was listed more than once", "mpiexec takes an argument once", _ARGUMENTS, detail=r'"(.+?)" command'),
    Failure(
        "There are not enough slots",
        "more ranks than mpiexec has slots for",
        "ask for fewer ranks_per_node, or add --use-hwthread-cpus to `args` in [launch]",
        detail=r"satisfy the (\d+)",
    ),
    Failure("detected an attempt to run as root", "Open MPI refuses root", "add --allow-run-as-root to `args`"),
    Failure("unable to open the hostfile", "the host file cannot be read", _ARGUMENTS, detail=r"hostfile:\s+(\S+)"),
    Failure("unable to find interface", "mpiexec finds no such interface", _ARGUMENTS, detail=r"interface (\S+)"),
    # other nodes
    Failure("Could not resolve hostname", "no such host", _HOST, detail=r"hostname (\S+):"),
    Failure("Unable to run bstrap_proxy on", "a node cannot be reached", _HOST, True, detail=r"proxy on (\S+)"),
    Failure("A daemon failed to report back", "a node cannot be reached", _HOST, True, detail=r"Remote host:\s+(\S+)"),
    Failure("unable to reliably start one or more daemons", "a node cannot be reached", _HOST, True),
    # the network of the ranks
    Failure("no usable transports/devices", "UCX finds no such transport", _NETWORK, detail=r"\((asked .+)\)"),
    Failure("UCX  ERROR   no active messages transport", "UCX finds no way between the ranks", _NETWORK),
    Failure("OFI fi_getinfo() failed", "libfabric finds no such provider", _NETWORK),
    Failure(
        "A requested component was not found",
        "Open MPI has no such component",
        _NETWORK,
        detail=r"(Framework:\s+\S+\s+Component:\s+\S+)",
    ),
    Failure("are unable to reach each other", "Open MPI finds no way between the ranks", _NETWORK),
    # IMB-MPI1, before it exits with 0
    Failure(
        "Invalid benchmark name", "IMB-MPI1 knows no such argument", "use IMB 2019.6 or later", detail=r"name (.+)"
    ),
    Failure("Sizes File", "IMB-MPI1 cannot read its list of sizes", "check TMPDIR on the node", transient=True),
    Failure("ERROR: Parse error on option", "IMB-MPI1 refuses an argument", _USAGE, detail=r"option: (\S+)"),
    Failure("invalid for 1 processes", "IMB-MPI1 ran as a single rank", _STACKS),
    Failure("each rank ran alone", "mpiexec and the program are of different MPIs", _STACKS),
    Failure("out-of-mem.;", "IMB-MPI1 may not use enough memory", "raise imb.memory", detail=r"needed X=\s*(\S+ GB)"),
    Failure("int-overflow;", "IMB-MPI1 cannot count so many elements", "ask for smaller message sizes or fewer ranks"),
    Failure("time-out.;", "IMB-MPI1 gave up", "measure fewer iterations", transient=True),
    # wrong arguments of a Python program
    Failure("error: unrecognized arguments", "wrong arguments", _USAGE, detail=r"arguments: (.+)"),
    Failure("error: argument ", "wrong arguments", _USAGE, detail=r"error: argument (.+)"),
    Failure("error: unknown command", "wrong arguments", _USAGE, detail=r"unknown command (.+)"),
    # limits of others
    Failure("APPLICATION TIMED OUT", "mpiexec's own time limit", _LIMIT, True, Outcome.TIMEOUT, r"TIMEOUT = (\S+)"),
    Failure("user-provided time limit", "mpiexec's own time limit", _LIMIT, True, Outcome.TIMEOUT, r"Timeout: (.+)"),
    Failure(
        "DUE TO TIME LIMIT", "Slurm's time limit ended the step", "ask for a longer allocation", True, Outcome.LOST
    ),
    # what the system refuses
    Failure("No space left on device", "a file system is full", _SPACE),
    Failure("Cannot allocate memory", "memory ran out", "ask for smaller message sizes or fewer ranks_per_node"),
    Failure("Too many open files", "too many open files", "raise `ulimit -n` on the node"),
    Failure("Connection refused", "connection refused", _SERVICE, transient=True),
    Failure("Connection timed out", "connection timed out", _SERVICE, transient=True),
    Failure("Connection reset by peer", "connection reset by the other side", _SERVICE, transient=True),
    Failure("Network is unreachable", "network unreachable", _HOST, transient=True),
    Failure("No route to host", "no route to the host", _HOST, transient=True),
    Failure(
        "Address already in use", "a port is taken", "end what listens there, or choose another port", transient=True
    ),
    Failure("Bus error", "a rank could not have its shared memory", "make room in /dev/shm on the node"),
    # deaths, whose cause the text does not tell
    Failure("Fatal error in", "MPI gave up", "read the lines below", transient=True, detail=r"Fatal error in (\w+)"),
    Failure(
        "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "a rank died",
        _KILLED,
        transient=True,
        detail=r"(?:EXIT STRING|KILLED BY SIGNAL): (.+)",
    ),
    Failure(
        "noticed that process rank", "a rank died", _KILLED, transient=True, detail=r"on\s+(signal \d+ \([\w ]+\))"
    ),
    Failure("Permission denied", "permission denied", "check the modes of what it names", detail=r"(.+)"),
    Failure("No such file or directory", "a file is missing", "check the path that it names", detail=r"(.+)"),
)
"""The first that is found explains a failure: the particular stands before the general."""

_TAIL = 3
"""Lines that stand as proof where no text is known."""


def judge(benchmark: Benchmark, output: Output) -> tuple[Parsed, Verdict]:
    """What was measured and how it ended; after a death the last row is marked as partial.

    Exit code 0 is no proof of a result, and a text that we know explains a failure better than a code does.
    """
    problem = ""
    try:
        parsed = benchmark.parse(output)
    except ParseError as error:
        parsed, problem = Parsed(missing=output.asked.sizes), str(error)
    death = _death(output)
    verdict = _verdict(parsed, problem, death, output)
    return _with_partial(parsed, output.asked) if death and parsed.measurements else parsed, verdict


def _verdict(parsed: Parsed, problem: str, death: str, output: Output) -> Verdict:
    if parsed.wrong:
        return Verdict(Outcome.WRONG, parsed.wrong)
    if output.ended == "stopped":
        return Verdict(Outcome.CANCELLED, "stopped before it ended")
    if not (death or problem or parsed.failure or parsed.missing):
        return Verdict(Outcome.OK)
    errors = "\n".join(each.error for each in output.exits)
    found = _find(parsed.failure) or _find(errors) or _find(_said(output))
    lines = found.lines if found else _tail(output)
    if output.ended in ("timeout", "lost"):
        outcome = Outcome.TIMEOUT if output.ended == "timeout" else Outcome.LOST
        said = (death, _measured(parsed, output), found.reason if found else "")
        return Verdict(outcome, "; ".join(filter(None, said)), lines, transient=True)
    if found:
        own = f"{parsed.failure}: " if parsed.failure and found.failure.text not in parsed.failure else ""
        return Verdict(found.failure.outcome, own + found.reason, lines, found.failure.transient)
    if parsed.failure:
        return Verdict(Outcome.FAILED, parsed.failure, lines)
    if death:
        never = bool(errors.strip())
        reason = f"{death}; {_measured(parsed, output)}"
        return Verdict(Outcome.FAILED, reason, lines, transient=not never, unknown=not never)
    if problem:
        return Verdict(Outcome.UNPARSED, f"exited with 0, but the output is not what we know: {problem}", lines)
    reason = f"exited with 0, but {_measured(parsed, output)}"
    return Verdict(Outcome.FAILED, reason, lines, transient=True, unknown=True)


def _said(output: Output) -> str:
    """All that was said before we killed it: what launchers say of a rank that we killed explains nothing."""
    until = output.until if output.ended == "timeout" and output.until is not None else float("inf")
    return "\n".join(line.text for line in output.lines() if line.t <= until)


def _death(output: Output) -> str:
    """In words, what kept the attempt from ending by itself and well; empty if nothing did."""
    if output.ended == "timeout":
        return f"no end after {output.elapsed:.0f} s (time-out)"
    if output.ended == "lost":
        return "the node or its worker was lost"
    if output.ended == "stopped":
        return "stopped"
    if not output.exits:
        return "nothing was started"
    last = output.exits[-1].role  # decides the end; the roles before it are ended by us
    return next(
        (
            _words(each)
            for each in output.exits
            if each.error or (each.role == last and (each.exit_code, each.signal) != (0, None))
        ),
        "",
    )


def _words(end: Exit) -> str:
    if end.error:
        return f"{end.role} could not be started: {end.error}"
    if end.signal is not None:
        return f"{end.role}: killed by signal {end.signal} ({signal.strsignal(end.signal)})"
    return (
        f"{end.role} ended with exit code {end.exit_code}" if end.exit_code is not None else f"{end.role} never ended"
    )


def _measured(parsed: Parsed, output: Output) -> str:
    """How much of what was asked has a complete row."""
    asked, missing = output.asked.sizes, parsed.missing
    if asked == (None,):
        return "there is no result" if missing else "there is a result"
    cut = ", and its output was cut" if any(each.truncated for each in output.streams) else ""
    named = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
    return (
        f"{len(missing)} of {len(asked)} sizes have no result ({named}){cut}" if missing else "all sizes have results"
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A known failure in a text."""

    failure: Failure
    reason: str
    lines: tuple[str, ...]


def _find(text: str) -> _Found | None:
    """The first failure of the table that a text names."""
    for failure in FAILURES:
        if (at := text.find(failure.text)) >= 0:
            rest = text[text.rfind("\n", 0, at) + 1 : at + 2000]
            match = re.search(failure.detail, rest) if failure.detail else None
            what = f"{failure.what}: {' '.join(match[1].split())}" if match else failure.what
            lines = [line for line in rest.split("\n") if line.strip()]
            return _Found(failure, f"{what}; {failure.remedy}", tuple(lines[:_TAIL]))
    return None


def _tail(output: Output) -> tuple[str, ...]:
    """The last lines of what was said on stderr, else on stdout."""
    for stream in ("stderr", "stdout"):
        said = [line.text for line in output.lines(stream) if line.text.strip()]
        if said:
            return tuple(said[-_TAIL:])
    return ()


def _with_partial(parsed: Parsed, asked: Asked) -> Parsed:
    """The rows with the last one, all its numbers, marked: it may be cut, so its size is still to be measured."""
    rows = parsed.measurements
    last = rows[-1]
    start = len(rows) - 1
    while start and (rows[start - 1].message_size, rows[start - 1].t_end) == (last.message_size, last.t_end):
        start -= 1
    marked = (*rows[:start], *(replace(each, partial=True) for each in rows[start:]))
    missing = tuple(size for size in asked.sizes if size == last.message_size or size in parsed.missing)
    return replace(parsed, measurements=marked, missing=missing)
