"""Placements: which node sets a launch gets."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.plan import Node
from sweep.placement import node_sets, refuses


def cluster(total: int, per_leaf: int = 4) -> list[Node]:
    return [Node(f"n{index}", facts={"leaf": f"leaf{index // per_leaf}"}) for index in range(total)]


sizes = st.integers(1, 24).flatmap(lambda total: st.tuples(st.just(total), st.integers(1, total)))


@given(sizes, st.sampled_from(["first", "random", "cover", "compact", "spread"]), st.integers(0, 9))
def test_every_set_has_the_asked_number_of_different_nodes(size: tuple[int, int], placement: str, seed: int) -> None:
    total, count = size
    sets = node_sets(placement, count, cluster(total), seed)
    assert sets
    for each in sets:
        assert len(each) == len(set(each)) == count
        assert set(each) <= set(range(total))
    assert sets == node_sets(placement, count, cluster(total), seed)


@given(sizes)
def test_cover_holds_every_node_and_overlaps_only_where_the_number_does_not_divide(size: tuple[int, int]) -> None:
    total, count = size
    sets = node_sets("cover", count, cluster(total), 0)
    uses = Counter(index for each in sets for index in each)
    assert set(uses) == set(range(total))
    assert sum(uses.values()) - total == -total % count


@given(st.integers(2, 24))
def test_pairs_are_all_pairs_once_in_rounds_of_disjoint_pairs(total: int) -> None:
    sets = node_sets("pairs", 2, cluster(total), 0)
    assert sorted(sets) == list(combinations(range(total), 2))
    per_round = total // 2
    for start in range(0, len(sets), per_round):
        members = [index for each in sets[start : start + per_round] for index in each]
        assert len(members) == len(set(members))


def test_compact_stays_on_one_leaf_where_it_can_and_spread_takes_every_leaf() -> None:
    nodes = cluster(12)
    assert len({nodes[index].facts["leaf"] for index in node_sets("compact", 4, nodes, 0)[0]}) == 1
    assert len({nodes[index].facts["leaf"] for index in node_sets("compact", 6, nodes, 0)[0]}) == 2
    assert len({nodes[index].facts["leaf"] for index in node_sets("spread", 3, nodes, 0)[0]}) == 3


def test_more_nodes_than_there_are_have_no_set() -> None:
    assert node_sets("first", 3, cluster(2), 0) == ()


@pytest.mark.parametrize("placement", ["compact", "spread"])
def test_without_a_topology_there_is_no_compact_and_no_spread(placement: str) -> None:
    assert "leaf" in str(refuses(placement, 2, [Node("a"), Node("b")]))
    assert refuses(placement, 2, cluster(2)) is None


def test_pairs_are_for_two_nodes() -> None:
    assert refuses("pairs", 3, cluster(4)) is not None
    assert refuses("pairs", 2, cluster(4)) is None
