"""mpi4py.bench: launches that cover ranges, lone ranks, and the real thing."""

from __future__ import annotations

import os
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from schemas.attempt import Asked, Exit, Line, Outcome, Output, Stream
from schemas.errors import ParseError
from schemas.plan import Combination, Node, Setup, Tool, Trial
from schemas.spec import Level, Way
from tasks import launchers, outcomes
from tasks.benchmarks import get, mpi4py

ROOT = Path(__file__).parent.parent.parent
RECORDED = Path(__file__).parent / "recorded" / "mpi4py"
STACK = ROOT / ".stacks" / "mpich" / "bin"
NODE = Node("node01", cpus=2)
ASKED = Asked("mpi4py", "pingpong", (4, 8, 16), 1, 2, {"iterations": 10})


def trial(operation: str, sizes: tuple[int | None, ...], ranks: int = 2, **parameters: Level) -> Trial:
    defaults = {each.name: each.default for each in mpi4py.parameters}
    setup = Setup(uuid.UUID(int=1), "local", None, "mpiexec", "mpich", {})
    factors = MappingProxyType({"ranks_per_node": ranks})
    combination = Combination("mpi4py", operation, factors, MappingProxyType(defaults | parameters), setup)
    return Trial(uuid.UUID(int=2), combination, sizes, 0, 0, uuid.UUID(int=3), 0, 0)


def output(out: str, asked: Asked = ASKED, err: str = "") -> Output:
    streams = (
        Stream("ranks", 0, "stdout", tuple(Line(at / 10, text) for at, text in enumerate(out.splitlines()))),
        Stream("ranks", 0, "stderr", tuple(Line(at / 10, text) for at, text in enumerate(err.splitlines()))),
    )
    return Output(asked, 0, 1, "exited", (Exit("ranks", 0, 0),), streams)


def recorded(case: str) -> str:
    return (RECORDED / f"{case}.out").read_text()


def test_a_pingpong_repeats_all_sizes_alike() -> None:
    launch = mpi4py.launch(trial("pingpong", (4, 8, 16), iterations=50, warmup=5, array="numpy"), (NODE,))
    assert " ".join(launch.roles[0].argv) == (
        "python3 -m mpi4py.bench pingpong -m 4 -n 16 -a numpy"
        " -l 50 --loop-large 50 --loop-huge 50 -s 5 --skip-large 5 --skip-huge 5"
    )
    assert launch.roles[0].ranks == 2


def test_a_ring_measures_one_size() -> None:
    launch = mpi4py.launch(trial("ringtest", (100,), 3, iterations=50, warmup=0), (NODE,))
    assert " ".join(launch.roles[0].argv) == "python3 -m mpi4py.bench ringtest -n 100 -l 50 -s 0"
    assert launch.roles[0].ranks == 3


def test_a_range_of_powers_of_two_is_one_launch_and_a_gap_makes_another() -> None:
    assert mpi4py.batches("pingpong", (1, 2, 4, 16, 32, 128), {}) == ((1, 2, 4), (16, 32), (128,))
    assert mpi4py.batches("ringtest", (1, 2, 4), {}) == ((1,), (2,), (4,))


@pytest.mark.parametrize(
    ("operation", "size", "ranks", "reason"),
    [
        ("pingpong", 4, 1, "pingpong needs at least 2 ranks, and gets 1"),
        ("pingpong", 4, 3, "pingpong uses 2 ranks, and would leave 1 idle"),
        ("pingpong", 0, 2, "pingpong measures powers of two from 1 to 4294967296 bytes, and 0 is none"),
        ("pingpong", 100, 2, "pingpong measures powers of two from 1 to 4294967296 bytes, and 100 is none"),
        ("pingpong", 2**33, 2, "pingpong measures powers of two from 1 to 4294967296 bytes, and 8589934592 is none"),
        ("ringtest", 0, 3, "ringtest sends at least 1 byte"),
        ("ringtest", None, 3, "ringtest needs a message_size"),
    ],
)
def test_what_it_would_measure_wrongly_is_refused(operation: str, size: int | None, ranks: int, reason: str) -> None:
    assert mpi4py.refuses(operation, size, ranks, {}) == reason


def test_what_it_can_measure_is_not_refused() -> None:
    assert mpi4py.refuses("pingpong", 2**32, 2, {}) is None
    assert mpi4py.refuses("ringtest", 100, 7, {}) is None


def test_lone_ranks_are_seen_by_mpi4pys_own_warning_even_where_the_table_is_cut() -> None:
    warning = (RECORDED / "other-mpi-pingpong.err").read_text()
    one_table = "\n".join(recorded("other-mpi-pingpong").splitlines()[:5])
    parsed, verdict = outcomes.judge(get("mpi4py"), output(one_table, err=warning))
    assert (parsed.measurements, parsed.missing) == ((), (4, 8, 16))
    assert (verdict.outcome, verdict.transient) == (Outcome.FAILED, False)
    assert "different MPI" in verdict.reason


def test_a_bandwidth_that_is_not_size_by_time_is_an_error() -> None:
    with pytest.raises(ParseError, match="bandwidth is not size / time"):
        mpi4py.parse(output(recorded("mpich5-labelled").replace("e-0", "e-1")))


def test_other_samples_than_asked_are_an_error() -> None:
    with pytest.raises(ParseError, match="10 repetitions, where 11 were asked"):
        mpi4py.parse(output(recorded("mpich5-labelled"), replace(ASKED, parameters={"iterations": 11})))


@pytest.mark.parametrize("wrong", [("64 bytes", "65 bytes"), ("50 loops", "51 loops"), (" = ", " = x")])
def test_another_ring_than_asked_is_an_error(wrong: tuple[str, str]) -> None:
    asked = Asked("mpi4py", "ringtest", (64,), 1, 3, {"iterations": 50})
    with pytest.raises(ParseError):
        mpi4py.parse(output(recorded("mpich5-ringtest").replace(*wrong), asked))


def test_the_first_window_begins_with_the_attempt() -> None:
    rows = [each for each in mpi4py.parse(output(recorded("mpich5-labelled"))).measurements if each.metric == "time"]
    assert [(each.t_begin, each.t_end) for each in rows] == [(0.0, 0.2), (0.2, 0.3), (0.3, 0.4)]


@pytest.mark.parametrize(("operation", "sizes", "ranks"), [("pingpong", (1, 2, 4, 8), 2), ("ringtest", (100,), 3)])
def test_the_real_mpi4py_measures_what_was_asked(operation: str, sizes: tuple[int, ...], ranks: int) -> None:
    if not (STACK / "mpiexec").exists():
        pytest.skip(f"no {STACK}/mpiexec")
    launch = mpi4py.launch(trial(operation, sizes, ranks, iterations=5, warmup=1), (NODE,))
    role = replace(launch.roles[0], argv=(str(STACK / "python3"), *launch.roles[0].argv[1:]))
    (process,) = launchers.processes(
        replace(launch, roles=(role,)),
        Way(),
        launcher="mpiexec",
        mpiexec=Tool("mpiexec", str(STACK / "mpiexec")),
        flavour="mpich",
        nodes=(NODE,),
    )
    script = "\n".join([*process.setup, 'exec "$@"'])
    done = subprocess.run(
        ["bash", "-c", script, "run", *process.argv], capture_output=True, text=True, env=dict(os.environ), timeout=120
    )
    parsed, verdict = outcomes.judge(get("mpi4py"), output(done.stdout, launch.asked, done.stderr))
    assert verdict.outcome is Outcome.OK, (verdict, done.stderr)
    assert [each.message_size for each in parsed.measurements if each.metric == "time"] == list(sizes)
