"""Ray held at arm's length: its client lives in a process of its own (`sweep/cluster.py`), asked over two pipes.

When a raylet or the head of the cluster dies, Ray ends the process that holds its client, with exit code 1 and without
an exception. Its start takes seconds and cannot be interrupted, it waits many minutes for an address where nobody
answers, and it writes to stderr as it likes. None of that may happen to the process that holds the rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import re
import signal
import sys
from collections import deque
from typing import Any

from schemas.errors import NodeLost, SiteError
from schemas.plan import Node
from sweep.ray_trouble import BAD_TOKEN, DEAF, explain
from tasks.executor import Others, Reply, Request

PROBE_S = 5.0
"""How long an address may take to accept a connection."""
CLOSE_S = 20.0
"""How long Ray may take to give the nodes back before its processes are killed."""
PATIENCE = 2
"""How often Ray's client may complain that nobody answers it; it does so about every five seconds."""
_CHECK = "check --address and RAY_ADDRESS, and that `ray start --head` runs there"
_MARGIN_S = 30.0
"""How much later than the carrier itself we call a node lost."""
_BUFFER = 1 << 24
_BOOTSTRAP = "import sys; sys.path[:] = {path!r}; from sweep.cluster import main; main()"
"""Exactly our own search path: neither more of the working directory than we have, nor less."""
_LOG_PREFIX = re.compile(r"^\[[^\]]*\] (\(\w+\) )?\S+: |\x1b\[\d+m")


class RayExecutor:
    """The nodes of a Ray cluster, each leased whole; the cluster at `address`, or a private one on this machine."""

    def __init__(self, address: str | None = None) -> None:
        self.nodes: tuple[Node, ...] = ()
        self._address = address
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._listeners: list[asyncio.Task[None]] = []
        self._said: deque[str] = deque(maxlen=20)

    async def open(self) -> None:
        """Join or start Ray, lease every node in sorted order, and learn what each is."""
        if self._address is not None:
            await _probe(self._address)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _BOOTSTRAP.format(path=sys.path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_BUFFER,
            start_new_session=True,  # Ctrl-C is for us alone, and one signal reaches all that Ray started here
        )
        self._listeners = [asyncio.create_task(self._listen()), asyncio.create_task(self._overhear())]
        self.nodes = await self._call("open", self._address)

    async def ask(
        self, node: int, request: Request, deadline: float | None = None, others: Others | None = None
    ) -> Reply:
        """One request to the node part of a node, as a Ray task that is never retried behind our back."""
        call = self._call("ask", node, dict(request), deadline, dict(others or {}))
        try:
            reply: Reply = await asyncio.wait_for(call, None if deadline is None else deadline + _MARGIN_S)
        except TimeoutError as error:
            raise NodeLost(f"Ray did not answer within {deadline:.0f} s and {_MARGIN_S:.0f} s more") from error
        except SiteError as error:
            raise NodeLost(str(error)) from error
        return reply

    async def stop(self, node: int, attempt: str) -> bool:
        """Ask the node part to kill an attempt; whether one there still ran it."""
        return bool(await self._call("stop", node, attempt))

    async def close(self) -> None:
        """Give the leases back and leave the cluster; a local one ends with us, and at once if it has not begun yet."""
        process = self._process
        if process is None:
            return
        if self.nodes and process.returncode is None:
            with contextlib.suppress(SiteError, TimeoutError):  # then it is killed
                await asyncio.wait_for(self._call("close"), CLOSE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        for each in self._listeners:
            each.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        self._process = None

    async def _call(self, operation: str, *arguments: Any) -> Any:
        """One request to the carrier. SiteError when it has ended, or ends before it answers."""
        assert self._process is not None
        assert self._process.stdin is not None
        if self._process.returncode is not None or self._process.stdin.is_closing():
            raise self._ended()
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(frame((number, operation, arguments)))
            return await answer
        finally:
            del self._waiting[number]

    async def _listen(self) -> None:
        """Hand each answer to whoever waits for it; at the end everybody learns that there is none to come."""
        assert self._process is not None
        assert self._process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                number, error, value = await read_frame(self._process.stdout)
                answer = self._waiting.get(number)
                if answer is None:
                    self._note(value)
                elif not answer.done():
                    answer.set_result(value) if error is None else answer.set_exception(error)
        await self._process.wait()
        self._fail(self._ended())

    def _fail(self, error: SiteError) -> None:
        """Tell everybody who waits for an answer."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def _note(self, value: object) -> None:
        """What the carrier says unasked is for the user; an answer that nobody waits for any more is not."""
        if isinstance(value, str):
            logging.getLogger("sweep").warning("%s", value)

    async def _overhear(self) -> None:
        """Keep the last lines that Ray wrote to stderr, for the day when they explain something.

        Some do at once: a cluster that refuses us goes on to do so, while Ray tries for a minute and forgets why.
        """
        assert self._process is not None
        assert self._process.stderr is not None
        deaf = 0
        while data := await self._process.stderr.read(1 << 16):
            text = data.decode(errors="replace")
            self._said.extend(line for line in text.splitlines() if line.strip())
            if self.nodes or self._address is None:
                continue
            deaf += len(DEAF.findall(text))
            if BAD_TOKEN in text:
                self._refuse(explain(text, os.environ) or BAD_TOKEN)
            elif deaf >= PATIENCE:
                self._refuse(f"something listens there and does not answer as a Ray cluster does; {_CHECK}")

    def _refuse(self, why: str) -> None:
        """Whoever waits for the cluster need not wait any longer."""
        self._fail(SiteError(f"cannot join the Ray cluster at {self._address}: {why}"))

    def _ended(self) -> SiteError:
        if self.nodes:
            return SiteError("the Ray cluster is lost: its raylet on this machine or its head has died")
        said = f": {_LOG_PREFIX.sub('', self._said[-1]).strip()}" if self._said else ""
        return SiteError(f"Ray ended while it started{said}")


def frame(value: object) -> bytes:
    """A value as the pipes carry it: its length, then its pickle."""
    data = pickle.dumps(value)
    return len(data).to_bytes(8, "big") + data


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next value of a pipe. IncompleteReadError at its end."""
    size = int.from_bytes(await reader.readexactly(8), "big")
    return pickle.loads(await reader.readexactly(size))  # noqa: S301 - from the process that we started, or that started us


async def _probe(address: str) -> None:
    """Whether anybody listens there: Ray itself would wait many minutes for nobody."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # `auto`, or what Ray shall refuse
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), PROBE_S)
    except (OSError, OverflowError, TimeoutError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no answer"
        raise SiteError(f"nobody answers at the Ray address {address}: {why}; {_CHECK}") from error
    writer.close()
