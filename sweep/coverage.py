"""Which nodes a plan uses, and what it costs in node-seconds: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.plan import Inventory, Plan
from sweep.cost import estimate


@dataclass(frozen=True, slots=True)
class Coverage:
    """A plan on the nodes of an inventory."""

    launches: Mapping[str, int]
    """Node -> in how many launches it takes part, in the inventory's order; 0 for a node that is held in vain."""
    anywhere: int
    """Launches that get whichever nodes are free: `first` with trials side by side."""
    largest: int
    """Nodes of the largest launch."""
    used_s: float
    """Node-seconds: the nodes of each launch for as long as it is expected to take."""
    held_s: float
    """Node-seconds: all nodes for the whole run; an upper bound where trials run side by side."""

    @property
    def unused(self) -> tuple[str, ...]:
        """Nodes that no launch can get."""
        return () if self.anywhere else tuple(name for name, count in self.launches.items() if not count)

    @property
    def spare(self) -> int:
        """Nodes that may fail before the largest launch can no longer be had."""
        return len(self.launches) - self.largest


def coverage(plan: Plan, have: Inventory) -> Coverage | None:
    """What a plan does with the nodes; None where the inventory names none."""
    if have.nodes is None:
        return None
    launched = [trial for trial in plan.trials if trial.unsupported is None]
    floating = plan.spec.run.concurrency == "disjoint"
    sets: Counter[tuple[int, ...]] = Counter()
    anywhere = 0
    for trial in launched:
        if floating and trial.combination.level("placement") == "first":
            anywhere += 1
        else:
            sets[trial.members] += 1
    counts = [0] * len(have.nodes)
    for members, count in sets.items():
        for index in members:
            counts[index] += count
    return Coverage(
        launches={node.name: count for node, count in zip(have.nodes, counts, strict=True)},
        anywhere=anywhere,
        largest=max((trial.combination.nodes for trial in launched), default=0),
        used_s=sum(estimate(trial) * trial.combination.nodes for trial in launched),
        held_s=sum(map(estimate, launched)) * len(have.nodes),
    )


def warning(plan: Plan, covered: Coverage | None) -> str | None:
    """What to think of before a night is spent: a launch that needs every node does not survive the loss of one."""
    if covered is None or covered.spare or len(covered.launches) < 2:
        return None
    count = covered.largest
    return (
        f"nodes = {count} leaves no spare node: once one of the {count} is lost or quarantined, those launches cannot "
        "be had; hold one more node, or ask for fewer"
    )
