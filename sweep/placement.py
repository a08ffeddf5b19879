"""Which nodes a launch gets: each placement as sets of nodes, pure. A set's number is the trial's placement slot."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from schemas.plan import Node

NodeSet = tuple[int, ...]
"""Positions in the inventory, in the order in which the launcher gets them: the first one leads."""


def node_sets(placement: str, count: int, nodes: Sequence[Node], seed: int) -> tuple[NodeSet, ...]:
    """The node sets of a placement for launches of `count` nodes; never empty where the cluster has that many.

    `first` and `random`: one set. `cover`: disjoint sets that together hold every node; where the number does not
    divide, the last set overlaps the one before. `pairs`: every pair, in rounds of disjoint pairs. `compact` and
    `spread`: one set on as few, or as many, leaf switches as can be (a node's fact `leaf`).
    """
    if count > len(nodes):
        return ()
    return _PLACEMENTS[placement](count, nodes, seed)


def refuses(placement: str, count: int, nodes: Sequence[Node]) -> str | None:
    """Why this placement cannot be had; None if it can."""
    if placement == "pairs" and count != 2:
        return f"placement `pairs` is for 2 nodes, not {count}"
    if placement in ("compact", "spread") and not all(leaf(node) for node in nodes):
        unknown = next(node.name for node in nodes if not leaf(node))
        return f"`{placement}` needs each node's leaf switch, and nothing says {unknown}'s: see [fabric.topology]"
    return None


def leaf(node: Node) -> str:
    """The leaf switch of a node; empty where unknown."""
    return node.facts.get("leaf", "")


def _first(count: int, nodes: Sequence[Node], seed: int) -> tuple[NodeSet, ...]:
    return (tuple(range(count)),)


def _random(count: int, nodes: Sequence[Node], seed: int) -> tuple[NodeSet, ...]:
    return (tuple(random.Random(f"{seed} {count}").sample(range(len(nodes)), count)),)  # noqa: S311 - no secret


def _cover(count: int, nodes: Sequence[Node], seed: int) -> tuple[NodeSet, ...]:
    total = len(nodes)
    starts = [*range(0, total - count + 1, count)]
    if total % count:
        starts.append(total - count)
    return tuple(tuple(range(start, start + count)) for start in starts)


def _pairs(count: int, nodes: Sequence[Node], seed: int) -> tuple[NodeSet, ...]:
    """Every pair once, by the circle method: one member stands still, the others go round."""
    members: list[int | None] = [*range(len(nodes))]
    if len(members) % 2:
        members.append(None)
    half = len(members) // 2
    pairs: list[NodeSet] = []
    for _ in range(len(members) - 1):
        for one, other in zip(members[:half], reversed(members[half:]), strict=True):
            if one is not None and other is not None:
                pairs.append((min(one, other), max(one, other)))
        members = [members[0], members[-1], *members[1:-1]]
    return tuple(pairs)


def _leaves(nodes: Sequence[Node]) -> list[list[int]]:
    """Nodes by leaf switch, the leaf with the most nodes first."""
    leaves: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        leaves.setdefault(leaf(node), []).append(index)
    return sorted(leaves.values(), key=lambda members: (-len(members), members))


def _compact(count: int, nodes: Sequence[Node], seed: int) -> tuple[NodeSet, ...]:
    """The smallest leaf that holds all of them; else whole leaves, the largest first."""
    leaves = _leaves(nodes)
    fitting = [members for members in leaves if len(members) >= count]
    chosen = fitting[-1] if fitting else [index for members in leaves for index in members]
    return (tuple(chosen[:count]),)


def _spread(count: int, nodes: Sequence[Node], seed: int) -> tuple[NodeSet, ...]:
    """One node of each leaf in turn."""
    leaves = _leaves(nodes)
    depth = max(map(len, leaves))
    turns = [members[turn] for turn in range(depth) for members in leaves if turn < len(members)]
    return (tuple(turns[:count]),)


_PLACEMENTS: Mapping[str, Callable[[int, Sequence[Node], int], tuple[NodeSet, ...]]] = {
    "first": _first,
    "random": _random,
    "cover": _cover,
    "pairs": _pairs,
    "compact": _compact,
    "spread": _spread,
}
