"""Nodes behind ssh or srun: the same node part, started by a command that stays, its requests and replies on a pipe.

Nothing is installed or written on a node but what an attempt lays down: the script goes over stdin. When the driver
ends, however it ends, so does that stdin, and the node part kills whatever it runs and makes sure that it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import json
import logging
import os
import shlex
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from schemas.errors import NodeLost, SiteError
from schemas.plan import Node
from tasks import execute, pipe
from tasks.executor import Others, Reply, Request

START_S = 60.0
"""How long a node may take to let us in, and to say what it is."""
CONFIRM_S = 15.0
"""How much longer than its grace a node may take to kill what it runs, and to be sure."""
AGAIN_S = 0.2
"""How long before a stop is said again: one that comes before the start is not heard."""
AT_ONCE = 64
"""How many nodes are entered at the same time: neither sshd nor Slurm's controller likes hundreds."""
SILENCE_S = 300.0
"""How long a node part waits for a sign of life: a connection that was cut tells neither sshd nor it for hours."""
_LINE = 1 << 30
"""The longest reply: the output of an attempt."""

_SSH = (
    *("ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
"""Never a question; a node that does not answer for 15 s is lost. All else is the user's own ~/.ssh/config."""
_SRUN = (
    *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none"),
    *("--kill-on-bad-exit=0", "--export=ALL", "--quiet"),
)
"""A step beside all others, with all that the allocation has on that node, bound to nothing."""
_ALLOCATION = ("SLURM_JOB_ID", "SLURM_CONF")
"""All that srun needs to know: what a batch script was given describes its own tasks, not ours."""


def command(reach: Literal["ssh", "srun"], host: str, script: bytes) -> list[str]:
    """The command line that starts a node part on a host, its script and requests to be written to stdin."""
    program = ["python3", "-I", "-S", "-c", f"exec({pipe.bootstrap(script)!r})"]  # one line, for csh too
    if reach == "ssh":
        return [*_SSH, "--", host, f"exec {shlex.join(program)}"]
    return [*_SRUN, f"--nodelist={host}", *program]


def environment(reach: Literal["ssh", "srun"], environ: Mapping[str, str]) -> dict[str, str]:
    """What that command is started with."""
    if reach == "ssh":
        return dict(environ)
    return {name: value for name, value in environ.items() if not name.startswith("SLURM_") or name in _ALLOCATION}


class RemoteExecutor:
    """Hosts reached by ssh, or by srun within an allocation; one node part on each, for as long as the run takes.

    Nobody leases a node here: over ssh another sweep may run beside this one, and then it is told.
    """

    def __init__(self, reach: Literal["ssh", "srun"], hosts: Sequence[str]) -> None:
        self.nodes: tuple[Node, ...] = ()
        self._hosts = tuple(hosts)
        script = pipe.script_text(stay=True).encode()
        env = environment(reach, os.environ)
        self._parts = [_Part(host, command(reach, host, script), env, script, self._spawned) for host in hosts]
        self._gangs: dict[str, _Gang] = {}
        self._spawning: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def open(self) -> None:
        """Enter every host, and learn what each is. SiteError that names those that cannot be entered, and why."""
        found = await asyncio.gather(*map(self._enter, range(len(self._parts))), return_exceptions=True)
        nodes = [each for each in found if isinstance(each, Node)]
        errors = [each for each in found if isinstance(each, BaseException)]
        for error in errors:
            if not isinstance(error, NodeLost):
                raise error
        if errors:
            more = f"; {len(errors) - 1} more hosts cannot be entered either" if len(errors) > 1 else ""
            raise SiteError(f"{errors[0]}{more}")
        for (host, node), (other, twin) in itertools.combinations(zip(self._hosts, nodes, strict=True), 2):
            if node.name == twin.name:
                raise SiteError(f"{host} and {other} are the same node, {node.name}; name it once")
        self.nodes = tuple(nodes)

    async def ask(
        self, node: int, request: Request, deadline: float | None = None, others: Others | None = None
    ) -> Reply:
        """One request to the node part of a node; one to the leader of a gang has its commands run on the others."""
        try:
            async with asyncio.timeout(deadline):
                if others:
                    return await self._lead(node, request, others)
                return await self._parts[node].call(request)
        except TimeoutError as error:
            raise NodeLost(f"node {self._hosts[node]} did not answer within {deadline:.0f} s") from error

    async def stop(self, node: int, attempt: str) -> bool:
        """Ask the node part to kill an attempt; whether it still ran it. One that is lost runs nothing of ours."""
        with contextlib.suppress(NodeLost, TimeoutError):
            async with asyncio.timeout(START_S):
                stop = {"op": "stop", "attempt": attempt}
                return self._parts[node].connected and bool((await self._parts[node].call(stop))["stopped"])
        return False

    async def close(self) -> None:
        """Hang up everywhere; returns when every node part has ended, or does not answer any more."""
        await asyncio.gather(*(part.close() for part in self._parts))

    async def _enter(self, index: int) -> Node:
        part = self._parts[index]
        try:
            async with self._gate, asyncio.timeout(START_S):
                greeting = await part.call({"op": "hello"})
                facts = await part.call({"op": "facts", "programs": {}, "path": [], "env": {}})
        except TimeoutError as error:
            raise NodeLost(f"{part.host} cannot be entered: no answer within {START_S:.0f} s") from error
        if greeting["others"]:
            logging.getLogger("sweep").warning("another sweep of yours runs on %s right now", part.host)
        node = execute.node(facts)
        address = await _address(part.host)
        return node if address is None else replace(node, address=address)

    async def _lead(self, node: int, request: Request, others: Others) -> Reply:
        """The leader's part of an attempt; when it has ended, however it ended, nothing of it goes on anywhere."""
        gang = self._gangs[request["attempt"]] = _Gang(request, node, others)
        before = {other: asyncio.create_task(self._look(other)) for other in set(others.values())}
        try:
            reply = await self._parts[node].call(request)
        finally:
            await self._end(gang)
            del self._gangs[request["attempt"]]
        if gang.lost is not None:
            raise gang.lost
        unasked = {other: await look for other, look in before.items() if other not in gang.running}
        watched = {other: await self._watched(other, look, reply) for other, look in unasked.items() if look}
        return {**reply, "others": {**gang.replies, **{other: part for other, part in watched.items() if part}}}

    async def _look(self, node: int) -> Reply | None:
        """A node's counters now; None where it does not answer, which whoever waits for its part learns as well."""
        try:
            return {"at": time.time(), **await self._parts[node].call({"op": "counters"})}
        except NodeLost:
            return None

    async def _watched(self, node: int, before: Reply, leader: Reply) -> Reply | None:
        """The part of a node whose ranks came by another way than ours (srun): its counters, and that it is clean.

        A greeting hunts what carries an attempt's marks and stems from no node part there.
        """
        after = await self._look(node)
        if after is None:
            return None
        greeting = await self._parts[node].call({"op": "hello"})
        looks = [[look["t"] - before["t"], look["nics"]] for look in (before, after)]
        part = {"start": before["at"], "elapsed": looks[1][0], "ended": leader["ended"], "exits": [], "streams": []}
        cleared = {"left": greeting["left"], "killed": greeting["strays"], "notes": greeting["notes"]}
        return {**part, **cleared, "looks": looks, "idle": None}

    async def _end(self, gang: _Gang) -> None:
        """Stop what a gang still runs on the nodes that do not lead, and wait for it."""
        end = time.monotonic() + float(gang.request["grace"]) + CONFIRM_S
        while (late := {node: task for node, task in gang.running.items() if not task.done()}) and (
            time.monotonic() < end
        ):
            for node in late:
                await self.stop(node, gang.request["attempt"])
            await asyncio.wait(late.values(), timeout=AGAIN_S)

    def _spawned(self, part: _Part, event: Mapping[str, Any]) -> None:
        task = asyncio.create_task(self._spawn(part, event))
        self._spawning.add(task)
        task.add_done_callback(self._spawning.discard)

    async def _spawn(self, part: _Part, event: Mapping[str, Any]) -> None:
        """Run a launcher's command on another node of its gang, and tell the one that asked how it ended."""
        gang = self._gangs.get(event["attempt"])
        if gang is None or event["host"] not in gang.others:
            end: dict[str, Any] = {"error": f"{event['host']} is no node of this attempt"}
        else:
            end = await self._run_there(gang, gang.others[event["host"]], event["command"])
        part.write({"op": "spawned", "key": event["key"], **end})

    async def _run_there(self, gang: _Gang, node: int, shell_command: str) -> dict[str, Any]:
        process = {"role": "ranks", "argv": ["/bin/sh", "-c", shell_command]}
        request = {**gang.request, "processes": [process]}
        task = gang.running[node] = asyncio.create_task(self._parts[node].call(request))
        try:
            reply = gang.replies[node] = await task
        except NodeLost as error:
            if gang.lost is None:  # a launcher may wait long for a node that went away silently: end it here
                gang.lost = error
                await self.stop(gang.leader, gang.request["attempt"])
            return {"error": str(error)}
        end = reply["exits"][0]
        return {"exit_code": end["exit_code"] if end["exit_code"] is not None else 128 + (end["signal"] or 127)}


@dataclass(slots=True)
class _Gang:
    """An attempt over several nodes: what is asked of each, and what they answered."""

    request: Request
    leader: int
    others: Others
    running: dict[int, asyncio.Task[Reply]] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)
    lost: NodeLost | None = None
    """Why one of its nodes does not answer any more: then the whole attempt is lost."""


class _Part:
    """One host's node part behind the pipes of a command; started when it is first asked, and anew when it is lost."""

    def __init__(
        self,
        host: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        script: bytes,
        spawned: Callable[[_Part, Mapping[str, Any]], None],
    ) -> None:
        self.host = host
        self._argv, self._env, self._script, self._spawned = argv, env, script, spawned
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=20)
        self._entered = False
        self._entering = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether there is a node part that has not ended."""
        return self._listener is not None and not self._listener.done()

    async def call(self, request: Request) -> Reply:
        """One request, and its reply. NodeLost when the node part ends before it answers, or refuses."""
        async with self._entering:
            if not self.connected:
                greeting = await self._start()
                if request["op"] == "hello":
                    return greeting
        return await self._exchange(request)

    def write(self, message: Mapping[str, Any]) -> None:
        """Send a line; what is sent to a node part that has ended is lost with it."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """Hang up, and wait until the node part has ended; the connection is cut where it does not."""
        if self._process is None or self._listener is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait([self._listener], timeout=CONFIRM_S)
        await self._cut()

    async def _start(self) -> Reply:
        """Enter the host and say hello."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
                limit=_LINE,
                start_new_session=True,  # Ctrl-C is for the driver alone
            )
        except FileNotFoundError as error:
            raise SiteError(
                f"{self._argv[0]} was not found on this machine; install it, or choose another reach"
            ) from error
        self._said.clear()
        self._listener = asyncio.create_task(self._listen(self._process))
        assert self._process.stdin is not None
        self._process.stdin.write(self._script)
        try:
            greeting = await self._greet()
        except BaseException:
            await self._cut()
            raise
        self._entered = True
        return greeting

    async def _greet(self) -> Reply:
        """The first exchange; after a lost connection nothing may be left of what the one before it started."""
        hello = {"op": "hello", "watch_pid": None, "base": "own", "folder": "/tmp", "silence": SILENCE_S}  # noqa: S108 - a 0700 folder in it
        end = time.monotonic() + CONFIRM_S
        while (greeting := await self._exchange(hello))["others"] and self._entered:
            if time.monotonic() > end:
                raise NodeLost(f"{self.host} still runs what an earlier connection started")
            await asyncio.sleep(AGAIN_S)
        return greeting

    async def _live(self, process: asyncio.subprocess.Process) -> None:
        """Break the silence, again and again."""
        assert process.stdin is not None
        while not process.stdin.is_closing():
            process.stdin.write(b"\n")
            await asyncio.sleep(SILENCE_S / 10)

    async def _exchange(self, request: Request) -> Reply:
        number = next(self._numbers)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            if not self.connected:
                raise self._lost()
            self.write({**request, "id": number})
            reply = await answer
        finally:
            del self._waiting[number]
        if "error" in reply:
            raise NodeLost(f"the node part on {self.host} refused: {reply['error']}")
        return reply

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Hand each reply to whoever waits for it; at the end everybody learns that there is none to come."""
        assert process.stdout is not None
        overhearing, living = asyncio.create_task(self._overhear(process)), asyncio.create_task(self._live(process))
        try:
            while line := await process.stdout.readline():
                self._take(line)
            await overhearing
            await process.wait()
        finally:
            overhearing.cancel()
            living.cancel()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(self._lost())

    def _take(self, line: bytes) -> None:
        try:
            reply = json.loads(line)
            number = reply.get("id")
        except (ValueError, AttributeError):  # a login shell that greets
            self._said.append(line.decode(errors="replace").strip())
            return
        if reply.get("event") == "spawn":
            self._spawned(self, reply)
        elif (answer := self._waiting.get(number)) is not None and not answer.done():
            del reply["id"]
            answer.set_result(reply)
        elif "crash" in reply:
            self._said.append(str(reply["crash"]).strip().splitlines()[-1])

    async def _overhear(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines that ssh or srun wrote: they explain why there is no node part."""
        assert process.stderr is not None
        while data := await process.stderr.read(1 << 16):
            self._said.extend(line for line in data.decode(errors="replace").splitlines() if line.strip())

    async def _cut(self) -> None:
        """End the command that holds the connection, if it still does."""
        if self._process is None or self._listener is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.wait([self._listener], timeout=CONFIRM_S)

    def _lost(self) -> NodeLost:
        said = f": {self._said[-1].strip()}" if self._said else ""
        if self._entered:
            return NodeLost(f"the connection to {self.host} ended{said}")
        return NodeLost(f"{self.host} cannot be entered{said}")


async def _address(host: str) -> str | None:
    """The IPv4 address that a host is reached at; None where only the node itself can tell, as of a loopback's name."""
    try:
        name = host.rpartition("@")[2]
        found = await asyncio.get_running_loop().getaddrinfo(name, None, family=socket.AF_INET)
    except OSError:
        return None  # a name of ~/.ssh/config
    address = str(found[0][4][0])
    return None if ipaddress.ip_address(address).is_loopback else address
