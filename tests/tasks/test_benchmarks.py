"""The contract of every benchmark module: a new one is tested here before its author writes a test.

What it needs beside the module: a page `docs/benchmarks/<name>.md`, and for each operation at least one genuine output,
`recorded/<name>/<case>.{cmd,out,err,rc}`, with what is right in `<case>.json`:

    asked    operation, sizes, ranks, and the parameters that are not at their defaults
    rows     [metric, value, unit, message_size, payload_bytes, variant, samples], in order
    missing  asked sizes without a complete row; wrong, failure: a part of what the parser says of it
    error    instead of all these: a part of the ParseError's text
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.attempt import Asked, Exit, Line, Output, Parsed, Stream
from schemas.errors import InputError, ParseError
from schemas.metrics import METRICS
from schemas.plan import Combination, Node, Setup, Tool, Trial
from schemas.spec import CORE_FACTORS
from tasks import benchmarks
from tasks.benchmarks import Benchmark, asked, unusable

ROOT = Path(__file__).parent.parent.parent
RECORDED = Path(__file__).parent / "recorded"
NODES = (Node("node01", cpus=4),)
ELAPSED = 1.5

Row = tuple[str, float, str, int | None, int | None, str, int | None]


@dataclass(frozen=True)
class Case:
    """A recorded output, and what is right."""

    benchmark: str
    name: str
    expected: Any
    out: str
    err: str
    exit_code: int

    @property
    def module(self) -> Benchmark:
        return benchmarks.get(self.benchmark)

    @property
    def asked(self) -> Asked:
        given = self.expected["asked"]
        return Asked(self.benchmark, given["operation"], tuple(given["sizes"]), 1, given["ranks"], given["parameters"])

    @property
    def rows(self) -> list[Row]:
        return [tuple(row) for row in self.expected.get("rows", ())]

    def output(self, out: list[str] | None = None, err: list[str] | None = None, *, truncated: bool = False) -> Output:
        """The recorded output, or other lines instead; a stamp every 10 ms."""
        given: tuple[tuple[Literal["stdout", "stderr"], list[str]], ...] = (
            ("stdout", self.out.splitlines() if out is None else out),
            ("stderr", self.err.splitlines() if err is None else err),
        )
        streams = tuple(
            Stream("ranks", 0, name, tuple(Line((at + 1) / 100, text) for at, text in enumerate(lines)), 0, truncated)
            for name, lines in given
        )
        return Output(self.asked, 0.0, ELAPSED, "exited", (Exit("ranks", 0, self.exit_code),), streams)


def cases() -> Iterator[Case]:
    for name in benchmarks.names():
        for path in sorted((RECORDED / name).glob("*.json")):
            read = {ending: path.with_name(f"{path.stem}.{ending}").read_text() for ending in ("out", "err", "rc")}
            yield Case(name, path.stem, json.loads(path.read_text()), read["out"], read["err"], int(read["rc"]))


CASES = tuple(cases())
READABLE = tuple(case for case in CASES if "error" not in case.expected)
OWN_FORMAT = tuple(case for case in READABLE if case.rows and not any(each.family for each in case.module.parameters))
"""Of a program whose format we know; where the user's own expressions read, a changed digit is none of our business."""

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.benchmark}-{case.name}")
every_module = pytest.mark.parametrize("name", benchmarks.names())


def rows_of(parsed: Parsed) -> list[Row]:
    return [
        (each.metric, each.value, each.unit, each.message_size, each.payload_bytes, each.variant, each.samples)
        for each in parsed.measurements
    ]


def same(one: Row, other: Row) -> bool:
    alike = math.isclose(one[1], other[1], rel_tol=1e-9) or (math.isnan(one[1]) and math.isnan(other[1]))
    return alike and (one[0], *one[2:]) == (other[0], *other[2:])


def trial(case: Case) -> Trial:
    """The trial behind a recorded output, parameters at their defaults included."""
    given = case.asked
    defaults = {each.name: each.default for each in case.module.parameters if not each.family}
    setup = Setup(uuid.UUID(int=1), "local", None, "mpiexec", "mpich", {})
    combination = Combination(
        case.benchmark,
        given.operation,
        MappingProxyType({"ranks_per_node": given.ranks}),
        MappingProxyType(defaults | dict(given.parameters)),
        setup,
    )
    return Trial(uuid.UUID(int=2), combination, given.sizes, 0, 0, uuid.UUID(int=3), 0, 0)


# what a module is


def test_the_files_name_is_the_registration() -> None:
    files = {path.stem for path in (ROOT / "tasks" / "benchmarks").glob("[a-z]*.py")}
    assert set(benchmarks.names()) == files
    assert list(benchmarks.names()) == sorted(files)


@every_module
def test_getting_a_benchmark_imports_no_other(name: str) -> None:
    program = (
        "import sys; from tasks import benchmarks; benchmarks.get(sys.argv[1]);"
        "print([each for each in benchmarks.names() if f'tasks.benchmarks.{each}' in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program, name], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == repr([name])


@pytest.mark.parametrize(("name", "remedy"), [("IMB", "did you mean `imb`?"), ("nosuch", "there are: command, imb")])
def test_an_unknown_benchmark_is_refused_with_what_there_is(name: str, remedy: str) -> None:
    with pytest.raises(InputError, match=f"no benchmark `{name}`") as caught:
        benchmarks.get(name)
    assert remedy in str(caught.value)


@every_module
def test_a_module_says_what_it_offers(name: str) -> None:
    module = benchmarks.get(name)
    assert module.summary
    assert "\n" not in module.summary + module.install
    assert module.install
    assert module.revision >= 1
    assert module.parser_revision >= 1
    assert set(module.proofs) <= set(module.programs)
    for key, operation in module.operations.items():
        assert key == key.lower()
        assert key.isidentifier()
        assert operation.tool
        assert operation.summary
        assert 1 <= operation.min_ranks <= (operation.max_ranks or operation.min_ranks)
    names = [each.name for each in module.parameters]
    assert len(set(names)) == len(names)
    assert not set(names) & set(CORE_FACTORS)
    for each in module.parameters:
        assert type(each.default) is each.kind, each.name
        assert not each.choices or each.default in each.choices
        assert each.help


@every_module
def test_a_module_has_a_page_that_names_all_of_it(name: str) -> None:
    page = (ROOT / "docs" / "benchmarks" / f"{name}.md").read_text()
    module = benchmarks.get(name)
    for word in (*module.operations, *(f"{name}.{each.name}" for each in module.parameters), *module.programs):
        assert f"`{word}" in page, word


@every_module
def test_every_operation_has_a_genuine_output(name: str) -> None:
    assert {case.asked.operation for case in CASES if case.benchmark == name and case.rows} == set(
        benchmarks.get(name).operations
    )


def test_a_program_that_is_missing_or_says_the_wrong_thing_is_unusable() -> None:
    module = benchmarks.get("mpi4py")
    assert unusable(module, ["python3"], {}) == ("python3",)
    assert unusable(module, ["python3"], {"python3": Tool("python3", "/p", "No module named 'mpi4py'")}) == ("python3",)
    assert unusable(module, ["python3"], {"python3": Tool("python3", "/p", "mpi4py 4.1.2")}) == ()


# launching


@every_case
def test_launch_is_pure_and_deterministic(case: Case) -> None:
    given = trial(case)
    touched: list[str] = []
    with watched(touched):
        first = case.module.launch(given, NODES)
        second = case.module.launch(given, NODES)
    assert first == second
    assert given == trial(case)
    assert not touched
    assert first.asked == asked(given)
    for role in first.roles:
        assert role.name
        assert role.argv
        assert all(isinstance(word, str) for word in role.argv)
        assert role.ranks in (None, given.combination.ranks_per_node)
    for each in case.module.needs(case.asked.operation, given.combination.parameters):
        assert any(role.argv[0] == each for role in first.roles)
        assert each in case.module.programs


@every_case
def test_parse_touches_nothing(case: Case) -> None:
    given = case.output()
    read_or_refused(case, given)  # imports and compiles what it needs
    touched: list[str] = []
    with watched(touched):
        read_or_refused(case, given)
    assert not touched


SIZES = st.lists(st.sampled_from([0, 1, 2, 4, 8, 12, 64, 100, 128, 4096, 1 << 20]), unique=True, min_size=1).map(sorted)


@given(case=st.sampled_from(CASES), sizes=SIZES)
@settings(max_examples=200, deadline=None)
def test_batches_hold_exactly_the_asked_sizes(case: Case, sizes: list[int]) -> None:
    operation, ranks, parameters = case.asked.operation, case.asked.ranks, trial(case).combination.parameters
    good = tuple(size for size in sizes if case.module.refuses(operation, size, ranks, parameters) is None)
    batches = case.module.batches(operation, good, parameters)
    assert [size for batch in batches for size in batch] == list(good)
    assert all(batches)
    for batch in batches:
        asked_for = case.module.launch(replace(trial(case), sizes=batch), NODES).asked
        assert asked_for.sizes == batch


@every_module
def test_too_few_ranks_are_refused_in_words(name: str) -> None:
    for case in CASES:
        if case.benchmark == name:
            operation = case.module.operations[case.asked.operation]
            reason = case.module.refuses(
                case.asked.operation, case.asked.sizes[0], operation.min_ranks - 1, trial(case).combination.parameters
            )
            assert operation.min_ranks == 1 or (reason is not None and "rank" in reason)


# parsing


@every_case
def test_a_recorded_output_is_read_right(case: Case) -> None:
    if "error" in case.expected:
        with pytest.raises(ParseError) as caught:
            case.module.parse(case.output())
        assert case.expected["error"] in str(caught.value)
        return
    parsed = case.module.parse(case.output())
    read = rows_of(parsed)
    assert len(read) == len(case.rows)
    assert all(same(one, other) for one, other in zip(read, case.rows, strict=True))
    assert list(parsed.missing) == case.expected["missing"]
    for name in ("wrong", "failure"):
        said, expected = getattr(parsed, name), case.expected.get(name, "")
        assert expected in said
        assert bool(said) == bool(expected)


@every_case
def test_every_row_has_its_window_and_a_unit_that_we_archive(case: Case) -> None:
    for each in read_or_refused(case, case.output()).measurements:
        assert each.t_begin is not None
        assert each.t_end is not None
        assert 0 <= each.t_begin <= each.t_end
        assert each.metric not in METRICS or each.unit == METRICS[each.metric].unit
        assert not each.partial


@every_case
def test_an_output_cut_at_any_line_gives_right_rows_and_says_what_is_missing(case: Case) -> None:
    if "error" in case.expected:
        return
    lines = case.out.splitlines()
    for end in range(len(lines)):
        check_rows(case, case.output(lines[:end]))


@every_module
@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "garbage",
        "\x00\x01\x02",
        "1 2 3 4 5 6",
        "# Benchmarking",
        "{}",
        "\n\n\n",
        "nan nan nan",
        "é" * 1000,
        "9" * 400,
    ],
)
def test_garbage_is_loud(name: str, garbage: str) -> None:
    for case in CASES:
        if case.benchmark == name and case.rows and "failure" not in case.expected:
            mute = case.output(garbage.split("\n"), [])
            mute = replace(mute, exits=(Exit("ranks", 0, 0),))
            parsed = read_or_refused(case, mute)
            metrics = {each.metric for each in parsed.measurements}
            assert metrics <= {"duration"}
            assert parsed.missing == case.asked.sizes or {row[0] for row in case.rows} == {"duration"}


NOISE = (
    "",
    "[1796102112.862551] [node01:17116:0]     ucp_context.c:1381 UCX  WARN  transport 'nosuch' is not available",
    "node01:345:345 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA",
    "[node01:27362] mca_base_component_repository_open: unable to open mca_oob_ud: ignored",
    "WARNING: There is at least non-excluded one OpenFabrics device found",
    "A process has executed an operation involving a call",
)
WRAPPINGS: tuple[Callable[[str], str], ...] = (
    "{}\r".format,
    "\x1b[2;35m{}\x1b[0m".format,
    "[0] {}".format,
    "[3@node01] {}".format,
    "[1,0]<stdout>:{}".format,
    "[1,0][node01:668]<stdout>: {}".format,
    "[Tue Dec  1 01:52:10 2026][1,0]<stdout>: {}".format,
    "Tue Dec  1 01:47:18 2026[1,0]<stdout>:{}".format,
    '<stdout rank="0">{}&#010;</stdout>'.format,
    "[rank0]: {}".format,
    "05:12:59  {}".format,
)


@given(case=st.sampled_from(READABLE), wrap=st.sampled_from(WRAPPINGS), data=st.data())
@settings(max_examples=200, deadline=None)
def test_what_launchers_and_libraries_add_changes_nothing(case: Case, wrap: Callable[[str], str], data: Any) -> None:
    out, err = case.out.splitlines(), case.err.splitlines()
    assume("&" not in case.out and "<" not in case.out)
    label = "0: " if case.out.startswith("0: ") else ""  # srun labels every line of a rank
    for _ in range(data.draw(st.integers(0, 3))):
        out.insert(data.draw(st.integers(0, len(out))), label + data.draw(st.sampled_from(NOISE)))
    parsed = case.module.parse(case.output([wrap(line) for line in out], err))
    read = rows_of(parsed)
    assert len(read) == len(case.rows)
    assert all(same(one, other) for one, other in zip(read, case.rows, strict=True))


@given(case=st.sampled_from(OWN_FORMAT), data=st.data())
@settings(max_examples=600, deadline=None)
def test_a_mutated_output_gives_right_rows_or_an_error(case: Case, data: Any) -> None:
    lines = case.out.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        mutate = data.draw(st.sampled_from([drop, double, swap, garble]))
        at = data.draw(st.integers(0, len(lines) - 1))
        lines = mutate(lines, at, data)
    check_rows(case, case.output(lines))


@given(case=st.sampled_from(READABLE), data=st.data())
@settings(max_examples=300, deadline=None)
def test_an_output_cut_anywhere_gives_right_rows_or_an_error(case: Case, data: Any) -> None:
    text = case.out[: data.draw(st.integers(0, len(case.out)))]
    check_rows(case, case.output(text.split("\n"), truncated=True))


def drop(lines: list[str], at: int, data: Any) -> list[str]:
    return lines[:at] + lines[at + 1 :] if len(lines) > 1 else lines


def double(lines: list[str], at: int, data: Any) -> list[str]:
    return [*lines[: at + 1], *lines[at:]]


def swap(lines: list[str], at: int, data: Any) -> list[str]:
    to = min(at + 1, len(lines) - 1)
    changed = list(lines)
    changed[at], changed[to] = changed[to], changed[at]
    return changed


def garble(lines: list[str], at: int, data: Any) -> list[str]:
    """One character becomes another that is no digit: of a digit for a digit, no parser can know."""
    text = lines[at]
    places = [place for place, character in enumerate(text) if not character.isspace()]
    if not places:
        return lines
    place = data.draw(st.sampled_from(places))
    character = data.draw(st.sampled_from("x?%-.,:|#e\ufffd"))
    return [*lines[:at], text[:place] + character + text[place + 1 :], *lines[at + 1 :]]


def check_rows(case: Case, output: Output) -> None:
    """Right rows, and what is not there is missing; or an error."""
    try:
        parsed = case.module.parse(output)
    except ParseError:
        return
    left = Counter(json.dumps(row) for row in case.rows)
    for row in rows_of(parsed):
        match = next((each for each in case.rows if same(row, each) and left[json.dumps(each)]), None)
        assert match is not None, row
        left[json.dumps(match)] -= 1
    complete = {each.message_size for each in parsed.measurements}
    for size in case.asked.sizes:
        assert size in parsed.missing or size in complete


def read_or_refused(case: Case, output: Output) -> Parsed:
    try:
        return case.module.parse(output)
    except ParseError:
        return Parsed(missing=output.asked.sizes)


_WATCH: list[list[str]] = []


def _hear(event: str, _: object) -> None:
    if _WATCH and event.partition(".")[0] in ("open", "subprocess", "os", "socket", "import", "time", "random"):
        _WATCH[-1].append(event)


class watched:  # noqa: N801 - reads as a word in a with statement
    """Notes what is opened, started, imported or connected to."""

    hooked = False

    def __init__(self, events: list[str]) -> None:
        self._events = events
        if not watched.hooked:
            sys.addaudithook(_hear)
            watched.hooked = True

    def __enter__(self) -> None:
        _WATCH.append(self._events)

    def __exit__(self, *_: object) -> None:
        _WATCH.pop()
