"""How far each node's clock is ahead of the driver's: what it takes to lay the series of several nodes side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from schemas.plan import Node
from tasks.executor import Executor

ROUNDS = 8
"""Questions to each node: the quickest of them was held up least on its way."""
ANSWER_S = 60.0
"""How long one answer may take before the node counts as lost."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A node's clock against the driver's, in seconds; the offset is wrong by half the round trip at most."""

    offset_s: float
    round_trip_s: float


async def clocks(executor: Executor) -> tuple[Clock, ...]:
    """Every node's clock, in the executor's order. NodeLost where a node does not answer."""
    return tuple(await asyncio.gather(*(_clock(executor, node) for node in range(len(executor.nodes)))))


def with_clocks(nodes: Iterable[Node], found: Sequence[Clock]) -> tuple[Node, ...]:
    """The nodes with their facts `clock_offset_s` and `clock_round_trip_s`."""
    return tuple(
        replace(
            node,
            facts={
                **node.facts,
                "clock_offset_s": f"{clock.offset_s:.6f}",
                "clock_round_trip_s": f"{clock.round_trip_s:.6f}",
            },
        )
        for node, clock in zip(nodes, found, strict=True)
    )


async def _clock(executor: Executor, node: int) -> Clock:
    return min([await _round(executor, node) for _ in range(ROUNDS)], key=lambda each: each.round_trip_s)


async def _round(executor: Executor, node: int) -> Clock:
    """One question: the node's answer belongs to the middle of the time that it took (RFC 5905, section 8)."""
    asked, begun = time.time(), time.monotonic()
    reply = await executor.ask(node, {"op": "clock"}, ANSWER_S)
    took = time.monotonic() - begun
    return Clock(reply["time"] - (asked + took / 2), took)
