"""The same through a real Ray, started by the command line itself: what it carries, and whatever of it is killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import House, finished, soon
from tests.sweep.test_interrupt import on_terminal

pytestmark = pytest.mark.ray

IMPATIENT = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray notices a dead raylet within seconds instead of a quarter of a minute."""

MEASURE = """#!/bin/bash
echo $1 >> side
case $1 in
  place) env; nice; cat /proc/self/oom_score_adj; pwd ;;
  killed) [ $(grep -c killed side) = 2 ] || exec sleep 300 ;;
  hidden) trap '' HUP; setsid sleep 300 & (setsid setsid sleep 300 &) ; sleep 300 ;;
  quick) true ;;
esac
"""


@pytest.fixture
def measured(house: House) -> House:
    """A program that does what its argument says, beside modules of the user's own that are called like ours."""
    house.write("measure.sh", MEASURE)
    for name in ("tasks", "schemas", "archive", "sweep"):
        house.write(f"{name}.py", "raise SystemExit('the user\\'s own module was imported')")
    return house


@pytest.fixture
def short_folder() -> Iterator[str]:
    """A folder for Ray, whose sockets take no long path."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        yield folder


def ask(house: House, *cases: str, run: str = "") -> None:
    words = ", ".join(f'"{case}"' for case in cases)
    house.spec(
        f'command.argv = "{house.folder}/measure.sh {{case}}"\ncase = [{words}]',
        f'order = "sorted"\nretry = {{ attempts = 3, wait = "0.1s" }}\ntimeout = 250\n{run}',
    )


def ray_processes(house: House) -> set[str]:
    return {seen.name for seen in house.alive()} & {"raylet", "gcs_server"}


def test_a_run_through_ray_is_quiet_neutral_and_survives_its_worker(measured: House, short_folder: str) -> None:
    # whoever looks for a running cluster finds this address, where nobody answers
    Path(short_folder, "ray_current_cluster").write_text("127.0.0.1:9")
    ask(measured, "place", "killed", "quick")
    process = measured.start("run", "spec.toml", env={"RAY_TMPDIR": short_folder, "OMP_PROC_BIND": "close"})
    assert soon(lambda: measured.named("sleep"))
    [strays] = measured.named("sleep")
    for worker in measured.named("ray::converse"):
        worker.send(signal.SIGKILL)
    done = finished(process)
    assert done.code == 0, done.err
    assert not strays.alive

    [run] = measured.runs()
    assert done.out == ""
    plain = [re.sub(r"\d+\.\d\d s", "N s", line) for line in done.lines]
    assert plain == [
        f"run {run} in {measured.archive}",
        "3 trials, 3 points",
        "[1/3] command.run case=place #1: ok in N s",
        "[1/3] command.run case=killed #1: lost: " + plain[3].partition(": lost: ")[2],
        "trying again in 0 s",
        "[2/3] command.run case=killed #1: attempt 2: ok in N s",
        "[3/3] command.run case=quick #1: ok in N s",
        f"run {run}: 3 ok; 1 attempts tried again; archive {measured.archive}",
    ]
    assert measured.sql("SELECT outcome, final FROM attempts ORDER BY start") == [
        *(("ok", True), ("lost", False), ("ok", True), ("ok", True))
    ]
    [(text, notes)] = measured.sql(
        "SELECT text, notes FROM outputs JOIN attempts USING (attempt_id) "
        "WHERE factors['case'] = 'place' AND stream = 'stdout'"
    )
    *variables, nice, score, folder = text.splitlines()
    names = {line.partition("=")[0] for line in variables}
    assert not {name for name in names if name.startswith("RAY_") and name not in os.environ} - {"RAY_TMPDIR"}
    assert "OMP_PROC_BIND=close" in variables
    assert ("OMP_NUM_THREADS" in names) == ("OMP_NUM_THREADS" in os.environ)
    assert (nice, folder, notes) == (str(os.getpriority(os.PRIO_PROCESS, 0)), str(measured.folder), [])
    assert score == Path("/proc/self/oom_score_adj").read_text().strip()


def test_a_dead_raylet_ends_the_run_with_3_and_a_line_and_leaves_nothing(measured: House) -> None:
    ask(measured, "hidden", "quick")
    process = measured.start("run", "spec.toml", env=IMPATIENT)
    assert soon(lambda: len(measured.named("sleep")) == 3)
    [raylet] = measured.named("raylet")
    raylet.send(signal.SIGKILL)
    assert soon(lambda: not measured.named("sleep"))
    done = finished(process)
    [run] = measured.runs()
    assert done.code == 3, done.err
    assert done.lines[-1] == (
        "the Ray cluster is lost: its raylet on this machine or its head has died; "
        f"go on with: sweep resume {run} --archive {measured.archive}"
    )
    assert len(done.lines) == 5, done.err
    assert soon(lambda: not measured.alive())
    assert measured.sql("SELECT outcome, final FROM attempts") == [("lost", False)]
    measured.write("measure.sh", "#!/bin/bash\ntrue")
    assert measured.sweep("resume", "--executor", "inline").code == 0
    assert measured.sql("SELECT outcome, attempt FROM attempts ORDER BY start") == [("lost", 1), ("ok", 2), ("ok", 1)]


def test_a_killed_driver_leaves_neither_ray_nor_a_benchmark(measured: House) -> None:
    ask(measured, "hidden")
    process = measured.start("run", "spec.toml")
    assert soon(lambda: len(measured.named("sleep")) == 3)
    process.kill()
    finished(process)
    assert soon(lambda: not measured.alive())


def test_ctrl_c_while_ray_starts_ends_it_at_once(measured: House) -> None:
    ask(measured, "quick")
    process = measured.start("run", "spec.toml")
    assert soon(lambda: ray_processes(measured) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    done = finished(process)
    assert done.code == 130
    assert done.lines[1:] == ["sweep: interrupted while it started; nothing was measured"]
    assert soon(lambda: not measured.alive())
    assert measured.runs() == []


def test_ctrl_c_in_a_terminal_lets_ray_and_the_benchmark_come_to_their_end(measured: House) -> None:
    measured.write("measure.sh", "#!/bin/bash\necho $1 >> side\nsleep 1")
    ask(measured, "one", "two")
    code, screen = on_terminal(measured, "run", "spec.toml")
    assert code == 130
    assert "finishing what runs" in screen
    assert measured.sql("SELECT outcome, final FROM attempts") == [("ok", True)]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nobody.invalid:6379", "no address"])
def test_an_address_where_no_cluster_is_ends_with_3_and_one_line(
    measured: House, short_folder: str, address: str
) -> None:
    ask(measured, "quick")
    process = measured.start("run", "spec.toml", "--address", address, env={"RAY_TMPDIR": short_folder})
    done = finished(process)
    assert done.code == 3
    [line] = done.lines[1:]
    assert line.startswith("sweep: ")
    assert address in line


def test_something_else_that_listens_at_the_address_is_no_cluster(measured: House) -> None:
    ask(measured, "quick")
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = measured.start("run", "spec.toml", "--address", f"127.0.0.1:{server.getsockname()[1]}")
        assert soon(lambda: measured.named("python"))
        process.send_signal(signal.SIGTERM)
        assert finished(process).code == 130
