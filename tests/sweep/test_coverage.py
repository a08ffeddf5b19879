"""What a plan does with the nodes: launches per node, node-hours, and whether one may fail."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive.where import keep
from schemas.plan import Inventory, Node, Plan
from schemas.spec import Level, RunPolicy, Spec
from sweep.cost import estimate
from sweep.coverage import coverage, warning
from sweep.expand import expand
from tests.house import House

CLUSTER = "".join(f'[[nodes]]\nname = "n{number}"\n' for number in (1, 2, 3, 4))

AS_USUAL = RunPolicy()


def planned(nodes: tuple[Level, ...], placement: str, total: int, run: RunPolicy = AS_USUAL) -> tuple[Plan, Inventory]:
    factors: dict[str, tuple[Level, ...]] = {
        "benchmark": ("command.run",),
        "nodes": nodes,
        "placement": (placement,),
        "command.argv": ("ls",),
        "command.launcher": ("mpiexec",),
    }
    have = Inventory(nodes=tuple(Node(f"n{number}") for number in range(total)))
    return expand(Spec("coverage", factors, run=run), have, keep, 1), have


@given(st.lists(st.integers(1, 6), min_size=1, unique=True), st.sampled_from(["first", "random", "cover"]))
def test_shares_add_up_to_the_nodes_of_all_launches_and_held_is_never_less_than_used(
    counts: list[int], placement: str
) -> None:
    plan, have = planned(tuple(counts), placement, 5)
    covered = coverage(plan, have)
    assert covered is not None
    launched = [trial for trial in plan.trials if trial.unsupported is None]
    assert sum(covered.launches.values()) == sum(trial.combination.nodes for trial in launched)
    assert covered.used_s <= covered.held_s == pytest.approx(5 * sum(map(estimate, launched)))
    assert covered.unused == tuple(name for name, count in covered.launches.items() if count == 0)
    assert placement != "cover" or not launched or not covered.unused


def test_trials_side_by_side_use_no_particular_nodes() -> None:
    plan, have = planned((1, 2), "first", 3, RunPolicy(concurrency="disjoint"))
    covered = coverage(plan, have)
    assert covered is not None
    assert (covered.anywhere, covered.unused) == (2, ())


def test_a_cluster_without_names_has_no_coverage() -> None:
    plan, _ = planned((1, 2), "first", 3)
    assert coverage(plan, Inventory()) is None
    assert warning(plan, None) is None


@pytest.mark.parametrize(("total", "warned"), [(1, False), (2, True), (3, False)])
def test_only_a_launch_that_needs_every_one_of_several_nodes_is_warned_of(total: int, warned: bool) -> None:
    plan, have = planned((1, 2), "first", total)
    assert (warning(plan, coverage(plan, have)) is not None) == warned


def test_the_command_prints_launches_per_node_unused_nodes_and_node_hours(house: House) -> None:
    cluster = house.write("cluster.toml", CLUSTER)
    spec = house.spec('nodes = [1, 2]\ncommand.launcher = "mpiexec"\ncommand.argv = "ls"')
    done = house.sweep("plan", spec, "--inventory", cluster)
    assert done.code == 0, done.err
    assert "  coverage   n2: 1 launch; n1: 2 launches\n  unused     n3, n4\n  node-hours about " in done.out
    assert "warning" not in done.err
    covered = json.loads(house.sweep("plan", spec, "--inventory", cluster, "-f", "json").out)["coverage"]
    assert covered["launches"] == {"n1": 2, "n2": 1, "n3": 0, "n4": 0}
    assert covered["spare"] == 2
    assert covered["held_s"] > covered["used_s"] > 0


def test_the_command_warns_where_no_node_is_spare(house: House) -> None:
    cluster = house.write("cluster.toml", CLUSTER)
    done = house.sweep(
        "plan", house.spec('nodes = [2, 4]\ncommand.launcher = "mpiexec"\ncommand.argv = "ls"'), "--inventory", cluster
    )
    assert done.code == 0
    [line] = done.lines
    assert line.startswith("warning: nodes = 4 leaves no spare node: once one of the 4 is lost or quarantined, ")
