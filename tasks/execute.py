"""What the driver says to a node part and makes of its replies: pure, the other end of `tasks/node_part.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.attempt import Asked, Exit, Line, Looks, Output, Process, Stream
from schemas.plan import Nic, Node, Tool

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL: a launcher has to tell its ranks."""

LIMIT = 16 * 1024 * 1024
"""Bytes kept per stream, each line counted with 32 bytes more; beyond that head and tail."""


def run_request(
    attempt_id: str,
    processes: Sequence[Process],
    files: Mapping[str, str],
    timeout: float | None,
    grace: float = GRACE,
    limit: int = LIMIT,
    period: float | None = None,
) -> dict[str, Any]:
    """The request that runs an attempt's processes of one node; `timeout` in seconds, None for no end.

    Counters are looked at before, after, and at lines of output; with a `period` also every so many seconds.
    """
    return {
        "op": "run",
        "attempt": attempt_id,
        "processes": [
            {
                "role": process.role,
                "argv": list(process.argv),
                "env": dict(process.env),
                "path": list(process.path),
                "setup": list(process.setup),
                "ready": process.ready,
            }
            for process in processes
        ],
        "files": dict(files),
        "timeout": timeout,
        "grace": grace,
        "limit": limit,
        "looks": {} if period is None else {"period": period},
    }


def across(request: Mapping[str, Any], attempt_id: str, agent: str) -> dict[str, Any]:
    """A request for several nodes: with the agent, and one folder of the same name on each of them."""
    files = {**request["files"], "agent": f"#!/usr/bin/env python3\n{agent}"}
    return {**request, "files": files, "folder": f"/tmp/sweep-attempt-{attempt_id}"}  # noqa: S108 - made with 0700


def output(asked: Asked, reply: Mapping[str, Any], node: int = 0) -> Output:
    """A node part's reply to `run_request` as what came back from node number `node`."""
    others = [(int(index), part) for index, part in reply.get("others", {}).items()]
    exits = {exit_["role"]: _exit(exit_, node) for exit_ in reply["exits"]}
    return Output(
        asked=asked,
        start=reply["start"],
        elapsed=reply["elapsed"],
        ended=reply["ended"],
        until=reply.get("until"),
        exits=(*(_exit(exit_, index) for index, part in others for exit_ in part["exits"]), *exits.values()),
        streams=(
            *(_stream(stream, reply, exits[stream["role"]]) for stream in reply["streams"]),
            *(
                _stream(stream, part, _exit(exit_, index))
                for index, part in others
                for exit_ in part["exits"]
                for stream in part["streams"]
                if stream["role"] == exit_["role"] and stream["size"]
            ),
        ),
        left=tuple(pid for part in (reply, *(part for _, part in others)) for pid in part["left"]),
        killed=reply["killed"] + sum(part["killed"] for _, part in others),
        notes=tuple(dict.fromkeys(note for part in (reply, *(part for _, part in others)) for note in part["notes"])),
        looks={index: _looks(part) for index, part in ((node, reply), *others)},
    )


def _exit(said: Mapping[str, Any], node: int) -> Exit:
    return Exit(said["role"], node, said["exit_code"], said["signal"], said["error"])


def _looks(reply: Mapping[str, Any]) -> Looks:
    idle = reply["idle"]
    return Looks(
        start=reply["start"],
        taken=tuple((t, nics) for t, nics in reply["looks"]),
        idle_s=None if idle is None else idle[0],
        before=None if idle is None else idle[1],
    )


def node(reply: Mapping[str, Any]) -> Node:
    """A node part's reply to `facts` as a node; its address is that of its first NIC that has one."""
    nics = tuple(Nic(**nic) for nic in reply["nics"])
    internet = [nic.address for nic in nics if nic.address is not None and "." in nic.address]
    return Node(
        name=reply["host"],
        address=internet[0] if internet else "",
        cpus=reply["cpus"],
        memory_bytes=reply["memory_bytes"],
        nics=nics,
        facts=dict(reply["facts"]),
    )


def tools(reply: Mapping[str, Any]) -> dict[str, Tool]:
    """The programs that a node part found, by the name that was asked for."""
    return {name: Tool(name, found["path"], found["version"]) for name, found in reply["programs"].items()}


def _stream(stream: Mapping[str, Any], reply: Mapping[str, Any], end: Exit) -> Stream:
    killed = reply["ended"] != "exited" or end.signal is not None
    return Stream(
        role=stream["role"],
        node=end.node,
        stream=stream["stream"],
        lines=tuple(Line(t, text) for t, text in stream["lines"]),
        size=stream["size"],
        truncated=stream["truncated"] or (stream["cut_last"] and killed),
    )
