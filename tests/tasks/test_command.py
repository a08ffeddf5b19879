"""Any command: templates, regular expressions, JSON lines, units, and what is wrong with them."""

from __future__ import annotations

import math
import shlex
import uuid
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.attempt import Asked, Exit, Line, Measurement, Outcome, Output, Parsed, Stream
from schemas.errors import InputError, ParseError
from schemas.plan import Combination, Node, Setup, Trial
from schemas.spec import DEFAULTS, Level
from tasks.benchmarks import command, get
from tasks.outcomes import judge
from tasks.units import UNITS, factor

NODE = Node("node01")
FACTORS = {**DEFAULTS, "benchmark": None, "batch": None, "env.NCCL_ALGO": None, "command.argv": None}

Sizes = tuple[int | None, ...]


def trial(argv: str, factors: dict[str, Level] | None = None, sizes: Sizes = (None,), **parameters: Level) -> Trial:
    defaults = {each.name: each.default for each in command.parameters if not each.family}
    setup = Setup(uuid.UUID(int=1), "local", None, "mpiexec", "mpich", {})
    given = MappingProxyType(defaults | {"argv": argv} | parameters)
    combination = Combination("command", "run", MappingProxyType(factors or {}), given, setup)
    return Trial(uuid.UUID(int=2), combination, sizes, 3, 1, uuid.UUID(int=3), 0, 0)


def argv(template: str, factors: dict[str, Level] | None = None, sizes: Sizes = (None,)) -> tuple[str, ...]:
    return command.launch(trial(template, factors, sizes), (NODE,)).roles[0].argv


def problems(**parameters: Level) -> list[str]:
    given = {name.replace("__", "."): level for name, level in ({"argv": "x"} | parameters).items()}
    return [str(each) for each in command.check("run", given, FACTORS)]


def output(
    text: str, parameters: dict[str, Level], sizes: Sizes = (None,), *, err: str = "", exit_code: int = 0
) -> Output:
    asked = Asked("command", "run", sizes, parameters={"argv": "x", **parameters})
    streams = (
        Stream("command", 0, "stdout", tuple(Line(1.0 + at, each) for at, each in enumerate(text.splitlines()))),
        Stream("command", 0, "stderr", tuple(Line(1.5 + at, each) for at, each in enumerate(err.splitlines()))),
    )
    return Output(asked, 0, 9.0, "exited", (Exit("command", 0, exit_code),), streams)


def parse(text: str, parameters: dict[str, Level], sizes: Sizes = (None,), err: str = "") -> list[Measurement]:
    """What was printed, without the wall time."""
    parsed = command.parse(output(text, parameters, sizes, err=err))
    assert parsed.measurements[0].metric == "duration"
    return list(parsed.measurements[1:])


# the template


def test_every_factor_fills_its_hole() -> None:
    factors: dict[str, Level] = {"batch": 32, "rate": 1.5, "fast": True, "env.NCCL_ALGO": "Ring", "ranks_per_node": 4}
    template = "x {message_size} {batch} {rate} {fast} {env.NCCL_ALGO} {nodes} {ranks_per_node} {ranks} {repeat} {slot}"
    assert argv(template, factors, (1024,)) == ("x", "1024", "32", "1.5", "true", "Ring", "1", "4", "4", "3", "1")


def test_words_are_split_before_they_are_filled() -> None:
    assert argv("run --name='{text}' {text}", {"text": "a b; rm -rf /"}) == (
        "run",
        "--name=a b; rm -rf /",
        "a b; rm -rf /",
    )


def test_doubled_braces_are_braces() -> None:
    assert argv("bash -c 'echo ${{HOME}} {batch}'", {"batch": 1}) == ("bash", "-c", "echo ${HOME} 1")
    assert argv("{{{batch}}}", {"batch": 1}) == ("{1}",)


def test_the_attempts_own_folder_is_left_to_the_node() -> None:
    assert argv("x --log {files}/log") == ("x", "--log", "{files}/log")


def test_a_factor_that_was_not_asked_is_empty() -> None:
    assert argv("x --nics={nics}") == ("x", "--nics=")


@given(st.lists(st.text(min_size=1).filter(lambda text: "{" not in text and "}" not in text), min_size=1))
@settings(deadline=None)
def test_words_without_holes_arrive_as_a_shell_would_split_them(words: list[str]) -> None:
    assert argv(shlex.join(words)) == tuple(words)


def test_a_launch_is_one_process_on_the_first_node_or_all_ranks() -> None:
    (role,) = command.launch(trial("x"), (NODE,)).roles
    assert (role.ranks, role.nodes) == (None, (0,))
    (role,) = command.launch(trial("x", {"nodes": 2, "ranks_per_node": 3}, launcher="mpiexec"), (NODE, NODE)).roles
    assert (role.ranks, role.nodes) == (6, (0, 1))


def test_each_size_is_a_launch_of_its_own_if_the_template_names_it() -> None:
    assert command.batches("run", (1, 2), {"argv": "x {message_size}"}) == ((1,), (2,))
    assert command.batches("run", (1, 2), {"argv": "x {{message_size}}"}) == ((1, 2),)
    assert command.batches("run", (), {"argv": "x"}) == ()


def test_a_template_that_names_a_size_that_is_no_factor_is_refused() -> None:
    assert command.refuses("run", 4, 1, {"argv": "x {message_size}"}) is None
    assert command.refuses("run", None, 1, {"argv": "x"}) is None
    reason = command.refuses("run", None, 1, {"argv": "x {message_size}"})
    assert reason == "command.argv names {message_size}, and message_size is no factor"


# what is wrong with it


def test_nothing_is_wrong_with_a_good_command() -> None:
    assert not problems(argv="x {batch} {env.NCCL_ALGO} {files}", match__loss="loss (.+)", unit__bandwidth="MiB/s")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"argv": " "}, 'command.argv: is missing; write what to run, such as "/bin/echo {message_size}"'),
        ({"argv": "echo 'a"}, "command.argv: cannot be split: no closing quotation; quote as for a shell"),
        ({"argv": "x {batsh}"}, "command.argv: {batsh} names no factor; known: batch, env.NCCL_ALGO, files, "),
        ({"argv": "x ${HOME}"}, "write {{HOME}} for the text itself"),
        ({"argv": "awk '{print $1}'"}, "command.argv: a lone {; write {{ for the character itself"),
        ({"argv": "x }"}, "command.argv: a lone }; write }} for the character itself"),
        ({"match__loss": "("}, "command.match.loss: is no regular expression: "),
        ({"match__loss": "x"}, "command.match.loss: has 0 groups; put the number into one group"),
        ({"match__loss": "(a)(b)"}, "command.match.loss: has 2 groups"),
        ({"match__Loss": "(a)"}, "command.match.Loss: `Loss` is no name of a metric"),
        ({"match__duration": "(a)"}, "command.match.duration: `duration` is the wall time that we measure"),
        ({"unit__time": "furlong"}, "command.unit.time: `furlong` is no unit for us; write one of s, sec, ms"),
        ({"unit__time": "MB/s"}, "command.unit.time: `MB/s` is no unit for us"),
    ],
)
def test_what_no_level_mends_is_said_in_one_line_each(parameters: dict[str, Level], said: str) -> None:
    (problem, *_) = problems(**parameters)
    assert problem.startswith(said) or said in problem
    assert "\n" not in problem


def test_all_problems_are_told_at_once() -> None:
    assert len(problems(argv="x {a} {b}", match__loss="x", unit__time="furlong")) == 4


def test_a_launch_that_was_never_checked_is_refused_too() -> None:
    with pytest.raises(InputError, match="names no factor"):
        argv("x {batsh}")


# what it prints


def test_every_match_is_a_row_in_the_order_printed_with_its_window() -> None:
    rows = parse("loss 3 lr 0.1\nnoise\nloss 2\n", {"match.loss": "loss ([0-9.]+)", "match.lr": "lr ([0-9.]+)"})
    assert [(each.metric, each.value, each.unit, each.t_begin, each.t_end) for each in rows] == [
        ("loss", 3.0, "1", 0.0, 1.0),
        ("lr", 0.1, "1", 0.0, 1.0),
        ("loss", 2.0, "1", 1.0, 3.0),
    ]


def test_stdout_and_stderr_are_read_in_the_order_of_time() -> None:
    rows = parse("loss 1\nloss 3", {"match.loss": r"loss (\d)"}, err="loss 2\nloss 4")
    assert [each.value for each in rows] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,234.5", 1234.5), ("1e-3", 1e-3), ("0", 0.0), ("-2", -2.0), ("5.8E+07", 5.8e7), ("inf", float("inf"))],
)
def test_numbers_are_numbers(text: str, value: float) -> None:
    assert [each.value for each in parse(f"x={text}", {"match.loss": r"x=(\S+)"})] == [value]


def test_nan_is_a_value() -> None:
    (row,) = parse("x=nan", {"match.loss": r"x=(\S+)"})
    assert math.isnan(row.value)


def test_named_groups_give_size_unit_and_variant() -> None:
    pattern = r"(?P<variant>\w+) (?P<size>[\d,]+) (?P<value>\S+) (?P<unit>\S+)"
    rows = parse("fwd 1,024 3 ms\nbwd 2048 4 s", {"match.time": pattern}, (1024, 2048))
    assert [(each.variant, each.message_size, each.value, each.unit) for each in rows] == [
        ("fwd", 1024, 3000.0, "us"),
        ("bwd", 2048, 4e6, "us"),
    ]


def test_json_lines_are_rows_and_other_json_is_none() -> None:
    text = (
        '{"metric": "busbw", "value": 3e3, "unit": "MB/s", "message_size": 8, "variant": "in-place"}\n'
        '{"event": "metric", "value": 1}\n{"metric": {"a": 1}}\n'
        ' {"value": NaN, "metric": "loss"}\n'
    )
    rows = parse(text, {})
    assert [(each.metric, each.value, each.unit, each.message_size, each.variant) for each in rows[:1]] == [
        ("busbw", 3.0, "GB/s", 8, "in-place")
    ]
    assert len(rows) == 2


def test_a_declared_unit_holds_for_json_lines_too() -> None:
    (row,) = parse('{"metric": "time", "value": 2}', {"unit.time": "ms"})
    assert (row.value, row.unit) == (2000.0, "us")


@pytest.mark.parametrize(
    ("text", "parameters", "sizes", "said"),
    [
        ("x=N/A", {"match.loss": r"x=(\S+)"}, (None,), "line 1: 'N/A' is no number"),
        ("x=", {"match.loss": "x=(y)?"}, (None,), "is no number"),
        ("x 1 furlong", {"match.time": r"x (?P<value>\S+) (?P<unit>\S+)"}, (None,), "`furlong` is no unit for us"),
        ("4K 1", {"match.time": r"(?P<size>\S+) (?P<value>\S+)"}, (4096,), "'4K' is no message size in bytes"),
        ("8 1", {"match.time": r"(?P<size>\S+) (?P<value>\S+)"}, (4,), "time comes for 8 bytes, which were not asked"),
        ("x=1", {"match.time": r"x=(\S+)"}, (4, 8), "time comes without a size, and 2 sizes were asked"),
        ('{"metric": "loss", "value": "1"}', {}, (None,), "the value of loss is no number"),
        ('{"metric": "loss", "value": true}', {}, (None,), "the value of loss is no number"),
        ('{"metric": "loss", "value": 1', {}, (None,), "a metric in broken JSON"),
        ('{"metric": "loss", "value": 1, "message_size": -1}', {}, (None,), "'-1' is no message size"),
    ],
)
def test_what_is_no_number_is_an_error(text: str, parameters: dict[str, Level], sizes: Sizes, said: str) -> None:
    with pytest.raises(ParseError) as caught:
        command.parse(output(text, parameters, sizes))
    assert said in str(caught.value)


def judged(given: Output) -> tuple[Parsed, Outcome, str]:
    parsed, verdict = judge(get("command"), given)
    return parsed, verdict.outcome, verdict.reason


def test_without_a_declared_metric_the_wall_time_is_all_there_is() -> None:
    parsed, outcome, _ = judged(output("hello", {}, (4096,)))
    assert outcome is Outcome.OK
    assert [(each.metric, each.value, each.unit, each.message_size) for each in parsed.measurements] == [
        ("duration", 9.0, "s", 4096)
    ]


def test_a_program_that_fails_has_no_duration() -> None:
    parsed, outcome, reason = judged(output("loss 1", {"match.loss": r"loss (\d)"}, exit_code=3))
    assert [(each.metric, each.partial) for each in parsed.measurements] == [("loss", True)]
    assert (outcome, reason) == (Outcome.FAILED, "command ended with exit code 3; there is a result")


def test_a_declared_metric_that_never_appears_is_a_failure() -> None:
    parsed, outcome, reason = judged(output("hello", {"match.loss": r"loss (\d)"}))
    assert (parsed.missing, outcome) == ((None,), Outcome.FAILED)
    assert reason == r"loss never appeared: no line matches loss (\d)"


def test_sizes_without_every_declared_metric_are_missing() -> None:
    parameters: dict[str, Level] = {
        "match.time": r"(?P<size>\d+) t=(?P<value>\d+)",
        "match.loss": r"(?P<size>\d+).*l=(?P<value>\d+)",
    }
    parsed, outcome, reason = judged(output("4 t=1 l=2\n8 t=1\n", parameters, (4, 8, 16)))
    assert parsed.missing == (8, 16)
    assert (outcome, reason) == (Outcome.FAILED, "exited with 0, but 2 of 3 sizes have no result (8, 16)")


@given(canonical=st.sampled_from(sorted(UNITS)), data=st.data())
@settings(deadline=None)
def test_units_convert_there_and_back(canonical: str, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(UNITS[canonical])))
    assert factor(unit, canonical) > 0
    assert factor(canonical, canonical) == pytest.approx(1.0)
