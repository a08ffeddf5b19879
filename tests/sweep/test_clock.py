"""Clocks of the nodes against the driver's: the quickest of several questions, archived in each stint."""

from __future__ import annotations

import asyncio
import time

import pytest

from schemas.plan import Node
from sweep.clock import ROUNDS, Clock, clocks, with_clocks
from tasks.executor import InlineExecutor, Others, Reply, Request
from tests.house import House


class Skewed:
    """Nodes whose clocks are ahead by so many seconds, and whose answers are late, each time less."""

    def __init__(self, *ahead: float) -> None:
        self.nodes = tuple(Node(f"n{index}") for index in range(len(ahead)))
        self.ahead = ahead
        self.asked = [0] * len(ahead)

    async def open(self) -> None: ...

    async def ask(
        self, node: int, request: Request, deadline: float | None = None, others: Others | None = None
    ) -> Reply:
        assert request == {"op": "clock"}
        self.asked[node] += 1
        await asyncio.sleep(0.1 / self.asked[node])  # all of it on the way there: the worst that can be
        return {"time": time.time() + self.ahead[node]}

    async def stop(self, node: int, attempt: str) -> bool:
        return False

    async def close(self) -> None: ...


def test_an_offset_is_right_to_half_of_the_quickest_round_trip() -> None:
    executor = Skewed(0.0, 3600.0, -0.25)
    found = asyncio.run(clocks(executor))
    assert executor.asked == [ROUNDS] * 3
    for clock, ahead in zip(found, executor.ahead, strict=True):
        assert abs(clock.offset_s - ahead) <= clock.round_trip_s / 2 + 1e-3
        assert clock.round_trip_s >= 0.1 / ROUNDS


def test_clocks_stand_among_the_facts_of_a_node() -> None:
    [node] = with_clocks([Node("n", facts={"kernel": "6"})], [Clock(-1e-9, 0.25)])
    assert node.facts == {"kernel": "6", "clock_offset_s": "-0.000000", "clock_round_trip_s": "0.250000"}


def test_the_node_part_tells_its_time() -> None:
    async def here() -> tuple[Clock, ...]:
        executor = InlineExecutor()
        await executor.open()
        try:
            return await clocks(executor)
        finally:
            await executor.close()

    [clock] = asyncio.run(here())
    assert abs(clock.offset_s) <= clock.round_trip_s / 2 + 1e-3


def test_a_run_archives_the_clock_of_every_node(house: House) -> None:
    done = house.sweep("run", house.spec('command.argv = "true"'), "--executor", "inline")
    assert done.code == 0, done.err
    offset, round_trip = "facts['clock_offset_s']::DOUBLE", "facts['clock_round_trip_s']::DOUBLE"
    [(ahead, took)] = house.sql(f"SELECT {offset}, {round_trip} FROM nodes")
    assert took > 0
    assert ahead == pytest.approx(0.0, abs=took / 2 + 1e-3)
