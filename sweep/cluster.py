"""Ray at the rim: the one module that knows it, in a process of its own that `sweep/carrier.py` talks to.

Attempts cross to the cluster here, by value, and come back as data. Requests come in on stdin and answers go out on
what was stdout; when stdin ends, the driver is gone, and all that Ray started on this machine goes with it.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schemas.errors import NodeLost, SiteError, SweepError
from schemas.plan import Node
from sweep.carrier import frame, read_frame
from sweep.ray_trouble import explain
from tasks import execute, pipe

HEARTBEAT_S = 2.0
"""How often a waiting request asks whether its node is still alive."""
WAIT_S = 1.0
"""How long a node may be taken before we say by whom."""
CONFIRM_S = 15.0
"""How much longer than its grace a node may take to kill what it runs, and to be sure."""
START_S = 120.0
"""How long Ray may take to start, and the first request to a node: Ray starts a worker process for it."""


def main() -> None:
    """Serve one driver until it has gone."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever Ray prints is no answer
    asyncio.run(_serve(answers))


async def _serve(answers: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(answers, "wb"))
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    client = _Client(lambda text: writer.write(frame((0, None, text))))
    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            number, operation, arguments = await read_frame(reader)
            task = asyncio.create_task(_answer(client, writer, number, operation, arguments))
            running.add(task)
            task.add_done_callback(running.discard)
    except asyncio.IncompleteReadError:
        os.killpg(0, signal.SIGKILL)  # Ray may be anywhere, even in a start that nothing interrupts


async def _answer(client: _Client, writer: asyncio.StreamWriter, number: int, operation: str, arguments: Any) -> None:
    value, problem = None, None
    try:
        value = await getattr(client, operation)(*arguments)
    except SweepError as error:
        problem = error
    writer.write(frame((number, problem, value)))
    await writer.drain()


class _Client:
    """The nodes of a Ray cluster, each leased whole by a placement group of its own."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._nodes: tuple[Node, ...] = ()
        self._script: Any = None
        """The node part in Ray's object store: it travels to each node once."""
        self._groups: list[PlacementGroup] = []
        self._ids: list[str] = []
        self._tasks: dict[tuple[int, Any], Any] = {}

    async def open(self, address: str | None) -> tuple[Node, ...]:
        """Join or start Ray, lease every node in sorted order, and say what each is."""
        try:
            await asyncio.wait_for(asyncio.to_thread(_connect, address), START_S)
        except TimeoutError as error:
            raise _cannot(address, f"no answer within {START_S:.0f} s") from error
        for ours in (pipe, sys.modules[__name__]):
            ray.cloudpickle.register_pickle_by_value(ours)  # type: ignore[no-untyped-call]  # Ray has few types
        self._script = ray.put(pipe.script_text())
        alive = sorted(filter(_works, _nodes()), key=lambda each: _order(str(each["NodeManagerAddress"])))
        if not alive:
            raise SiteError("the Ray cluster has no live node with CPUs; start one with `ray start`")
        for each in alive:
            self._groups.append(await self._lease(str(each["NodeManagerAddress"]), each["Resources"].get("CPU", 0.0)))
            self._ids.append(str(each["NodeID"]))
        facts = {"op": "facts", "programs": {}, "path": [], "env": {}}
        replies = await asyncio.gather(*(self.ask(index, facts, START_S, {}) for index in range(len(alive))))
        self._nodes = tuple(
            replace(execute.node(reply), address=str(each["NodeManagerAddress"]))
            for reply, each in zip(replies, alive, strict=True)
        )
        return self._nodes

    async def ask(
        self, node: int, request: dict[str, Any], deadline: float | None, others: dict[str, int]
    ) -> dict[str, Any]:
        """One request to the node part of a node, as a Ray task that is never retried behind our back."""
        if others:
            groups = {other: self._groups[other] for other in others.values()}
            arguments = (self._script, request, others, groups)
            return await self._call(node, lead, deadline, *arguments, beside=tuple(set(others.values())))
        return await self._call(node, pipe.converse, deadline, self._script, request, {})

    async def stop(self, node: int, attempt: str) -> bool:
        """Kill an attempt: by a task of its own, because the first one is busy waiting."""
        try:
            reply = await self._call(node, pipe.tell, 30.0, {"op": "stop", "attempt": attempt})
        except NodeLost:
            return False  # a lost node runs nothing of ours any more
        return bool(reply.get("stopped"))

    async def close(self) -> None:
        """Give the leases back and leave the cluster; a local one ends."""
        for group in self._groups:
            remove_placement_group(group)
        await asyncio.to_thread(ray.shutdown)

    async def _lease(self, address: str, cpus: float) -> PlacementGroup:
        """The whole node: nobody who asks for it, or for its CPUs, gets in beside us."""
        lease = f"fabric-sweep {address} "
        mine = f"{getpass.getuser()}@{socket.gethostname()}, process {os.getppid()}"
        group: PlacementGroup = placement_group(
            [{f"node:{address}": 1.0, **({"CPU": cpus} if cpus else {})}], name=lease + mine
        )
        said = ""
        while not await asyncio.to_thread(group.wait, WAIT_S):
            holder = await asyncio.to_thread(_holder, lease)
            if holder != said:
                self._tell(f"waiting for node {address}: {holder} holds it")
                said = holder
        return group

    async def _call(
        self, node: int, function: Any, deadline: float | None, *arguments: Any, beside: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """A task on a node. NodeLost when it, or one of those that work `beside` it, is gone, or after `deadline`."""
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
            alive = await asyncio.to_thread(_alive)
            if gone := [each for each in (node, *beside) if self._ids[each] not in alive]:
                future.cancel()
                raise NodeLost(f"node {self._label(gone[0])} left the cluster")
        try:
            reply: dict[str, Any] = future.result()
        except (RayError, ConnectionError, RuntimeError) as error:
            raise NodeLost(f"the worker on node {self._label(node)} died: {_brief(error)}") from error
        return reply

    def _task(self, node: int, function: Any) -> Any:
        """A function as a task on a node; made once, because each making is shipped to the cluster anew."""
        if (node, function) not in self._tasks:
            strategy = PlacementGroupSchedulingStrategy(self._groups[node], placement_group_bundle_index=0)
            task = ray.remote(function)
            self._tasks[node, function] = task.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
        return self._tasks[node, function]

    def _label(self, node: int) -> str:
        return self._nodes[node].name if node < len(self._nodes) else str(node)


def lead(
    script: Any, request: dict[str, Any], others: dict[str, int], groups: dict[int, PlacementGroup]
) -> dict[str, Any]:
    """On the node that leads an attempt: run its part, and the agent's commands as tasks on the others.

    When the leader's part has ended, however it ended, nothing of the attempt goes on anywhere.
    """
    replies: dict[int, dict[str, Any]] = {}
    running: dict[int, Any] = {}

    def on(node: int, function: Any) -> Any:
        strategy = PlacementGroupSchedulingStrategy(groups[node], placement_group_bundle_index=0)
        return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)

    def spawn(host: str, command: str) -> int:
        if host not in others:
            raise LookupError(f"{host} is no node of this attempt")
        node = others[host]
        process = {"role": "ranks", "argv": ["/bin/sh", "-c", command]}
        running[node] = on(node, pipe.converse).remote(script, {**request, "processes": [process]}, {})
        replies[node] = ray.get(running[node])
        end = replies[node]["exits"][0]
        return int(end["exit_code"]) if end["exit_code"] is not None else 128 + int(end["signal"] or 127)

    try:
        reply = pipe.converse(script, request, {}, spawn)
    finally:
        for node in running.keys() - replies.keys():
            on(node, pipe.tell).remote({"op": "stop", "attempt": request["attempt"]})
        late = {node: running[node] for node in running.keys() - replies.keys()}
        ended, _ = (
            ray.wait([*late.values()], num_returns=len(late), timeout=request["grace"] + CONFIRM_S)
            if late
            else ([], [])
        )
    for node, task in late.items():
        if task in ended:
            replies[node] = ray.get(task)
    return {**reply, "others": replies}


def _works(node: dict[str, Any]) -> bool:
    """Whether a node is alive and has CPUs: one without is a head, where no benchmark shall land."""
    return bool(node["Alive"]) and node["Resources"].get("CPU", 0.0) > 0


def _order(address: str) -> tuple[tuple[int, int, str], ...]:
    """Addresses by their numbers: 10.0.0.9 before 10.0.0.10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in address.split("."))


def _brief(error: BaseException) -> str:
    """The first sentence of what Ray says, without its advice on where to look."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]


def _holder(lease: str) -> str:
    """Who holds a node: another sweep, by what its lease is called; else whoever asked Ray for its CPUs."""
    for group in placement_group_table().values():
        if group["state"] == "CREATED" and group["name"].startswith(lease):
            return f"a sweep of {group['name'].removeprefix(lease)}"
    return "somebody who is no sweep"


def _alive() -> set[str]:
    """The nodes that Ray believes to be alive."""
    return {each["NodeID"] for each in _nodes() if each["Alive"]}


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray has few types
    return found


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
        raise _cannot(address, explain(str(error), os.environ) or _brief(error)) from error


def _cannot(address: str | None, why: str) -> SiteError:
    what = "start Ray on this machine" if address is None else f"join the Ray cluster at {address}"
    return SiteError(f"cannot {what}: {why}")
