"""How the driver talks to the node parts: one interface, whatever carries the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from schemas.errors import NodeLost
from schemas.plan import Node
from tasks import execute, pipe

Request = Mapping[str, Any]
Reply = dict[str, Any]
Others = Mapping[str, int]
"""A host's name or address, as a launcher may call it -> the node."""


class Executor(Protocol):
    """Nodes, and a way to put a request to the node part of each."""

    nodes: tuple[Node, ...]
    """Known after `open`, in a fixed order; requests name a node by its index."""

    async def open(self) -> None:
        """Take the nodes. SiteError if there are none, or if they cannot be had."""

    async def ask(
        self, node: int, request: Request, deadline: float | None = None, others: Others | None = None
    ) -> Reply:
        """One request to a node part, and its reply. NodeLost after `deadline` seconds, or when the node is gone.

        An attempt over several nodes is asked of the one that leads; `others` names the rest of its gang, where a
        launcher's agent may start commands. Their replies stand under "others" in the reply, by node.
        """

    async def stop(self, node: int, attempt: str) -> bool:
        """Ask the node to kill an attempt that another `ask` waits for, or waited for; whether it still ran there."""

    async def close(self) -> None:
        """Give the nodes back; nothing of ours is left on them."""


class InlineExecutor:
    """This machine, without Ray: the same node part behind a pipe of this very process."""

    def __init__(self) -> None:
        self.nodes: tuple[Node, ...] = ()
        self._script = pipe.script_text()

    async def open(self) -> None:
        """Start the node part."""
        self.nodes = (execute.node(await self.ask(0, {"op": "facts", "programs": {}, "path": [], "env": {}})),)

    async def ask(
        self, node: int, request: Request, deadline: float | None = None, others: Others | None = None
    ) -> Reply:
        """One request to the node part of this machine; there are no others."""
        hello = {"op": "hello", "watch_pid": None, "base": "own"}
        try:
            call = asyncio.to_thread(pipe.converse, self._script, dict(request), hello)
            return await asyncio.wait_for(call, deadline)
        except (TimeoutError, ConnectionError, RuntimeError) as error:
            raise NodeLost(f"the node part of this machine did not answer: {error}") from error

    async def stop(self, node: int, attempt: str) -> bool:
        """Ask the node part to kill an attempt; whether one there still ran it."""
        reply = await asyncio.to_thread(pipe.tell, {"op": "stop", "attempt": attempt})
        return bool(reply["stopped"])

    async def close(self) -> None:
        """End the node part, and with it whatever it still runs."""
        await asyncio.to_thread(pipe.close)
