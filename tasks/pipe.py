"""A pipe to the node part of this process: whoever holds it can ask, and when the holder dies the node part clears up.

Standard library alone. These functions travel to Ray workers by value, so nothing in this module may change: what must
be remembered of this process's node part is kept under a private name in `sys.modules`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_BOOTSTRAP = """\
import os
text = b""
while len(text) < {size}:
    text += os.read(0, {size} - len(text)) or os._exit(1)
exec(compile(text, "node part", "exec"))
"""
"""Short enough for any command line; takes exactly the script from stdin and leaves the requests behind it alone."""

_LOADER = """\
def load(name, text):
    space = {{"__name__": name}}
    exec(compile(text, name + ".py", "exec"), space)
    return space
facts = load("node_facts", {facts!r})
load("node_part", {part!r})["main"](facts["facts"], facts["counters"], stay={stay})
"""

_PATIENCE = 30.0
"""Longer than a node part takes to kill, to confirm, and to give up."""


Spawn = Callable[[str, str], int]
"""Host and command -> exit code."""


def script_text(*, stay: bool = False) -> str:
    """The whole node part as one script: read by the driver, run by any Python from 3.9 on.

    With `stay` it stays the child of whoever starts it, as ssh and srun need it.
    """
    here = Path(__file__).parent
    sources = {name: (here / f"node_{name}.py").read_text(encoding="utf-8") for name in ("part", "facts")}
    return _LOADER.format(**sources, stay=stay)


def bootstrap(script: bytes) -> str:
    """The program for `python3 -c` that takes that script from stdin, and leaves the requests behind it alone."""
    return _BOOTSTRAP.format(size=len(script))


def agent_text() -> str:
    """The agent that launchers call instead of ssh: read by the driver, laid into each attempt over several nodes."""
    return (Path(__file__).parent / "agent.py").read_text(encoding="utf-8")


def converse(script: str, request: dict[str, Any], hello: dict[str, Any], spawn: Spawn | None = None) -> dict[str, Any]:
    """One request to this process's node part, and its reply; starts one with `hello` if there is none (any more).

    `spawn` runs a command on another node for a process of the attempt that asks by `tasks/agent.py`, from a thread.

    `hello` may leave out what a Ray worker needs: to watch its parent, the raylet, and take over what that was
    started with. One conversation at a time; others wait. RuntimeError for what the node part refuses,
    ConnectionError when it died, whereupon the next call starts a new one.
    """
    state = _state()
    with state.lock:
        if state.node_part is not None and not _idle(state.node_part):
            _forget(state)
        if state.node_part is None:
            state.node_part = _start(script)
            greeting = _greet(state, hello)
            if request["op"] == "hello":
                return greeting
        return _exchange(state, request, spawn)


def tell(request: dict[str, Any], socket_path: str | None = None) -> dict[str, Any]:
    """A `stop` that does not wait for a conversation: to one socket, or to every node part of this user here.

    Whoever wants to stop an attempt is rarely the process that runs it. Returns the reply of the node part that
    stopped something, else {"stopped": False}.
    """
    paths = [socket_path] if socket_path is not None else _sockets()
    replies = [_call(path, request) for path in paths]
    return next((reply for reply in replies if reply.get("stopped")), {"stopped": False})


def close() -> None:
    """End this process's node part, and with it whatever it runs; returns when nothing of it is left."""
    state = _state()
    node_part = state.node_part
    if node_part is not None:
        node_part.hang_up()
    with state.lock:
        if state.node_part is not None and state.node_part is node_part:
            _forget(state)


class NodePart:
    """The two ends of a running node part's pipes."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        self.pid = 0
        self.numbers = itertools.count(1)
        self.pending = b""
        self.guard = threading.Lock()

    def write(self, data: bytes) -> None:
        """Write all of it; ConnectionError if nobody is there to read."""
        view = memoryview(data)
        with self.guard:
            while view:
                if self.requests < 0:
                    raise ConnectionError("the pipe to the node part was closed")
                view = view[os.write(self.requests, view) :]

    def read_line(self) -> bytes:
        """The next line; empty when there is none to come."""
        chunks = [self.pending]
        while b"\n" not in chunks[-1]:
            data = os.read(self.replies, 1 << 20)
            if not data:
                return b""
            chunks.append(data)
        line, _, self.pending = b"".join(chunks).partition(b"\n")
        return line

    def read_reply(self, number: int, spawn: Spawn | None) -> dict[str, Any]:
        """The reply to that request; ConnectionError with the node part's last words when it ends instead."""
        said = "it was killed"
        while line := self.read_line():
            reply: dict[str, Any] = json.loads(line)
            if reply.get("event") == "spawn":
                threading.Thread(target=self._spawn, args=(reply, spawn), daemon=True).start()
            elif reply.pop("id", None) == number:
                return reply
            said = str(reply.get("crash", reply))
        raise ConnectionError(f"the node part ended: {said}")

    def _spawn(self, event: dict[str, Any], spawn: Spawn | None) -> None:
        """Have a command run elsewhere, and tell the node part how it ended."""
        end: dict[str, Any] = {"error": f"{event['host']}: this attempt has no other nodes"}
        if spawn is not None:
            try:
                end = {"exit_code": spawn(event["host"], event["command"])}
            except Exception as error:  # noqa: BLE001 - whatever it was, the agent must not wait for ever
                end = {"error": str(error)}
        with contextlib.suppress(ConnectionError, BrokenPipeError):  # the attempt is over, and so is its node part
            self.write(json.dumps({"op": "spawned", "key": event["key"], **end}).encode() + b"\n")

    def hang_up(self) -> None:
        """Close stdin, once: the node part takes it as the end."""
        with self.guard:
            if self.requests >= 0:
                os.close(self.requests)
                self.requests = -1


def _state() -> Any:
    """What this process remembers, per process: a forked child must not talk to its parent's node part."""
    name = f"_fabric_sweep_node_part_{os.getpid()}"
    fresh = ModuleType(name)
    fresh.__dict__.update(lock=threading.Lock(), node_part=None)
    return sys.modules.setdefault(name, fresh)


def _folder() -> str:
    return os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - the node part makes a folder of its own in it


def _sockets() -> list[str]:
    """Sockets of all node parts of this user on this machine; a long TMPDIR is passed over by them."""
    folders = [folder for parent in {_folder(), "/tmp"} for folder in Path(parent).glob("sweep-*")]  # noqa: S108
    mine = [folder for folder in folders if re.fullmatch(r"sweep-\w+\.\d+\.\d+\.\d+", folder.name) and _owned(folder)]
    return [str(folder / "stop") for folder in mine]


def _owned(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _start(script: str) -> NodePart:
    """A node part that has left this process; RuntimeError with what its Python said if it could not."""
    text = script.encode()
    argv = [sys.executable, "-I", "-S", "-c", bootstrap(text)]
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    node_part = NodePart(ours_out, ours_in)
    try:
        starter = subprocess.Popen(argv, stdin=theirs_in, stdout=theirs_out, stderr=subprocess.PIPE)
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    with contextlib.suppress(BrokenPipeError):  # it could not even read its script: what it said follows
        node_part.write(text)
    _, said = starter.communicate()
    if starter.returncode != 0:
        node_part.hang_up()
        os.close(ours_in)
        raise RuntimeError(f"the node part did not start: {said.decode(errors='replace').strip()}")
    return node_part


def _greet(state: Any, hello: dict[str, Any]) -> dict[str, Any]:
    """The first conversation; a node part that did not understand it is of no use."""
    full = {"op": "hello", "watch_pid": os.getppid(), "base": "watch", "folder": _folder(), **hello}
    try:
        greeting = _exchange(state, full)
    except RuntimeError:
        _forget(state)
        raise
    state.node_part.pid = greeting["pid"]
    return greeting


def _exchange(state: Any, request: dict[str, Any], spawn: Spawn | None = None) -> dict[str, Any]:
    """Send a request and wait for its own reply; a conversation that is broken off ends the node part."""
    node_part: NodePart = state.node_part
    number = next(node_part.numbers)
    try:
        node_part.write(json.dumps({**request, "id": number}).encode() + b"\n")
        reply = node_part.read_reply(number, spawn)
    except BaseException:
        _forget(state)
        raise
    if "error" in reply:
        raise RuntimeError(reply["error"])
    return reply


def _idle(node_part: NodePart) -> bool:
    """Whether a node part that was not asked anything is silent, as a living one is."""
    os.set_blocking(node_part.replies, False)
    try:
        os.read(node_part.replies, 1)
    except BlockingIOError:
        return node_part.requests >= 0
    else:
        return False  # last words, or the end
    finally:
        os.set_blocking(node_part.replies, True)


def _forget(state: Any) -> None:
    """Let a node part go: hang up, wait until it has ended, and with it all that it ran."""
    node_part: NodePart = state.node_part
    state.node_part = None
    node_part.hang_up()
    until = time.monotonic() + _PATIENCE
    while _readable(node_part.replies, until) and os.read(node_part.replies, 1 << 20):
        continue
    os.close(node_part.replies)
    with contextlib.suppress(OSError):  # gone already, or a kernel before 5.3
        ended = os.pidfd_open(node_part.pid)
        _readable(ended, until)
        os.close(ended)


def _readable(fd: int, until: float) -> bool:
    """Wait for it, at most until that time; poll(2), since a driver may have thousands of files open."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return poll.poll(max(0.0, until - time.monotonic()) * 1000) != []


def _call(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """One request over a node part's socket; nobody there means that there is nothing to stop."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(10.0)
        try:
            caller.connect(path)
            caller.sendall(json.dumps(request).encode() + b"\n")
            answer = caller.makefile("rb").readline()
        except (FileNotFoundError, ConnectionError, TimeoutError):
            return {}
    reply: dict[str, Any] = json.loads(answer) if answer else {}
    return reply
