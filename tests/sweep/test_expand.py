"""Planning: pure expansion, coalescing, identities, blocks and their order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archive.where import keep
from schemas.errors import InputError
from schemas.plan import Inventory, Nic, Node, Plan, Tool, Trial
from schemas.spec import Level, Repeats, RunPolicy, Site, Spec, Way
from sweep.expand import expand, point_id, williams

FACTORS: Mapping[str, tuple[Level, ...]] = {
    "benchmark": ("imb.allreduce", "imb.pingpong"),
    "message_size": (4, 8, 16, 4096),
    "ranks_per_node": (2, 4),
}


def spec(factors: Mapping[str, Sequence[Level]] = FACTORS, **more: object) -> Spec:
    return Spec(name="t", factors={name: tuple(levels) for name, levels in factors.items()}, **more)  # type: ignore[arg-type]


def plan(asked: Spec, inventory: Inventory | None = None, seed: int = 1) -> Plan:
    return expand(asked, inventory if inventory is not None else Inventory(), keep, seed)


def launched(made: Plan) -> list[Trial]:
    return [trial for trial in made.trials if trial.unsupported is None]


def test_all_message_sizes_of_a_combination_share_one_launch() -> None:
    made = plan(spec())
    assert {trial.sizes for trial in launched(made)} == {(4, 8, 16, 4096)}
    assert made.points == 16
    assert len(made.trials) == 4
    assert made.launches_saved == 9, "a ping-pong of four ranks is not launched, so nothing is saved there"


def test_a_barrier_has_no_message_size() -> None:
    made = plan(spec({**FACTORS, "benchmark": ("imb.barrier",)}))
    assert {trial.sizes for trial in made.trials} == {(None,)}
    assert made.points == 2


def test_where_keeps_single_points_and_only_those_are_launched() -> None:
    made = plan(spec(where="message_size <= 8 OR ranks_per_node = 4"))
    sizes = {(trial.combination.ranks_per_node, trial.sizes) for trial in launched(made)}
    assert sizes == {(2, (4, 8)), (4, (4, 8, 16, 4096))}
    assert made.excluded == 4


def test_where_may_name_a_factor_that_is_at_its_default() -> None:
    assert plan(spec(where="nodes = 1")).excluded == 0


def test_an_empty_grid_is_an_error_that_names_the_where() -> None:
    with pytest.raises(InputError, match=r"the grid is empty.*nodes > 7"):
        plan(spec(where="nodes > 7"))


def test_an_include_adds_a_combination_outside_the_grid_and_inside_it_nothing() -> None:
    factors = {**FACTORS, "benchmark": ("imb.allreduce",)}
    outside = plan(spec(factors, include=({"ranks_per_node": (8,)},)))
    assert Counter(trial.combination.ranks_per_node for trial in outside.trials) == {2: 1, 4: 1, 8: 1}
    inside = plan(spec(factors, include=({"ranks_per_node": (4,)},)))
    assert len(inside.trials) == 2
    assert inside.points == 8


def test_a_factor_that_an_include_does_not_name_keeps_all_its_levels() -> None:
    made = plan(
        spec({**FACTORS, "benchmark": ("imb.allreduce",), "sharp": ("off", "on")}, include=({"ranks_per_node": (8,)},))
    )
    added = [trial for trial in made.trials if trial.combination.ranks_per_node == 8]
    assert {trial.combination.level("sharp") for trial in added} == {"off", "on"}


CLUSTER = Inventory(nodes=tuple(Node(f"n{index}") for index in range(5)))


def test_cover_launches_once_per_node_set_and_each_is_a_trial_of_its_own() -> None:
    made = plan(spec({**FACTORS, "benchmark": ("imb.allreduce",), "nodes": (2,), "placement": ("cover",)}), CLUSTER)
    assert {(trial.slot, trial.members) for trial in made.trials} == {(0, (0, 1)), (1, (2, 3)), (2, (3, 4))}
    assert len({trial.trial_id for trial in made.trials}) == len(made.trials) == 6
    assert len({point_id(trial.combination, 8) for trial in made.trials}) == 2, "which nodes is no part of the question"


def test_paired_levels_share_their_nodes() -> None:
    factors: dict[str, tuple[Level, ...]] = {**FACTORS, "nodes": (2,), "placement": ("pairs",), "env.X": (1, 2)}
    made = plan(spec(factors, run=RunPolicy(pair=("env.X",))), CLUSTER)
    for _, members in groupby(made.trials, key=lambda trial: trial.block):
        assert len({trial.members for trial in members}) == 1
    pairs = {trial.members for trial in made.trials if trial.unsupported is None}
    assert len(pairs) == 10


def test_a_placement_that_needs_a_topology_is_unsupported_without_one() -> None:
    made = plan(spec({**FACTORS, "nodes": (2,), "placement": ("spread",)}), CLUSTER)
    assert all("leaf switch" in str(trial.unsupported) for trial in made.trials)


def test_parameters_of_one_benchmark_do_not_multiply_another() -> None:
    factors: dict[str, tuple[Level, ...]] = {
        "benchmark": ("imb.allreduce", "mpi4py.pingpong"),
        "message_size": (4, 8),
        "ranks_per_node": (2,),
        "imb.iterations": (10, 20),
    }
    made = plan(spec(factors))
    assert Counter(trial.combination.benchmark for trial in made.trials) == {"imb": 2, "mpi4py": 1}


def test_a_parameter_at_its_default_is_the_same_question_as_none_at_all() -> None:
    default = next(iter(plan(spec()).trials)).combination.parameters["iterations"]
    bare = {point_id(trial.combination, 8) for trial in plan(spec()).trials}
    named = {point_id(trial.combination, 8) for trial in plan(spec({**FACTORS, "imb.iterations": (default,)})).trials}
    other = {point_id(trial.combination, 8) for trial in plan(spec({**FACTORS, "imb.iterations": (7,)})).trials}
    assert bare == named
    assert not bare & other


def test_how_it_is_run_changes_the_setup_and_never_the_point() -> None:
    here = plan(spec())
    there = plan(spec(site=Site(cluster="elsewhere", way=Way(env={"UCX_TLS": "tcp"}))))
    assert {point_id(trial.combination, 8) for trial in here.trials} == {
        point_id(trial.combination, 8) for trial in there.trials
    }
    assert not {trial.combination.setup.setup_id for trial in here.trials} & {
        trial.combination.setup.setup_id for trial in there.trials
    }


def test_what_realises_a_level_does_not_change_the_setup() -> None:
    site = Site(levels={"sharp": {"on": Way(env={"SHARP_COLL_ENABLE_SAT": "1"})}})
    made = plan(spec({**FACTORS, "sharp": ("off", "on")}, site=site))
    assert len({trial.combination.setup.setup_id for trial in made.trials if trial.combination.benchmark == "imb"}) == 1


def test_levels_that_python_calls_equal_stay_apart() -> None:
    made = plan(spec({**FACTORS, "benchmark": ("imb.allreduce",), "env.X": (1, 1.0, True, "1")}))
    assert len({point_id(trial.combination, 8) for trial in made.trials}) == 8


def test_rounds_hold_every_block_once_and_pairs_stand_side_by_side() -> None:
    asked = spec({**FACTORS, "sharp": ("off", "on")}, run=RunPolicy(repeats=Repeats(4, 4)))
    made = plan(asked)
    blocks = [list(members) for _, members in groupby(made.trials, key=lambda trial: trial.block)]
    assert [members[0].block for members in blocks] == list(range(len(blocks)))
    for members in blocks:
        assert [trial.position for trial in members] == [0, 1]
        assert {trial.combination.level("sharp") for trial in members} == {"off", "on"}
        assert len({trial.block_id for trial in members}) == 1
        assert len({(trial.repeat, trial.sizes) for trial in members}) == 1
    rounds = [[members for members in blocks if members[0].repeat == repeat] for repeat in range(4)]
    assert len({len(each) for each in rounds}) == 1
    for first, second in pairwise(rounds):
        assert {members[0].combination.level("sharp") for members in first}.isdisjoint(
            {members[0].combination.level("sharp") for members in second}
        ), "ABBA: who begins changes with the round"


def test_the_seed_alone_decides_the_order() -> None:
    asked = spec(run=RunPolicy(repeats=Repeats(5, 5)))
    ids = [[trial.trial_id for trial in plan(asked, seed=seed).trials] for seed in (1, 1, 2)]
    assert ids[0] == ids[1]
    assert ids[0] != ids[2]
    assert sorted(ids[0]) == sorted(ids[2])


@pytest.mark.parametrize("levels", range(1, 9))
def test_a_williams_square_lets_each_level_follow_each_other_equally_often(levels: int) -> None:
    square = williams(levels)
    assert all(sorted(row) == list(range(levels)) for row in square)
    follows = Counter(pair for row in square for pair in pairwise(row))
    assert len(follows) == levels * (levels - 1)
    assert len(set(follows.values())) <= 1


NODE = Node("n1", nics=(Nic("eth0", "ethernet"),))
TOOLS: Mapping[str | None, Mapping[str, Tool]] = {
    None: {"IMB-MPI1": Tool("IMB-MPI1", "/bin/IMB-MPI1"), "mpiexec": Tool("mpiexec", "/bin/mpiexec")}
}


@pytest.mark.parametrize(
    ("factors", "inventory", "reason"),
    [
        ({"nodes": (2,)}, Inventory(nodes=(NODE,), tools=TOOLS), "needs 2 nodes.*has 1"),
        ({"nics": (2,), "benchmark": ("imb.allreduce",)}, Inventory(nodes=(NODE,), tools=TOOLS), "needs 2 NICs"),
        ({"sharp": ("on",)}, Inventory(nodes=(NODE,), tools=TOOLS, sharp=False), "no SHARP library"),
        ({"stack": ("hpcx",)}, Inventory(nodes=(NODE,), tools=TOOLS), "no stack 'hpcx'"),
        ({}, Inventory(nodes=(NODE,), tools={None: {}}), "IMB-MPI1.*not found"),
    ],
)
def test_what_the_cluster_cannot_provide_is_unsupported_with_the_reason(
    factors: Mapping[str, tuple[Level, ...]], inventory: Inventory, reason: str
) -> None:
    import re

    made = plan(spec({**FACTORS, **factors}), inventory)
    assert made.trials
    assert all(trial.unsupported is not None and re.search(reason, trial.unsupported) for trial in made.trials)


def test_what_an_inventory_does_not_say_is_not_unsupported() -> None:
    assert not [trial for trial in plan(spec({**FACTORS, "benchmark": ("imb.allreduce",)})).trials if trial.unsupported]


def test_a_pingpong_of_four_ranks_is_refused_and_the_rest_runs() -> None:
    made = plan(spec())
    refused = [trial for trial in made.trials if trial.unsupported is not None]
    assert {(trial.combination.operation, trial.combination.ranks_per_node) for trial in refused} <= {("pingpong", 4)}
    assert all(trial.sizes for trial in refused)


levels = st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 4, 8, 12, 4096, 1 << 20]), min_size=1, max_size=6, unique=True),
    ranks=levels,
    values=levels,
    repeats=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_every_point_is_measured_exactly_once_per_repeat(
    sizes: list[int], ranks: list[int], values: list[int], repeats: int, seed: int
) -> None:
    factors: dict[str, tuple[Level, ...]] = {
        "benchmark": ("imb.allreduce",),
        "message_size": tuple(sorted(sizes)),
        "ranks_per_node": tuple(ranks),
        "env.X": tuple(values),
    }
    made = plan(spec(factors, run=RunPolicy(repeats=Repeats(repeats, repeats))), seed=seed)
    asked = Counter((point_id(trial.combination, size), trial.repeat) for trial in made.trials for size in trial.sizes)
    assert set(asked.values()) == {1}
    assert len(asked) == made.points * repeats == len(sizes) * len(ranks) * len(values) * repeats
    assert len({trial.trial_id for trial in made.trials}) == len(made.trials)


def test_ids_do_not_depend_on_key_order_or_the_hash_seed(tmp_path: Path) -> None:
    code = """
import sys, json
sys.path.insert(0, sys.argv[1])
from schemas.plan import Inventory
from schemas.spec import Spec
from sweep.expand import expand, point_id
factors = json.loads(sys.argv[2])
made = expand(Spec(name="t", factors={k: tuple(v) for k, v in factors.items()}), Inventory(), lambda *_: [], 1)
print(sorted(str(t.trial_id) + str(point_id(t.combination, 8)) for t in made.trials))
"""
    seen = set()
    for order in (list(FACTORS), list(FACTORS)[::-1]):
        for hash_seed in ("0", "1", "2"):
            factors = json.dumps({name: FACTORS[name] for name in order})
            done = subprocess.run(
                [sys.executable, "-c", code, str(Path(__file__).parents[2]), factors],
                env={"PYTHONHASHSEED": hash_seed},
                capture_output=True,
                text=True,
                check=True,
                cwd=tmp_path,
            )
            seen.add(done.stdout)
    assert len(seen) == 1


def test_a_program_without_ranks_never_carries_the_label_of_several_nodes() -> None:
    factors: dict[str, tuple[Level, ...]] = {"benchmark": ("command.run",), "nodes": (1, 2), "command.argv": ("true",)}
    made = {trial.combination.nodes: trial.unsupported for trial in plan(spec(factors), CLUSTER).trials}
    assert made[1] is None
    assert "it would run on one node of 2" in str(made[2])
