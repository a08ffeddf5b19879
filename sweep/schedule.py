"""Which block runs next, and on which nodes: pure, asked whenever nodes become free."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from schemas.plan import Trial
from sweep.cost import estimate
from sweep.placement import NodeSet


@dataclass(frozen=True, slots=True)
class Block:
    """What is left of a block, and under which try."""

    block_try: int
    trials: tuple[Trial, ...]

    @property
    def launched(self) -> tuple[Trial, ...]:
        """Its trials that need nodes."""
        return tuple(trial for trial in self.trials if trial.unsupported is None)

    @property
    def count(self) -> int:
        """How many nodes its largest launch needs; 0 where nothing is launched."""
        return max((trial.combination.nodes for trial in self.launched), default=0)

    @property
    def cost(self) -> float:
        """Expected node-seconds."""
        return sum(estimate(trial) * trial.combination.nodes for trial in self.launched)


def exclusive(blocks: Sequence[Block], free: Collection[int], total: int) -> tuple[int, NodeSet] | None:
    """The next block in the plan's order, once nothing else runs on the fabric."""
    if not blocks or len(free) < total:
        return None
    return 0, _nodes(blocks[0], free) or ()


def disjoint(blocks: Sequence[Block], free: Collection[int], total: int) -> tuple[int, NodeSet] | None:
    """The largest block of the current round that fits on free nodes; None until more are free.

    Largest first keeps the makespan within 4/3 of the best (Graham, SIAM J. Appl. Math. 17 (1969) 416). Rounds stay
    apart in their order of start, so that repeats are spread over the run as in `exclusive`.
    """
    if not blocks:
        return None
    current = blocks[0].trials[0].repeat
    fitting = [
        (index, nodes)
        for index, block in enumerate(blocks)
        if block.trials[0].repeat == current and (nodes := _nodes(block, free)) is not None
    ]
    return max(fitting, key=lambda each: (blocks[each[0]].cost, -each[0]), default=None)


def on(trial: Trial, nodes: NodeSet) -> Trial:
    """A trial on the nodes that its block was given: its own set, or as many of the block's first as it needs."""
    if trial.unsupported is not None or _is_placed(trial):
        return trial
    return replace(trial, members=nodes[: trial.combination.nodes])


def _is_placed(trial: Trial) -> bool:
    """Whether the plan says which nodes: every placement but `first` does."""
    return bool(trial.members) and trial.combination.level("placement") != "first"


def _nodes(block: Block, free: Collection[int]) -> NodeSet | None:
    """The nodes that a block would hold; None while they are not free."""
    placed = {node for trial in block.launched if _is_placed(trial) for node in trial.members}
    if placed:
        return tuple(sorted(placed)) if placed <= set(free) else None
    return tuple(sorted(free)[: block.count]) if block.count <= len(free) else None
