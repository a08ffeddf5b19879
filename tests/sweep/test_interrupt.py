"""Ctrl-C, SIGTERM and SIGUSR1 at any moment: what is said, what is done, and that a resume finishes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import termios
import time
from collections import Counter

import pytest

from tests.house import Done, House, finished, soon

MEASURE = """#!/bin/bash
echo $1 >> side
[ -e go ] || sleep ${2:-0.7}
"""


@pytest.fixture
def measured(house: House) -> House:
    """Three trials that take a while, as long as there is no file `go`."""
    house.write("measure.sh", MEASURE)
    house.spec(f'command.argv = "{house.folder}/measure.sh {{X}}"\nX = [1, 2, 3]')
    return house


def begun(house: House, trials: int = 1) -> bool:
    """Whether so many trials have started."""
    side = house.folder / "side"
    return soon(lambda: side.exists() and len(side.read_text().split()) >= trials)


def resumed(house: House, run: str = "last") -> Done:
    """A resume to the end, after which every trial is final once."""
    house.write("go", "")
    done = house.sweep("resume", run, "--executor", "inline")
    assert done.code == 0, done.err
    assert house.sql("SELECT count(DISTINCT trial_id) FROM attempts WHERE final") == [(3,)]
    assert house.sql("SELECT trial_id FROM attempts WHERE final GROUP BY ALL HAVING count(*) > 1") == []
    assert house.sql("SELECT attempt_id FROM attempts GROUP BY ALL HAVING count(*) > 1") == []
    return done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_one_signal_finishes_what_runs_and_stops(measured: House, number: signal.Signals) -> None:
    process = measured.start("run", "spec.toml", "--executor", "inline")
    assert begun(measured)
    process.send_signal(number)
    done = finished(process)
    assert done.code == 130
    assert "finishing what runs, then stopping; once more to kill it" in done.lines
    run = measured.runs()[0]
    assert done.lines[-2].startswith(f"run {run}: 1 ok; ")
    assert done.lines[-1] == f"the run was interrupted; go on with: sweep resume {run} --archive {measured.archive}"
    assert measured.sql("SELECT outcome, final FROM attempts") == [("ok", True)]
    assert "1 in the archive already" in resumed(measured).err
    assert Counter((measured.folder / "side").read_text().split()) == Counter("123")


def test_two_signals_kill_what_runs_and_it_is_measured_again(measured: House) -> None:
    measured.spec(f'command.argv = "{measured.folder}/measure.sh {{X}} 300"\nX = [1, 2, 3]', "timeout = 400")
    process = measured.start("run", "spec.toml", "--executor", "inline")
    assert begun(measured)
    [sleeper] = measured.named("sleep")
    process.send_signal(signal.SIGINT)
    assert soon(lambda: measured.sql("SELECT 1") and sleeper.alive)
    process.send_signal(signal.SIGINT)
    done = finished(process)
    assert done.code == 130
    assert not sleeper.alive
    assert [line for line in done.lines if "killing what runs" in line] == ["killing what runs"]
    assert measured.sql("SELECT outcome, final, attempt FROM attempts") == [("cancelled", False, 1)]
    resumed(measured)
    assert measured.sql("SELECT max(attempt) FROM attempts") == [(2,)]


def test_two_signals_at_once_kill_an_attempt_even_if_it_has_hardly_begun(measured: House) -> None:
    measured.spec(f'command.argv = "{measured.folder}/measure.sh {{X}} 300"\nX = [1, 2, 3]', "timeout = 400")
    process = measured.start("run", "spec.toml", "--executor", "inline")
    assert soon(lambda: measured.runs() != [])  # its first append; the first trial follows within milliseconds
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert finished(process).code == 130
    assert measured.sql("SELECT count(*) FROM attempts WHERE final") == [(0,)]
    resumed(measured)


def test_a_signal_ends_the_wait_for_the_next_attempt(measured: House) -> None:
    measured.write("measure.sh", MEASURE + "[ -e go ] || { echo Connection refused; exit 1; }\n")
    measured.spec(f'command.argv = "{measured.folder}/measure.sh {{X}} 0"\nX = [1, 2, 3]', 'retry.wait = "1h"')
    process = measured.logged("run", "spec.toml", "--executor", "inline")
    assert soon(lambda: re.search(r"trying again in [1-9]\d{3} s", measured.said))
    process.send_signal(signal.SIGINT)
    assert finished(process).code == 130
    assert measured.sql("SELECT outcome, final, attempt FROM attempts") == [("failed", False, 1)]
    resumed(measured)
    assert measured.sql("SELECT count(*) FROM attempts") == [(4,)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_starts_ends_it_at_once_with_one_line(measured: House, number: signal.Signals) -> None:
    measured.write("site.toml", '[launch]\nsetup = ["exec 1>&-; sleep 300"]')
    process = measured.start("run", "spec.toml", "--executor", "inline")
    assert soon(lambda: measured.named("sleep"))  # the node part looks for programs, and the site's own line hangs
    process.send_signal(number)
    done = finished(process)
    assert done.code == 130
    assert done.lines[1:] == ["sweep: interrupted while it started; nothing was measured"]
    assert measured.runs() == []


@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_a_signal_at_the_very_end_leaves_a_whole_archive(measured: House, delay: float) -> None:
    measured.write("go", "")
    process = measured.logged("run", "spec.toml", "--executor", "inline")
    assert soon(lambda: "[3/3]" in measured.said or process.poll() is not None)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    assert finished(process).code in (0, 130)
    assert len(measured.said.splitlines()) <= 6, measured.said
    resumed(measured)
    assert measured.sql("SELECT count(*) FROM attempts") == [(3,)]
    assert measured.sweep("verify").code == 0


def on_terminal(house: House, *words: str) -> tuple[int, str]:
    """Exit code and screen of a command, typed in a terminal, that meets Ctrl-C once its first trial has started."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = house.start(*words, stdin=theirs, stderr=theirs, preexec_fn=take_terminal)
    os.close(theirs)
    assert begun(house)
    os.write(ours, b"\x03")
    screen = b""
    with contextlib.suppress(OSError):  # the other side was closed
        while data := os.read(ours, 65536):
            screen += data
    os.close(ours)
    return finished(process).code, screen.decode()


def test_ctrl_c_in_a_terminal_reaches_us_and_not_the_benchmark(measured: House) -> None:
    code, screen = on_terminal(measured, "run", "spec.toml", "--executor", "inline")
    assert code == 130
    assert "finishing what runs" in screen
    assert measured.sql("SELECT outcome, final FROM attempts") == [("ok", True)]
    resumed(measured)
