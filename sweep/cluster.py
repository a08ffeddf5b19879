"""Ray at the rim: the one module that knows it. Attempts cross to the cluster here, by value, and come back as data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schemas.errors import NodeLost, SiteError
from schemas.plan import Node
from tasks import execute, pipe
from tasks.executor import Reply, Request

HEARTBEAT_S = 2.0
"""How often a waiting request asks whether its node is still alive."""
START_S = 120.0
"""How long the first request to a node may take: Ray starts a worker process for it."""


class RayExecutor:
    """The nodes of a Ray cluster, each leased whole by a placement group of its own."""

    def __init__(self, address: str | None = None) -> None:
        self.nodes: tuple[Node, ...] = ()
        self._address = address
        self._script = pipe.script_text()
        self._sent: Any = None
        """The script in Ray's object store: it travels to each node once."""
        self._groups: list[PlacementGroup] = []
        self._ids: list[str] = []
        self._tasks: dict[tuple[int, Any], Any] = {}

    async def open(self) -> None:
        """Join or start Ray, lease every node in sorted order, and learn what each is."""
        await asyncio.to_thread(_connect, self._address)
        ray.cloudpickle.register_pickle_by_value(pipe)  # type: ignore[no-untyped-call]  # Ray has few types
        self._sent = ray.put(self._script)
        alive = sorted(
            (each for each in _nodes() if each["Alive"]), key=lambda each: str(each["NodeManagerAddress"])
        )
        if not alive:
            raise SiteError("the Ray cluster has no live node; start one with `ray start`")
        for each in alive:
            address = str(each["NodeManagerAddress"])
            self._groups.append(await _lease(address, each["Resources"].get("CPU", 0.0)))
            self._ids.append(str(each["NodeID"]))
        facts = {"op": "facts", "programs": {}, "path": [], "env": {}}
        replies = await asyncio.gather(*(self.ask(index, facts, START_S) for index in range(len(alive))))
        self.nodes = tuple(
            replace(execute.node(reply), address=str(each["NodeManagerAddress"]))
            for reply, each in zip(replies, alive, strict=True)
        )

    async def ask(self, node: int, request: Request, deadline: float | None = None) -> Reply:
        """One request to the node part of a node, as a Ray task that is never retried behind our back."""
        return await self._call(node, pipe.converse, deadline, self._sent, dict(request), {})

    async def stop(self, node: int, attempt: str) -> None:
        """Ask the node part to kill an attempt; a task of its own, because the first one is busy waiting."""
        with contextlib.suppress(NodeLost):  # a lost node runs nothing of ours any more
            await self._call(node, pipe.tell, 30.0, {"op": "stop", "attempt": attempt})

    async def close(self) -> None:
        """Give the leases back and leave the cluster; a local one ends with us."""
        for group in self._groups:
            with contextlib.suppress(RayError):  # the cluster may be gone already
                remove_placement_group(group)
        self._groups = []
        await asyncio.to_thread(ray.shutdown)

    async def _call(self, node: int, function: Any, deadline: float | None, *arguments: Any) -> Reply:
        future = asyncio.wrap_future(self._task(node, function).remote(*arguments).future())
        end = None if deadline is None else time.monotonic() + deadline
        while True:
            left = HEARTBEAT_S if end is None else min(HEARTBEAT_S, end - time.monotonic())
            done, _ = await asyncio.wait({future}, timeout=max(0.0, left))
            if done:
                break
            if end is not None and time.monotonic() >= end:
                future.cancel()
                raise NodeLost(f"node {self._label(node)} did not answer within {deadline:.0f} s")
            if not await asyncio.to_thread(_is_alive, self._ids[node]):
                future.cancel()
                raise NodeLost(f"node {self._label(node)} left the cluster")
        try:
            reply: Reply = future.result()
        except (RayError, ConnectionError, RuntimeError) as error:
            raise NodeLost(f"the worker on node {self._label(node)} died: {_first_line(error)}") from error
        return reply

    def _task(self, node: int, function: Any) -> Any:
        """A function as a task on a node; made once, because each making is shipped to the cluster anew."""
        if (node, function) not in self._tasks:
            strategy = PlacementGroupSchedulingStrategy(self._groups[node], placement_group_bundle_index=0)
            task = ray.remote(function)
            self._tasks[node, function] = task.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
        return self._tasks[node, function]

    def _label(self, node: int) -> str:
        return self.nodes[node].name if node < len(self.nodes) else str(node)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _is_alive(node_id: str) -> bool:
    return any(each["NodeID"] == node_id and each["Alive"] for each in _nodes())


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray has few types
    return found


async def _lease(address: str, cpus: float) -> PlacementGroup:
    """The whole node: nobody who asks for it, or for its CPUs, gets in beside us."""
    group: PlacementGroup = placement_group(
        [{f"node:{address}": 1.0, **({"CPU": cpus} if cpus else {})}], name=f"fabric-sweep-{address}"
    )
    while not await asyncio.to_thread(group.wait, 5.0):
        logging.getLogger("sweep").warning("waiting for node %s: somebody else holds it or its CPUs", address)
    return group


def _connect(address: str | None) -> None:
    """Start a private Ray on this machine, or join the cluster at `address`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if address is None:
        os.environ.setdefault("RAY_worker_niceness", "0")
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": 100 * 1024 * 1024}
    else:
        options |= {"address": address}
    try:
        ray.init(**options)
    except (RayError, ConnectionError, RuntimeError, OSError, ValueError) as error:
        what = "start Ray on this machine" if address is None else f"join the Ray cluster at {address}"
        raise SiteError(f"cannot {what}: {_first_line(error)}") from error
