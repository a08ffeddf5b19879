"""mpi4py's own benchmarks, `python -m mpi4py.bench`: the portable ones where IMB does not exist.

Read in its source (mpi4py 4.1, src/mpi4py/bench.py) and seen in genuine outputs; see docs/benchmarks/mpi4py.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from schemas.attempt import Asked, Launch, Line, Measurement, Output, Parsed, Role
from schemas.errors import ParseError
from schemas.plan import Node, Trial
from schemas.spec import Level
from tasks.benchmarks import Operation, Parameter, asked, refuses_ranks, unchecked
from tasks.semantics import payload_bytes
from tasks.table import check_samples, missing, own_lines, rows

summary = "mpi4py.bench: ping-pong and ring in Python, wherever mpi4py is installed"
revision = 1
parser_revision = 1
programs: Mapping[str, tuple[str, ...]] = {"python3": ("-c", "import mpi4py; print('mpi4py', mpi4py.__version__)")}
proofs: Mapping[str, str] = {"python3": r"^mpi4py \d"}
install = "pip install 'fabric-sweep[mpi]' into an environment of its own, and name its bin folder in [launch] path"

check = unchecked

operations: Mapping[str, Operation] = {
    "pingpong": Operation("pingpong", "latency and bandwidth between two ranks, half a round trip", max_ranks=2),
    "ringtest": Operation("ringtest", "a message once around the ring of all ranks"),
}

parameters = (
    Parameter("iterations", int, 1000, "repetitions of each message size, the same for all sizes", minimum=1),
    Parameter("warmup", int, 100, "repetitions before each size that are not counted", minimum=0),
    Parameter(
        "array", str, "none", "what a ping-pong sends: bytearray or an array", ("none", "numpy", "cupy", "numba")
    ),
)

_LARGEST = 2**32
"""The largest size that pingpong knows; it measures powers of two."""


def needs(operation: str, parameters: Mapping[str, Level]) -> tuple[str, ...]:
    """The Python that has mpi4py."""
    return tuple(programs)


def refuses(operation: str, size: int | None, ranks: int, parameters: Mapping[str, Level]) -> str | None:
    """Why mpi4py.bench would measure something else, or nothing."""
    each = operations[operation]
    if reason := refuses_ranks(each, ranks):
        return reason
    if size is None:
        return f"{each.tool} needs a message_size"
    if operation == "pingpong" and (not 1 <= size <= _LARGEST or size & (size - 1)):
        return f"{each.tool} measures powers of two from 1 to {_LARGEST} bytes, and {size} is none"
    return f"{each.tool} sends at least 1 byte" if size < 1 else None


def batches(
    operation: str, sizes: tuple[int | None, ...], parameters: Mapping[str, Level]
) -> tuple[tuple[int | None, ...], ...]:
    """One launch for each range of powers of two; the ring measures one size per launch."""
    found: list[list[int | None]] = []
    for size in sizes:
        last = found[-1][-1] if found else None
        if operation == "pingpong" and size is not None and last is not None and size == 2 * last:
            found[-1].append(size)
        else:
            found.append([size])
    return tuple(map(tuple, found))


def launch(trial: Trial, nodes: Sequence[Node]) -> Launch:
    """One mpi4py.bench over all ranks, with the same repetitions for all sizes."""
    question = asked(trial)
    sizes = [size for size in question.sizes if size is not None]
    loop, skip = str(question.parameters["iterations"]), str(question.parameters["warmup"])
    words: tuple[str, ...]
    if question.operation == "ringtest":
        words = ("-n", str(sizes[0]), "-l", loop, "-s", skip)
    else:  # beyond some sizes it would repeat less
        words = (
            *("-m", str(sizes[0]), "-n", str(sizes[-1]), "-a", str(question.parameters["array"])),
            *("-l", loop, "--loop-large", loop, "--loop-huge", loop),
            *("-s", skip, "--skip-large", skip, "--skip-huge", skip),
        )
    argv = ("python3", "-m", "mpi4py.bench", question.operation, *words)
    return Launch((Role("ranks", argv, ranks=question.ranks, nodes=tuple(range(question.nodes))),), question)


_HEADER = re.compile(r"# Size \[B\]\s+Bandwidth \[MB/s\] \| Time Mean \[s\] \S+ StdDev \[s\]\s+Samples")
_ROW = re.compile(r"\s*(\d+)\s+(\d+\.\d\d) \| (\d\.\d{7}e[+-]\d\d) \S+ (\d\.\d{4}e[+-]\d\d)\s+(\d+)\s*")
_RING = re.compile(r"time for (\d+) loops = (\S+) seconds \((\d+) processes, (\d+) bytes\)")
_SUSPICIOUS = "suspicious MPI execution environment"
"""mpi4py's own warning on stderr; a table that was cut short says nothing of ranks."""
_ALONE = "each rank ran alone: mpiexec and mpi4py use different MPI libraries"


def parse(output: Output) -> Parsed:
    """The rows of the one table or ring that was asked for."""
    lines, question = own_lines(output), output.asked
    alone = any(_SUSPICIOUS in line.text for line in output.lines("stderr"))
    read = _read_ring if question.operation == "ringtest" else _read_table
    found, failure = ([], _ALONE) if alone else read(lines, question)
    return Parsed(tuple(found), missing=missing(found, question), failure=failure)


def _read_table(lines: Sequence[Line], question: Asked) -> tuple[list[Measurement], str]:
    headers = [index for index, line in enumerate(lines) if _HEADER.fullmatch(line.text.strip())]
    if not headers:
        raise ParseError("no table of mpi4py.bench pingpong" if lines else "mpi4py.bench printed nothing")
    if len(headers) > 1:
        return [], _ALONE  # each rank prints a table of its own
    found: list[Measurement] = []
    for cells, size, begin, end, number in rows(lines, headers[0] + 1, _ROW, question, begin=0.0, size=0):
        samples = int(cells[4])
        check_samples(samples, question, number)
        bandwidth, mean, deviation = map(float, cells[1:4])
        if size is not None and mean > 0 and abs(bandwidth - size / mean / 1e6) > 0.01 + bandwidth * 1e-6:
            raise ParseError("bandwidth is not size / time", number)
        payload = payload_bytes("mpi4py", "pingpong", size, question.ranks)
        found += [
            Measurement("bandwidth", bandwidth / 1e3, "GB/s", size, payload, "", begin, end, samples),
            Measurement("time", mean * 1e6, "us", size, payload, "", begin, end, samples),
            Measurement("time_stdev", deviation * 1e6, "us", size, payload, "", begin, end, samples),
        ]
    return found, ""


def _read_ring(lines: Sequence[Line], question: Asked) -> tuple[list[Measurement], str]:
    found = [(line, match) for line in lines if (match := _RING.fullmatch(line.text.strip()))]
    if not found:
        raise ParseError("no line of mpi4py.bench ringtest" if lines else "mpi4py.bench printed nothing")
    line, match = found[0]
    loops, ranks, size = int(match[1]), int(match[3]), int(match[4])
    if ranks != question.ranks:
        return [], _ALONE
    check_samples(loops, question, 1)
    if len(found) > 1 or size not in question.sizes:
        raise ParseError("not the one ring that was asked for", text=line.text)
    try:
        time = float(match[2]) / loops * 1e6
    except ValueError:
        raise ParseError("no time", text=line.text) from None
    payload = payload_bytes("mpi4py", "ringtest", size, ranks)
    return [Measurement("time", time, "us", size, payload, "", 0.0, line.t, loops)], ""
