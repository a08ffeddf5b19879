"""Intel MPI Benchmarks, IMB-MPI1: point-to-point and collective MPI operations.

Read in its source (github.com/intel/mpi-benchmarks, 2019.1 to 2021.11) and seen in genuine outputs:
docs/benchmarks/imb.md tells what it prints and what misleads a parser.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.attempt import Asked, Evidence, Launch, Line, Measurement, Output, Parsed, Role
from schemas.errors import ParseError
from schemas.metrics import METRICS
from schemas.plan import Node, Trial
from schemas.spec import Level
from tasks.benchmarks import Operation, Parameter, asked, refuses_ranks, unchecked
from tasks.semantics import payload_bytes
from tasks.table import check_samples, missing, own_lines, rows

summary = "Intel MPI Benchmarks (IMB-MPI1): point-to-point and collective MPI, all message sizes in one launch"
revision = 1
parser_revision = 1
programs: Mapping[str, tuple[str, ...]] = {"IMB-MPI1": ()}  # says its version only once MPI runs
proofs: Mapping[str, str] = {}
install = "pip install 'fabric-sweep[imb]', or build github.com/intel/mpi-benchmarks, and put it on the PATH"

check = unchecked

operations: Mapping[str, Operation] = {
    each.tool.lower(): each
    for each in (
        Operation("PingPong", "latency and bandwidth between two ranks, half a round trip", max_ranks=2),
        Operation("PingPongSpecificSource", "PingPong that receives from the named rank", max_ranks=2),
        Operation("PingPongAnySource", "PingPong that receives with MPI_ANY_SOURCE", max_ranks=2),
        Operation("PingPing", "two ranks that send to each other at the same time", max_ranks=2),
        Operation("PingPingSpecificSource", "PingPing that receives from the named rank", max_ranks=2),
        Operation("PingPingAnySource", "PingPing that receives with MPI_ANY_SOURCE", max_ranks=2),
        Operation("Sendrecv", "each rank sends to the right and receives from the left; bandwidth counts both"),
        Operation("Exchange", "each rank exchanges with both neighbours; bandwidth counts all four messages"),
        Operation("Allreduce", "MPI_Allreduce of floats, sum"),
        Operation("Reduce", "MPI_Reduce of floats, sum"),
        Operation("Reduce_local", "MPI_Reduce_local of floats, sum: memory, no network", min_ranks=1),
        Operation("Reduce_scatter", "MPI_Reduce_scatter of floats, sum; the size is what each rank receives"),
        Operation(
            "Reduce_scatter_block", "MPI_Reduce_scatter_block of floats, sum; the size is what each rank receives"
        ),
        Operation("Allgather", "MPI_Allgather; the size is what each rank sends"),
        Operation("Allgatherv", "MPI_Allgatherv; the size is what each rank sends"),
        Operation("Gather", "MPI_Gather; the size is what each rank sends"),
        Operation("Gatherv", "MPI_Gatherv; the size is what each rank sends"),
        Operation("Scatter", "MPI_Scatter; the size is what each rank receives"),
        Operation("Scatterv", "MPI_Scatterv; the size is what each rank receives"),
        Operation("Alltoall", "MPI_Alltoall; the size is what each rank sends to each other"),
        Operation("Alltoallv", "MPI_Alltoallv; the size is what each rank sends to each other"),
        Operation("Bcast", "MPI_Bcast"),
        Operation("Barrier", "MPI_Barrier", sized=False),
        Operation("Uniband", "windows of messages from half of the ranks to the other half"),
        Operation("Biband", "windows of messages between two halves of the ranks, both ways"),
    )
}

parameters = (
    Parameter("iterations", int, 1000, "repetitions of each message size, the same for all sizes", minimum=1),
    Parameter("warmup", bool, True, "a tenth of the repetitions, at least ten, run before each size"),
    Parameter("memory", float, 8.0, "GiB of message buffers that a rank may use", minimum=0),
)

_REDUCTIONS = frozenset({"allreduce", "reduce", "reduce_local", "reduce_scatter", "reduce_scatter_block"})
_ELEMENT = {operation: 4 if operation in _REDUCTIONS else 1 for operation in operations}
"""Bytes of an element, MPI_FLOAT or MPI_BYTE; IMB rounds other sizes up, silently."""
_LARGEST = 2**30
"""The most that -msglog lets through; IMB cuts larger sizes down to its limit, 4 MiB by default, silently."""
_COUNT = 2**31 - 1
"""IMB counts the elements of a buffer in a C int."""
_WHOLE_SEND = frozenset({"reduce_scatter", "reduce_scatter_block", "scatter", "scatterv", "alltoall", "alltoallv"})
_WHOLE_RECEIVE = frozenset({"allgather", "allgatherv", "gather", "gatherv", "alltoall", "alltoallv"})


def needs(operation: str, parameters: Mapping[str, Level]) -> tuple[str, ...]:
    """The one program of all operations."""
    return tuple(programs)


def refuses(operation: str, size: int | None, ranks: int, parameters: Mapping[str, Level]) -> str | None:
    """Why IMB would measure something else, or nothing."""
    each = operations[operation]
    if reason := refuses_ranks(each, ranks):
        return reason
    if operation in ("uniband", "biband") and ranks % 2:
        return f"{each.tool} pairs its ranks, and {ranks} is odd"
    if size is None:
        return f"{each.tool} needs a message_size" if each.sized else None
    return _refuses_size(operation, size, ranks, parameters)


def _refuses_size(operation: str, size: int, ranks: int, parameters: Mapping[str, Level]) -> str | None:
    element = _ELEMENT[operation]
    if size % element:
        return f"{operations[operation].tool} adds floats, and {size} is no multiple of {element} bytes"
    send = max(size, 4) * (2 if operation == "exchange" else ranks if operation in _WHOLE_SEND else 1)
    receive = max(size, 4) * (ranks if operation in _WHOLE_RECEIVE else 1)
    if size > _LARGEST:
        return f"IMB measures up to {_LARGEST} bytes, and {size} is more"
    if max(send, receive) // element > _COUNT:
        return f"{size} bytes on {ranks} ranks are more elements than IMB can count ({_COUNT})"
    gibibytes = (send + receive) / 2**30
    if gibibytes > float(parameters["memory"]):
        return f"{size} bytes need {gibibytes:.1f} GiB of buffers per rank; imb.memory allows {parameters['memory']:g}"
    return None


def batches(
    operation: str, sizes: tuple[int | None, ...], parameters: Mapping[str, Level]
) -> tuple[tuple[int | None, ...], ...]:
    """One launch for any list of sizes."""
    return (sizes,) if sizes else ()


def launch(trial: Trial, nodes: Sequence[Node]) -> Launch:
    """One IMB-MPI1 over all ranks, with exactly the asked sizes and repetitions."""
    question = asked(trial)
    sizes = [str(size) for size in question.sizes if size is not None]
    argv = (
        "IMB-MPI1",
        operations[question.operation].tool,
        *("-npmin", str(question.ranks)),
        *("-iter", str(question.parameters["iterations"]), "-iter_policy", "off"),
        *("-warm_up", "on" if question.parameters["warmup"] else "off"),
        *("-mem", f"{question.parameters['memory']:g}"),
        *("-time", "1000000"),  # seconds per size: our own time-out is the limit
        *(("-msglog", "0:30", "-msglen", "{files}/sizes") if sizes else ()),
    )
    role = Role("ranks", argv, ranks=question.ranks, nodes=tuple(range(question.nodes)))
    return Launch((role,), question, {"sizes": "\n".join(sizes) + "\n"} if sizes else {})


_METRICS = {
    "t[usec]": ("time", 1.0),
    "t_avg[usec]": ("time", 1.0),
    "t_min[usec]": ("time_min", 1.0),
    "t_max[usec]": ("time_max", 1.0),
    "Mbytes/sec": ("bandwidth", 1e3),
    "Msg/sec": ("message_rate", 1.0),
    "defects": ("defects", 1.0),
}
"""Column -> metric, and how many of the column's unit make one of the metric's."""
_WHOLE = r"(\d+)"
_DECIMAL = r"(\d+\.\d\d|-?nan|-?inf)"
_CELLS = {"#bytes": _WHOLE, "#repetitions": _WHOLE, "Msg/sec": r"(\d+|-?nan|-?inf)"}
_PROCESSES = re.compile(r"# #processes = (\d+)")
_FACTS = {
    "imb": re.compile(r"#\s+Intel\(R\) MPI Benchmarks (\S+),"),
    "mpi_standard": re.compile(r"# MPI Version\s*: (\S+)"),
    "intel_mpi": re.compile(r"MPI startup\(\): Intel\(R\) MPI Library, Version (\S+)"),
    "libfabric_provider": re.compile(r"MPI startup\(\): libfabric provider: (\S+)"),
}
_REFUSALS = ("Invalid benchmark name", "# !! Benchmark", "Sizes File", "ERROR: Parse error")
"""What IMB prints before it exits with 0, or goes on with something else."""
_GIVEN_UP = re.compile(r"\s*\d+ (?:out-of-mem\.|int-overflow|time-out\.);")
"""What IMB prints behind a size instead of a row."""
_ALONE = "each rank ran alone (#processes = 1): mpiexec and IMB-MPI1 use different MPI libraries"


def parse(output: Output) -> Parsed:
    """The rows of the one table that was asked for, with the windows that the line stamps give."""
    lines, question = own_lines(output), output.asked
    head = _read_head(lines, question)
    given_up = [line for line in lines if _GIVEN_UP.match(line.text)] if not head.failure else []
    if given_up:
        head.failure = given_up[0].text.strip()
        lines = [line for line in lines if not _GIVEN_UP.match(line.text)]
    found = tuple(_read_rows(lines, head, question)) if head.columns else ()
    bad = next((each for each in found if each.metric == "defects" and each.value > 0), None)
    return Parsed(
        found,
        Evidence(head.facts, level="initialised" if "libfabric_provider" in head.facts else "requested"),
        missing(found, question),
        wrong="" if bad is None else f"IMB's own check found defects at {bad.message_size} bytes: {bad.value:g}",
        failure=head.failure,
    )


@dataclass(slots=True)
class _Head:
    """What stands before the rows."""

    facts: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    begin: float = 0.0
    """The stamp of the last line before the table's box, which comes together with the first row."""
    name: str = ""
    ranks: int | None = None
    columns: tuple[str, ...] = ()
    rows: int = 0
    """Index of the first line behind the header."""


def _read_head(lines: Sequence[Line], question: Asked) -> _Head:
    head, mark = _Head(), 0.0
    for index, line in enumerate(lines):
        text = line.text.strip()
        head.facts |= {name: match[1] for name, pattern in _FACTS.items() if (match := pattern.match(text))}
        if text.startswith(_REFUSALS):
            head.failure = text.strip("# !")
            return head
        if text.startswith("# Benchmarking "):
            head.name, head.begin = text.removeprefix("# Benchmarking "), mark
        elif match := _PROCESSES.fullmatch(text):
            head.ranks = int(match[1])
        elif text.startswith(("#bytes", "#repetitions")):
            head.columns, head.rows = tuple(text.split()), index + 1
            break
        elif text and not text.startswith("#--"):
            mark = line.t
    if "imb" not in head.facts:
        raise ParseError("no banner of Intel MPI Benchmarks" if lines else "IMB-MPI1 printed nothing")
    _check_head(head, question)
    if head.columns and sum(line.text.startswith("# Benchmarking ") for line in lines) > 1:
        raise ParseError("more than one table")
    return head


def _check_head(head: _Head, question: Asked) -> None:
    tool = operations[question.operation].tool
    if (head.name or head.columns) and head.name != tool:
        raise ParseError(f"a table of {head.name or 'nothing'}, where {tool} was asked", head.rows or None)
    if head.ranks == 1 and question.ranks > 1:
        head.failure, head.columns = _ALONE, ()
    if not head.columns:
        return
    if head.ranks != question.ranks:
        raise ParseError(f"a table for {head.ranks} processes, where {question.ranks} were asked", head.rows)
    unknown = [name for name in head.columns if name not in _METRICS and name not in _CELLS]
    if unknown or "#repetitions" not in head.columns or len(set(head.columns)) < len(head.columns):
        raise ParseError(f"not the columns that we know: {' '.join(head.columns)}", head.rows)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a row of a table is read: what a line must be, and which cell is what."""

    row: re.Pattern[str]
    size: int | None
    samples: int
    values: tuple[tuple[int, float], ...]
    """Cell and divisor, for each metric."""
    metrics: tuple[tuple[str, str], ...]
    """Metric and unit."""
    ascending: tuple[int, ...]
    """Which of the values are the fastest, mean and slowest rank's, where a table has them."""


@functools.cache
def _layout(columns: tuple[str, ...]) -> _Layout:
    named = [name for name in columns if name in _METRICS]
    times = ("t_min[usec]", "t_avg[usec]", "t_max[usec]")
    return _Layout(
        re.compile(r"\s*" + r"\s+".join(_CELLS.get(name, _DECIMAL) for name in columns) + r"\s*"),
        columns.index("#bytes") if "#bytes" in columns else None,
        columns.index("#repetitions"),
        tuple((columns.index(name), _METRICS[name][1]) for name in named),
        tuple((metric, METRICS[metric].unit) for metric, _ in map(_METRICS.__getitem__, named)),
        tuple(named.index(name) for name in times) if set(times) <= set(named) else (),
    )


def _read_rows(lines: Sequence[Line], head: _Head, question: Asked) -> Iterator[Measurement]:
    layout = _layout(head.columns)
    payload = payload_bytes("imb", question.operation, 1, question.ranks)  # proportional to the size
    for cells, size, begin, end, number in rows(
        lines, head.rows, layout.row, question, begin=head.begin, size=layout.size
    ):
        samples = int(cells[layout.samples])
        check_samples(samples, question, number)
        values = [float(cells[index]) / divisor for index, divisor in layout.values]
        if layout.ascending:
            fastest, mean, slowest = layout.ascending
            if values[fastest] > values[mean] or values[mean] > values[slowest]:
                raise ParseError("the fastest, mean and slowest rank are not in this order", number)
        whole = None if size is None or payload is None else size * payload
        for (metric, unit), value in zip(layout.metrics, values, strict=True):
            yield Measurement(metric, value, unit, size, whole, "", begin, end, samples)
