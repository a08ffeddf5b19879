"""Which block runs next, and on which nodes."""

from __future__ import annotations

import heapq
from types import MappingProxyType
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from schemas.plan import Combination, Setup, Trial
from schemas.spec import Level
from sweep.placement import NodeSet
from sweep.schedule import Block, disjoint, exclusive, on

ID = UUID(int=0)
SETUP = Setup(ID, "c", None, "none", None, {})


def block(nodes: int, iterations: int = 100, repeat: int = 0, members: tuple[int, ...] = ()) -> Block:
    factors: dict[str, Level] = {"nodes": nodes}
    if members:
        factors["placement"] = "pairs"
    combination = Combination("b", "o", MappingProxyType(factors), MappingProxyType({"iterations": iterations}), SETUP)
    return Block(0, (Trial(ID, combination, (1 << 20,), repeat, 0, ID, 0, 0, members=members),))


def test_exclusive_takes_the_plans_order_and_only_when_nothing_else_runs() -> None:
    blocks = [block(1), block(2)]
    assert exclusive(blocks, {0, 1}, 2) == (0, (0,))
    assert exclusive(blocks, {1}, 2) is None
    assert exclusive([], {0, 1}, 2) is None


def test_disjoint_takes_the_largest_that_fits_and_leaves_the_next_round_for_later() -> None:
    blocks = [block(1), block(3), block(2), block(2, repeat=1)]
    assert disjoint(blocks, {0, 1, 2, 3}, 4) == (1, (0, 1, 2))
    assert disjoint(blocks, {3, 5}, 4) == (2, (3, 5))
    assert disjoint([block(3)], {0, 1}, 4) is None


def test_a_set_that_the_plan_chose_waits_for_its_own_nodes() -> None:
    blocks = [block(2, members=(1, 3))]
    assert disjoint(blocks, {0, 1, 2}, 4) is None
    assert disjoint(blocks, {1, 2, 3}, 4) == (0, (1, 3))
    assert on(blocks[0].trials[0], (1, 3)).members == (1, 3)


def test_trials_of_one_block_share_its_first_nodes() -> None:
    assert on(block(2).trials[0], (4, 6, 7)).members == (4, 6)


shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2000)), min_size=1, max_size=25)


@given(shapes)
def test_disjoint_runs_every_block_once_on_nodes_of_its_own_and_close_to_the_lower_bound(
    asked: list[tuple[int, int]],
) -> None:
    total = 4
    pending = [block(nodes, iterations) for nodes, iterations in asked]
    seconds = [each.cost / each.count for each in pending]
    running: list[tuple[float, int, NodeSet]] = []
    free, now, ran = set(range(total)), 0.0, 0
    while pending or running:
        while (choice := disjoint(pending, free, total)) is not None:
            index, nodes = choice
            chosen = pending.pop(index)
            assert set(nodes) <= free
            assert len(nodes) == chosen.count
            free -= set(nodes)
            heapq.heappush(running, (now + chosen.cost / chosen.count, ran, nodes))
            ran += 1
        now, _, nodes = heapq.heappop(running)
        free |= set(nodes)
    assert ran == len(asked)
    work = sum(each * nodes for each, (nodes, _) in zip(seconds, asked, strict=True))
    assert now <= 2 * max(work / total, *seconds) + 1e-9
