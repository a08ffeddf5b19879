"""Launches over several nodes and NICs, in a lab: real Ray nodes, real MPI, real traffic; only the rate is small."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sweep import lab
from tests.house import House, soon

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STACKS = f"""
[levels.stack.impi]
path = ["{ROOT}/.venv/bin"]
env = {{ I_MPI_FABRICS = "ofi", FI_PROVIDER = "tcp" }}
[levels.stack.mpich]
path = ["{ROOT}/.stacks/mpich/bin", "{ROOT}/.venv/bin"]
env = {{ UCX_TLS = "tcp,self" }}
"""
RANKS = 'command.launcher = "mpiexec"\nstack = "mpich"'
ONCE = 'timeout = 60\nretry = { attempts = 1, wait = "1s..2s" }'


@pytest.fixture(scope="module")
def fabric() -> Iterator[str]:
    """Three hosts with two NICs each; a head that notices soon when one of them is gone."""
    name = f"gangs{os.getpid()}"
    before = {key: os.environ.get(key) for key in ("RAY_health_check_period_ms", "RAY_health_check_failure_threshold")}
    os.environ.update(RAY_health_check_period_ms="500", RAY_health_check_failure_threshold="4")
    try:
        lab.up(nodes=3, nics=2, rate="400mbit", name=name)
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
    yield name
    lab.down(name)


@pytest.fixture
def house(house: House, fabric: str) -> House:
    """A working directory whose runs happen in the lab."""
    return house


def run(house: House, fabric: str, spec: Path, code: int = 0) -> str:
    """`sweep lab run` to its end; the run's id."""
    done = house.sweep("lab", "run", "--name", fabric, spec, "--archive", house.archive)
    assert done.code == code, done.err
    return str(re.findall(r"^run (r\S+) in ", done.err, re.MULTILINE)[0])


def rows(house: House, run_id: str, text: str) -> list[tuple[Any, ...]]:
    return house.sql(text.replace("WHERE", f"WHERE run = '{run_id}' AND", 1))


def test_ranks_run_on_two_and_three_nodes_under_mpich_and_intel_mpi(house: House, fabric: str) -> None:
    factors = 'benchmark = "imb.allreduce"\nmessage_size = [1024, 65536]\nnodes = [2, 3]\nimb.iterations = 10'
    spec = house.spec(f'{factors}\nstack = ["mpich", "impi"]', ONCE, STACKS)
    ran = run(house, fabric, spec)
    found = rows(house, ran, 'SELECT stack, nodes, outcome, node_names, "left" FROM attempts WHERE true ORDER BY ALL')
    assert [(stack, nodes) for stack, nodes, *_ in found] == [("impi", 2), ("impi", 3), ("mpich", 2), ("mpich", 3)]
    for _, nodes, outcome, names, left in found:
        assert outcome == "ok"
        assert names == [f"node{number}" for number in range(1, nodes + 1)]
        assert left == []
    nodes = rows(house, ran, "SELECT node, address FROM nodes WHERE true ORDER BY ALL")
    assert nodes == [(f"node{number}", f"10.77.0.{number}") for number in (1, 2, 3)], "the head is no node of the sweep"
    columns = "facts['clock_offset_s']::DOUBLE, facts['clock_round_trip_s']::DOUBLE"
    clocks = rows(house, ran, f"SELECT {columns} FROM nodes WHERE true")
    assert len(clocks) == 3
    assert all(abs(ahead) <= took / 2 + 1e-3 for ahead, took in clocks), "they share one machine's clock"
    measured = rows(house, ran, "SELECT count(DISTINCT (stack, nodes, message_size)) FROM results WHERE time > 0")
    assert measured == [(8,)]


def test_a_second_nic_pays_off_and_the_counters_prove_which_were_used(house: House, fabric: str) -> None:
    sizes, iterations = [1 << 20, 4 << 20], 10
    factors = f'benchmark = "imb.pingpong"\nmessage_size = {sizes}\nnodes = 2\nnics = [1, 2]\nstack = "mpich"'
    spec = house.spec(f"{factors}\nimb.iterations = {iterations}", f"repeats = 2\n{ONCE}", STACKS)
    ran = run(house, fabric, spec)
    text = "SELECT nics, max(bandwidth), list(DISTINCT nics_observed) FROM results WHERE message_size = 4194304"
    one, two = rows(house, ran, f"{text} GROUP BY nics ORDER BY nics")
    assert (one[0], two[0]) == (1, 2)
    assert (one[2], two[2]) == ([1], [2])
    assert two[1] >= 1.5 * one[1]
    held = rows(house, ran, "SELECT DISTINCT nics, nic_set FROM attempts WHERE true ORDER BY nics")
    assert held == [
        (1, ["node1 nic0", "node2 nic0"]),
        (2, ["node1 nic0", "node1 nic1", "node2 nic0", "node2 nic1"]),
    ]
    # each size runs an unmeasured pass, two warm-up messages or so, and the measured pass
    payload = sum(sizes) * (2 * iterations + 2)
    for traffic, nics in rows(house, ran, "SELECT traffic, nics FROM attempts WHERE true"):
        moved = {(each["node"], each["nic"]): each["tx_bytes"] for each in traffic}
        for node in ("node1", "node2"):
            total = moved[node, "nic0"] + moved[node, "nic1"]
            assert abs(total / payload - 1) <= 0.10
            assert nics == 2 or moved[node, "nic1"] < 0.01 * total
    assert {each for (each,) in rows(house, ran, "SELECT evidence FROM measurements WHERE message_size > 0")} == {
        "counted"
    }


def test_ranks_with_a_nic_each_say_where_they_ran_on_which_cpus_and_with_which_nic(house: House, fabric: str) -> None:
    factors = 'benchmark = "imb.allreduce"\nmessage_size = 65536\nnodes = 2\nranks_per_node = 2\nnics = 2'
    spec = house.spec(f'{factors}\nstack = "impi"\nimb.iterations = 5', ONCE, STACKS)
    ran = run(house, fabric, spec)
    [(evidence,)] = rows(house, ran, "SELECT evidence FROM attempts WHERE outcome = 'ok'")
    for rank, node, nic in ((0, "node1", 0), (1, "node1", 1), (2, "node2", 0), (3, "node2", 1)):
        assert evidence[f"rank {rank} node"] == node
        assert re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", evidence[f"rank {rank} cpus"])
        assert evidence[f"rank {rank} FI_TCP_IFACE"] == f"nic{nic}"
    assert "sweep-rank" not in rows(house, ran, "SELECT string_agg(text, '') FROM outputs WHERE true")[0][0]


def test_a_stack_that_uses_one_nic_where_two_were_asked_is_caught(house: House, fabric: str) -> None:
    """The site says that level 2 is run so; it is a lie, and the row must not carry the label into a result."""
    factors = (
        'benchmark = "imb.pingpong"\nmessage_size = 1048576\nnodes = 2\nnics = 2\nstack = "mpich"\nimb.iterations = 5'
    )
    lie = '[levels.nics.2]\nenv = { UCX_NET_DEVICES = "nic1" }'
    spec = house.spec(factors, ONCE, STACKS + lie)
    done = house.sweep("lab", "run", "--name", fabric, spec, "--archive", house.archive)
    assert done.code == 0, done.err
    assert "warning: 2 NICs were asked, the counters of node1 show 1" in done.err
    assert house.sql("SELECT count(*) FROM results") == [(0,)]
    [(nics, observed, hidden)] = house.sql("SELECT nics, nics_observed, hidden FROM results_all")
    assert (nics, observed) == (2, 1)
    assert "2 NICs were asked, 1 observed" in hidden


def test_more_nics_or_nodes_than_there_are_is_unsupported_before_anything_runs(house: House, fabric: str) -> None:
    factors = 'benchmark = "imb.allreduce"\nmessage_size = 64\nnodes = [2, 4]\nnics = 3\nstack = "mpich"'
    ran = run(house, fabric, house.spec(factors, ONCE, STACKS), code=3)
    reasons = dict(rows(house, ran, "SELECT nodes, reason FROM attempts WHERE outcome = 'unsupported'"))
    assert "needs 3 NICs" in reasons[2]
    assert "needs 4 nodes" in reasons[4]


def test_disjoint_trials_run_side_by_side_and_never_share_a_node(house: House, fabric: str) -> None:
    factors = "nodes = 1\nbatch = [1, 2, 3, 4, 5, 6]\ncommand.argv = \"bash -c 'sleep 0.7; echo {batch}'\""
    ran = run(house, fabric, house.spec(factors, 'concurrency = "disjoint"\ncounters = "100ms"'))
    columns = "node_names[1], epoch(start), epoch(start) + elapsed_s, len(beside)"
    text = f"SELECT {columns} FROM attempts WHERE true ORDER BY start"
    found = rows(house, ran, text)
    assert {node for node, *_ in found} == {"node1", "node2", "node3"}
    assert max(beside for *_, beside in found) >= 2
    for node in ("node1", "node2", "node3"):
        for (_, _, end, _), (_, begin, _, _) in pairwise(each for each in found if each[0] == node):
            assert begin >= end
    wall = max(end for _, _, end, _ in found) - min(begin for _, begin, _, _ in found)
    assert wall < 0.8 * sum(end - begin for _, begin, end, _ in found)
    assert rows(house, ran, "SELECT count(*) > 0, bool_and(len(elapsed) > 3) FROM counters WHERE true") == [
        (True, True)
    ]


def test_two_sweeps_on_one_cluster_never_share_a_node_at_the_same_time(house: House, fabric: str) -> None:
    factors = "nodes = 3\nbatch = [1, 2]\ncommand.argv = \"bash -c 'sleep 2; echo {batch}'\""
    spec = house.spec(f"{factors}\n{RANKS}", "", STACKS)
    words = ("lab", "run", "--name", fabric, spec, "--archive", house.archive)
    both = [house.start(*words) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert any(re.search(r"waiting for node \S+: a sweep of \w+@head, process \d+ holds it", text) for text in said), (
        said
    )
    spans = house.sql("SELECT min(epoch(start)), max(epoch(start) + elapsed_s) FROM attempts GROUP BY run ORDER BY 1")
    assert len(spans) == 2
    assert spans[0][1] <= spans[1][0]


def test_a_user_s_own_modules_on_the_cluster_change_nothing(house: House, fabric: str) -> None:
    for name in ("tasks.py", "schemas.py", "archive.py", "sweep.py"):
        house.write(name, "raise SystemExit('the wrong module')")
    run(house, fabric, house.spec(f'nodes = 2\n{RANKS}\ncommand.argv = "echo fine"', "", STACKS))


def test_a_node_that_dies_in_the_middle_is_lost_and_the_rest_resumes_without_it(house: House, fabric: str) -> None:
    """The last test but one, for the lab has a node less after it."""
    factors = (
        'nodes = [3, 1]\ncommand.launcher = "mpiexec"\nstack = "mpich"\ncommand.argv = "bash -c \'sleep 8; echo done\'"'
    )
    spec = house.spec(factors, f'order = "sorted"\n{ONCE}', STACKS)
    process = house.start("lab", "run", "--name", fabric, spec, "--archive", house.archive)

    def ranks() -> list[int]:
        host = set(lab.pids(fabric, "node3"))
        return [pid for pid in host if "sleep 8" in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")]

    assert soon(ranks, 60.0)
    time.sleep(0.5)
    os.kill(lab.pids(fabric, "node3")[0], signal.SIGKILL)
    said = process.communicate(timeout=120)[1]
    assert process.returncode in (1, 3), said  # mpiexec may notice before Ray does, and fail
    assert "Traceback" not in said
    [(outcome, reason)] = house.sql("SELECT outcome, reason FROM attempts WHERE nodes = 3")
    assert outcome in ("lost", "failed"), reason
    done = house.sweep("lab", "run", "--name", fabric, spec, "--archive", house.folder / "second")
    assert done.code == 0, done.err
    assert "needs 3 nodes" in done.err


def test_a_node_that_is_cut_off_is_lost_within_the_deadline(house: House, fabric: str) -> None:
    """The last test here, for the lab has another node less after it."""
    factors = (
        'nodes = 2\ncommand.launcher = "mpiexec"\nstack = "mpich"\ncommand.argv = "bash -c \'sleep 30; echo done\'"'
    )
    spec = house.spec(factors, ONCE, STACKS)

    def ranks() -> list[int]:
        commands = {
            pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in lab.pids(fabric, "node2")
        }
        return [pid for pid, command in commands.items() if "sleep 30" in command]

    process = house.start("lab", "run", "--name", fabric, spec, "--archive", house.archive)
    assert soon(ranks, 60.0)
    lab.link(fabric, "node2", up=False)
    try:
        said = process.communicate(timeout=150)[1]
    finally:
        lab.link(fabric, "node2", up=True)
    assert process.returncode == 3, said
    assert "node2" in said
    [(outcome,)] = house.sql("SELECT outcome FROM attempts")
    assert outcome == "lost", said
    assert soon(lambda: not ranks(), 30.0), "a node that nobody reaches any more clears itself"
