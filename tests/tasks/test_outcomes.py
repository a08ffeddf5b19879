"""Outcomes: genuine failures of launchers, libraries and the system, and every way in which an attempt can end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from schemas.attempt import Asked, Exit, Line, Measurement, Outcome, Output, Parsed, Stream
from schemas.errors import ParseError
from tasks import benchmarks
from tasks.benchmarks import Benchmark
from tasks.outcomes import FAILURES, judge

RECORDED = Path(__file__).parent / "recorded"
EXPECTED: dict[str, tuple[str, bool, str]] = json.loads((RECORDED / "failures" / "expected.json").read_text())

NOTHING_PRINTED = {"argv": "x", "match.bandwidth": "bandwidth=([0-9.]+)"}
"""A command whose metric never comes: what remains is how it ended."""

Ended = Literal["exited", "timeout", "stopped", "lost"]


def stream(name: Literal["stdout", "stderr"], text: str, *, truncated: bool = False) -> Stream:
    lines = tuple(Line(index / 100, line) for index, line in enumerate(text.splitlines()))
    return Stream("ranks", 0, name, lines, len(text), truncated)


def output(
    out: str = "",
    err: str = "",
    *,
    ended: Ended = "exited",
    exits: tuple[Exit, ...] = (Exit("ranks", 0, 0),),
    sizes: tuple[int | None, ...] = (None,),
    truncated: bool = False,
) -> Output:
    asked = Asked("command", "run", sizes, parameters=NOTHING_PRINTED)
    streams = (stream("stdout", out, truncated=truncated), stream("stderr", err))
    return Output(asked, 0.0, 12.0, ended, exits, streams)


def recorded(case: str) -> Output:
    texts = {ending: (RECORDED / "failures" / f"{case}.{ending}").read_text() for ending in ("out", "err", "rc")}
    return output(texts["out"], texts["err"], exits=(Exit("ranks", 0, int(texts["rc"])),))


def rows(*sizes: int) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(metric, 1.0, "us", size, t_end=float(size)) for size in sizes for metric in ("time", "time_max")
    )


def reads(parsed: Parsed) -> Benchmark:
    """A benchmark whose parser finds this, whatever the output."""
    return SimpleNamespace(parse=lambda _: parsed)


def refuses(what: str) -> Benchmark:
    def parse(_: Output) -> Parsed:
        raise ParseError(what, 7)

    return SimpleNamespace(parse=parse)


COMMAND = benchmarks.get("command")


@pytest.mark.parametrize("case", EXPECTED)
def test_a_recorded_failure_is_explained(case: str) -> None:
    _, verdict = judge(COMMAND, recorded(case))
    assert (verdict.outcome.value, verdict.transient, verdict.reason) == tuple(EXPECTED[case])


@pytest.mark.parametrize("case", EXPECTED)
def test_a_reason_is_one_line_and_its_proof_was_printed(case: str) -> None:
    given = recorded(case)
    _, verdict = judge(COMMAND, given)
    assert verdict.reason
    assert "\n" not in verdict.reason
    assert set(verdict.lines) <= {line.text for line in given.lines()}
    assert verdict.lines or not any(line.text for line in given.lines())


def texts() -> Iterator[str]:
    for path in sorted(RECORDED.rglob("*.out")) + sorted(RECORDED.rglob("*.err")):
        yield path.read_text()


def test_every_failure_text_was_seen_in_a_genuine_output() -> None:
    everything = "\n".join(texts())
    assert [failure.text for failure in FAILURES if failure.text not in everything] == ["each rank ran alone"]


def test_every_detail_finds_something_in_a_genuine_output() -> None:
    everything = list(texts())
    for failure in FAILURES:
        hits = [text for text in everything if failure.text in text]
        assert not failure.detail or not hits or any(re.search(failure.detail, text) for text in hits), failure


def test_a_complete_result_is_ok_whatever_the_log_says() -> None:
    _, verdict = judge(reads(Parsed(rows(1, 2))), output("Connection refused, trying again", sizes=(1, 2)))
    assert (verdict.outcome, verdict.reason, verdict.transient) == (Outcome.OK, "", False)


@pytest.mark.parametrize(
    ("ended", "outcome", "transient"),
    [
        ("timeout", Outcome.TIMEOUT, True),
        ("lost", Outcome.LOST, True),
        ("stopped", Outcome.CANCELLED, False),
    ],
)
def test_how_an_attempt_was_ended_decides_its_outcome(ended: Ended, outcome: Outcome, transient: bool) -> None:
    given = output(ended=ended, exits=(Exit("ranks", 0, signal=15),), sizes=(1, 2, 4))
    parsed, verdict = judge(reads(Parsed(rows(1, 2), missing=(4,))), given)
    assert (verdict.outcome, verdict.transient) == (outcome, transient)
    assert [each.partial for each in parsed.measurements] == [False, False, True, True]


def test_a_timeout_says_how_long_it_took_and_how_far_it_came() -> None:
    given = output(ended="timeout", exits=(Exit("ranks", 0, signal=9),), sizes=(1, 2, 4))
    _, verdict = judge(reads(Parsed(rows(1), missing=(2, 4))), given)
    assert verdict.reason == "no end after 12 s (time-out); 2 of 3 sizes have no result (2, 4)"


def test_wrong_results_are_never_tried_again_however_the_program_ended() -> None:
    for ended in ("exited", "timeout"):
        given = output("BAD TERMINATION", ended=ended, exits=(Exit("ranks", 0, 1),))
        _, verdict = judge(reads(Parsed(rows(1), wrong="3 defects at 1 byte")), given)
        assert (verdict.outcome, verdict.reason, verdict.transient) == (Outcome.WRONG, "3 defects at 1 byte", False)


def test_exit_code_zero_without_a_result_is_a_failure() -> None:
    _, verdict = judge(reads(Parsed(missing=(None,))), output("all is well"))
    assert (verdict.outcome, verdict.transient) == (Outcome.FAILED, True)
    assert verdict.reason == "exited with 0, but there is no result"
    assert verdict.lines == ("all is well",)


def test_exit_code_zero_with_half_a_table_is_a_failure_and_keeps_the_rows() -> None:
    parsed, verdict = judge(reads(Parsed(rows(1, 2), missing=(4, 8))), output(sizes=(1, 2, 4, 8), truncated=True))
    assert verdict.outcome is Outcome.FAILED
    assert "2 of 4 sizes have no result (4, 8), and its output was cut" in verdict.reason
    assert not any(each.partial for each in parsed.measurements)


def test_garbage_with_exit_code_zero_is_unparsed_and_names_the_line() -> None:
    parsed, verdict = judge(refuses("not a row"), output("garbage", sizes=(1, 2)))
    assert (verdict.outcome, verdict.transient, parsed.missing) == (Outcome.UNPARSED, False, (1, 2))
    assert "line 7: not a row" in verdict.reason


def test_an_exit_code_says_more_than_an_output_that_cannot_be_read() -> None:
    _, verdict = judge(refuses("printed nothing"), output(exits=(Exit("ranks", 0, 3),)))
    assert (verdict.outcome, verdict.transient) == (Outcome.FAILED, True)
    assert verdict.reason.startswith("ranks ended with exit code 3")


def test_a_text_explains_more_than_an_exit_code() -> None:
    _, verdict = judge(refuses("printed nothing"), output(err="bash: line 1: nosuch: command not found"))
    assert (verdict.outcome, verdict.transient) == (Outcome.FAILED, False)
    assert verdict.reason.startswith("cannot start: nosuch; ")


def test_what_the_benchmark_says_of_its_failure_stands_before_what_else_was_printed() -> None:
    given = output(err="cp: cannot stat 'x': No such file or directory")
    _, verdict = judge(reads(Parsed(missing=(None,), failure="loss never appeared")), given)
    assert verdict.reason.startswith("loss never appeared: a file is missing: cp: ")
    _, verdict = judge(reads(Parsed(missing=(None,), failure="loss never appeared")), output())
    assert (verdict.reason, verdict.transient) == ("loss never appeared", False)


def test_a_program_that_never_started_is_not_tried_again() -> None:
    _, verdict = judge(COMMAND, output(exits=(Exit("ranks", 0, error="exec format error: '/x'"),)))
    assert (verdict.outcome, verdict.transient) == (Outcome.FAILED, False)
    assert "could not be started: exec format error" in verdict.reason
    _, verdict = judge(COMMAND, output(exits=(Exit("ranks", 0, error="[Errno 2] No such file or directory: '/x'"),)))
    assert (verdict.outcome, verdict.transient) == (Outcome.FAILED, False)


def test_a_signal_is_named() -> None:
    _, verdict = judge(COMMAND, output(exits=(Exit("ranks", 0, signal=11),)))
    assert "killed by signal 11 (Segmentation fault)" in verdict.reason


def test_only_the_last_role_decides_the_end() -> None:
    exits = (Exit("server", 0, signal=15), Exit("client", 0, 0))
    _, verdict = judge(reads(Parsed(rows(1))), output(exits=exits))
    assert verdict.outcome is Outcome.OK
    _, verdict = judge(reads(Parsed(rows(1))), output(exits=exits[::-1]))
    assert verdict.outcome is Outcome.FAILED


def test_nothing_started_is_a_failure() -> None:
    _, verdict = judge(COMMAND, output(exits=()))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("nothing was started")


def test_what_a_launcher_says_of_ranks_that_we_killed_explains_no_timeout() -> None:
    asked = Asked("imb", "pingpong", (4,), 2, 2)
    lines = (Line(1.0, "started"), Line(60.2, "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"))
    streams = (Stream("ranks", 0, "stdout", lines),)
    late = Output(asked, 0.0, 60.4, "timeout", (Exit("ranks", 0, signal=15),), streams, until=60.0)
    _, verdict = judge(benchmarks.get("imb"), late)
    assert verdict.outcome is Outcome.TIMEOUT
    assert "rank died" not in verdict.reason
