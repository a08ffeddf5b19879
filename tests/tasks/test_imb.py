"""IMB-MPI1: what is launched, what is refused, and the real binary under both launchers."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from schemas.attempt import Asked, Exit, Launch, Line, Outcome, Output, Stream
from schemas.errors import ParseError
from schemas.plan import Combination, Node, Setup, Tool, Trial
from schemas.spec import Level, Way
from tasks import launchers, outcomes
from tasks.benchmarks import get, imb

ROOT = Path(__file__).parent.parent.parent
RECORDED = Path(__file__).parent / "recorded" / "imb"
STACKS = {"intelmpi": Path(sys.executable).parent, "mpich": ROOT / ".stacks" / "mpich" / "bin"}
NODE = Node("node01", cpus=2)

Sizes = tuple[int | None, ...]


def trial(operation: str, sizes: Sizes, ranks: int = 2, **parameters: Level) -> Trial:
    defaults = {each.name: each.default for each in imb.parameters}
    setup = Setup(uuid.UUID(int=1), "local", None, "mpiexec", "mpich", {})
    factors = MappingProxyType({"ranks_per_node": ranks})
    combination = Combination("imb", operation, factors, MappingProxyType(defaults | parameters), setup)
    return Trial(uuid.UUID(int=2), combination, sizes, 0, 0, uuid.UUID(int=3), 0, 0)


def recorded(case: str) -> list[str]:
    return (RECORDED / f"{case}.out").read_text().splitlines()


def output(lines: list[str], asked: Asked, step: float = 0.01, *, truncated: bool = False) -> Output:
    stamped = tuple(Line(at * step, text) for at, text in enumerate(lines))
    return Output(asked, 0, 1, "exited", (Exit("ranks", 0, 0),), (Stream("ranks", 0, "stdout", stamped, 0, truncated),))


PINGPONG = Asked("imb", "pingpong", (0, 4, 64, 1024, 16384), 1, 2, {"iterations": 20})


def test_one_launch_measures_exactly_the_listed_sizes() -> None:
    launch = imb.launch(trial("reduce_scatter", (4, 1000, 4096), 3, iterations=50, warmup=False, memory=2.5), (NODE,))
    assert " ".join(launch.roles[0].argv) == (
        "IMB-MPI1 Reduce_scatter -npmin 3 -iter 50 -iter_policy off -warm_up off -mem 2.5 -time 1000000"
        " -msglog 0:30 -msglen {files}/sizes"
    )
    assert (launch.roles[0].ranks, launch.roles[0].nodes) == (3, (0,))
    assert launch.files == {"sizes": "4\n1000\n4096\n"}
    assert imb.batches("allreduce", (4, 1000, 4096), {}) == ((4, 1000, 4096),)
    assert imb.batches("allreduce", (), {}) == ()


def test_an_operation_without_sizes_needs_no_list() -> None:
    launch = imb.launch(trial("barrier", (None,)), (NODE,))
    assert "-msglen" not in launch.roles[0].argv
    assert not launch.files


@pytest.mark.parametrize(
    ("operation", "size", "ranks", "reason"),
    [
        ("pingpong", 4, 1, "PingPong needs at least 2 ranks, and gets 1"),
        ("pingpong", 4, 4, "PingPong uses 2 ranks, and would leave 2 idle"),
        ("uniband", 4, 3, "Uniband pairs its ranks, and 3 is odd"),
        ("allreduce", 6, 2, "Allreduce adds floats, and 6 is no multiple of 4 bytes"),
        ("allreduce", None, 2, "Allreduce needs a message_size"),
        ("bcast", 2**30 + 1, 2, "IMB measures up to 1073741824 bytes, and 1073741825 is more"),
        ("alltoall", 2**30, 2, "1073741824 bytes on 2 ranks are more elements than IMB can count (2147483647)"),
        ("allgather", 2**24, 100, "16777216 bytes need 1.6 GiB of buffers per rank; imb.memory allows 1"),
        ("barrier", None, 1, "Barrier needs at least 2 ranks, and gets 1"),
    ],
)
def test_what_imb_would_measure_wrongly_is_refused(operation: str, size: int | None, ranks: int, reason: str) -> None:
    assert imb.refuses(operation, size, ranks, {"memory": 1.0}) == reason


@pytest.mark.parametrize(
    ("operation", "size", "ranks"),
    [("pingpong", 0, 2), ("reduce_local", 4, 1), ("allreduce", 2**29, 64), ("bcast", 7, 3), ("barrier", None, 3)],
)
def test_what_imb_can_measure_is_not_refused(operation: str, size: int | None, ranks: int) -> None:
    assert imb.refuses(operation, size, ranks, {"memory": 1.0}) is None


def test_the_window_of_a_size_is_from_the_row_before_it_and_the_first_from_the_banner() -> None:
    lines = recorded("mpich5-pingpong")
    banner = lines.index("# PingPong")
    first = next(at for at, line in enumerate(lines) if line.split()[:2] == ["0", "20"])
    rows = [each for each in imb.parse(output(lines, PINGPONG)).measurements if each.metric == "time"]
    windows = [(round(each.t_begin or 0, 2), round(each.t_end or 0, 2)) for each in rows]
    assert windows[0] == (banner / 100, first / 100)
    assert windows[1:] == [(at / 100, (at + 1) / 100) for at in range(first, first + 4)]


def test_other_repetitions_than_asked_are_an_error() -> None:
    with pytest.raises(ParseError, match="20 repetitions, where 21 were asked"):
        imb.parse(output(recorded("mpich5-pingpong"), replace(PINGPONG, parameters={"iterations": 21})))


def test_a_size_that_was_not_asked_is_an_error() -> None:
    with pytest.raises(ParseError, match="size 64 was not asked"):
        imb.parse(output(recorded("mpich5-pingpong"), replace(PINGPONG, sizes=(0, 4, 1024, 16384))))


def test_ranks_in_the_wrong_order_are_an_error() -> None:
    lines = recorded("mpich5-reduce_local")
    at = next(at for at, line in enumerate(lines) if line.split()[:1] == ["16384"])
    size, repetitions, fastest, slowest, mean = lines[at].split()
    lines[at] = f"{size} {repetitions} {slowest} {fastest} {mean}"
    asked = replace(PINGPONG, operation="reduce_local")
    with pytest.raises(ParseError, match="fastest, mean and slowest rank"):
        imb.parse(output(lines, asked))


def test_the_last_line_of_a_cut_output_is_no_row() -> None:
    lines = recorded("mpich5-pingpong")
    end = next(at for at, line in enumerate(lines) if line.split()[:1] == ["1024"]) + 1
    assert imb.parse(output(lines[:end], PINGPONG)).missing == (16384,)
    assert imb.parse(output(lines[:end], PINGPONG, truncated=True)).missing == (1024, 16384)


def test_a_row_that_a_death_cut_short_leaves_the_rows_before_it() -> None:
    lines = recorded("mpich5-pingpong")
    end = next(at for at, line in enumerate(lines) if line.split()[:1] == ["1024"])
    died = [*lines[:end], lines[end][:-3], "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "=   PID 7"]
    assert imb.parse(output(died, PINGPONG)).missing == (1024, 16384)


def test_defects_that_imbs_own_check_finds_are_wrong() -> None:
    """No wheel brings a build with its check; source: IMB_output.c appends one column to header and rows."""
    lines = recorded("mpich5-pingpong")
    at = next(at for at, line in enumerate(lines) if "#bytes" in line)
    lines[at] += "      defects"
    lines[at + 1 : at + 6] = [
        f"{line}         {defects}" for line, defects in zip(lines[at + 1 :], ("0.00",) * 4 + ("3.00",), strict=False)
    ]
    parsed = imb.parse(output(lines, PINGPONG))
    assert [each.value for each in parsed.measurements if each.metric == "defects"] == [0, 0, 0, 0, 3]
    assert parsed.wrong == "IMB's own check found defects at 16384 bytes: 3"
    _, verdict = outcomes.judge(get("imb"), output(lines, PINGPONG))
    assert (verdict.outcome, verdict.transient) == (Outcome.WRONG, False)


def test_facts_name_the_versions_and_the_provider() -> None:
    asked = replace(PINGPONG, sizes=(4, 8, 1024), parameters={"iterations": 10})
    evidence = imb.parse(output(recorded("intel2021.18-debug"), asked)).evidence
    assert evidence.level == "initialised"
    assert evidence.facts == {
        "imb": "2021.11",
        "mpi_standard": "4.1",
        "intel_mpi": "2021.18.1",
        "libfabric_provider": "tcp",
    }


# the real binary


def run(launch: Launch, stack: str, files: Path) -> Output:
    """Run a launch as a node part would, every line stamped with its number."""
    mpiexec = STACKS[stack] / "mpiexec"
    binary = STACKS["intelmpi"] / "IMB-MPI1"
    if not mpiexec.exists() or not binary.exists():
        pytest.skip(f"no {mpiexec} or no {binary}")
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=True).stdout
    role = replace(launch.roles[0], argv=(str(binary), *launch.roles[0].argv[1:]))
    (process,) = launchers.processes(
        replace(launch, roles=(role,)),
        Way(),
        launcher="mpiexec",
        mpiexec=Tool("mpiexec", str(mpiexec), said),
        flavour=launchers.flavour(said),
        nodes=(NODE,),
    )
    assert launchers.flavour(said) == stack
    for name, text in launch.files.items():
        (files / name).write_text(text)
    argv = [word.replace("{files}", str(files)) for word in process.argv]
    script = "\n".join([*process.setup, 'exec "$@"'])
    env = {**os.environ, **process.env}
    done = subprocess.run(["bash", "-c", script, "run", *argv], capture_output=True, text=True, env=env, timeout=120)
    out = Stream("ranks", 0, "stdout", tuple(Line(float(at), text) for at, text in enumerate(done.stdout.splitlines())))
    err = Stream("ranks", 0, "stderr", tuple(Line(float(at), text) for at, text in enumerate(done.stderr.splitlines())))
    return Output(launch.asked, 0, 1, "exited", (Exit("ranks", 0, done.returncode),), (out, err))


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    ("operation", "sizes", "metrics"),
    [
        ("pingpong", (0, 1, 1000, 4096, 8 << 20), {"time", "bandwidth"}),
        ("allreduce", (4, 12, 1000, 65536), {"time", "time_min", "time_max"}),
        ("barrier", (None,), {"time", "time_min", "time_max"}),
        ("biband", (8, 4096), {"bandwidth", "message_rate"}),
    ],
)
def test_the_real_imb_measures_what_was_asked(
    stack: str, operation: str, sizes: Sizes, metrics: set[str], tmp_path: Path
) -> None:
    parsed, verdict = outcomes.judge(
        get("imb"), run(imb.launch(trial(operation, sizes, iterations=5), (NODE,)), stack, tmp_path)
    )
    assert verdict.outcome is Outcome.OK, verdict
    assert parsed.missing == ()
    assert {each.metric for each in parsed.measurements} == metrics
    assert [each.message_size for each in parsed.measurements if each.metric == min(metrics)] == list(sizes)
    assert all(each.samples == 5 for each in parsed.measurements)


@pytest.mark.parametrize("stack", STACKS)
def test_the_real_imb_with_a_list_that_is_not_there_fails_though_it_exits_with_0(stack: str, tmp_path: Path) -> None:
    launch = replace(imb.launch(trial("pingpong", (4, 8), iterations=5), (NODE,)), files={})
    given = run(launch, stack, tmp_path)
    _, verdict = outcomes.judge(get("imb"), given)
    assert given.exits[0].exit_code == 0
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("IMB-MPI1 cannot read its list of sizes")
