"""The node part: runs, watches and cleans up attempts on one node.

Standard library alone, Python 3.9 or newer: it is sent as text to whatever Python a node has (see `tasks/pipe.py`), and
never imported there. JSON requests, one a line, come in on stdin; JSON replies, with the request's `id`, go out on
stdout. It leaves whoever started it by a double fork (but not ssh or srun, whose connection would end), adopts every
orphan among its descendants (child subreaper), and when its stdin or the process it watches ends, it kills everything,
makes sure of that, and ends.

    hello     {watch_pid, base: "watch" | "own", folder, silence} -> {ready, pid, socket, strays, left, others, notes}
    run       {attempt, processes: [{role, argv, env, path, setup, ready}], files, folder, timeout, grace, limit, looks}
              -> {start, elapsed, until, ended, exits, streams, left, killed, notes, looks, idle}
    spawned   {key, exit_code} or {key, error} -> nothing: how what {event: spawn, key, attempt, host, command} asked
              for on another node ended; a process of an attempt asks by {op: spawn, …} on the socket SWEEP_AGENT
    stop      {attempt} -> {stopped}; answered at once, on stdin and on the socket that `hello` names
    facts     {programs: {name: [version arguments]}, path, env, setup}
              -> {host, cpus, memory_bytes, nics, facts, programs: {name: {path, version}}}
    counters  {} -> {t, nics: {name: {counter: value}}}

A request that cannot be met is answered with {error}. With `silence` it also ends when stdin has brought nothing for
so many seconds; an empty line is no request, and breaks the silence.
"""
# ruff: noqa: PTH100, PTH102, PTH106, PTH113, PTH115, PTH120, PTH123, PTH208 - importing pathlib is a fifth of the start

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections import deque
from functools import partial

TYPE_CHECKING = False  # typing itself is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

NAME = "sweep-node-part"  # the kernel keeps 15 characters of a name
ATTEMPT = "SWEEP_ATTEMPT"
OWNER = "SWEEP_NODE_PART"
AGENT = "SWEEP_AGENT"
LOOK_GAP = 0.002  # between two looks at the counters that lines of output cause: a look costs 0.1 ms
LINGER = 0.2  # a launcher that ended by itself leaves its ranks for a moment
FAREWELL = 1.0  # all the grace there is once whoever started us is gone
CONFIRM = 10.0  # how long killed processes may take to vanish before we say that they are left
VERSION_TIMEOUT = 10.0
CHUNK = 65536  # what a pipe holds
LINE_COST = 32  # what a kept line costs beside its bytes, so that a flood of empty lines is bounded too
FOREVER = float("inf")


# ---- processes -----------------------------------------------------------------------------------


class Seen:
    """A process as /proc showed it: pid and start time together name it for as long as the machine is up."""

    __slots__ = ("name", "parent", "pid", "start")

    def __init__(self, pid: int, name: str, parent: int, start: int) -> None:
        self.pid, self.name, self.parent, self.start = pid, name, parent, start

    @property
    def alive(self) -> bool:
        """Whether exactly this process still lives."""
        now = see(self.pid)
        return now is not None and now.start == self.start

    def send(self, number: int) -> None:
        """Signals exactly this process, never another that was given its number since.

        What may not be signalled, or is gone, is found alive or not by the next look at /proc.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        except OSError:  # a kernel before 5.3
            handle = -1
        try:
            if self.alive and handle >= 0:
                signal.pidfd_send_signal(handle, number)
            elif self.alive:
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return
        finally:
            if handle >= 0:
                os.close(handle)


def read(path: str) -> str:
    """A small file's text; empty where there is none to read."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""


def see(pid: int) -> Seen | None:
    """The process of that number, if it lives. A dead leader whose threads go on is alive (proc(5), field 20)."""
    head, _, rest = read(f"/proc/{pid}/stat").rpartition(") ")
    fields = rest.split()
    if not fields or (fields[0] in "ZX" and int(fields[17]) < 2):
        return None
    return Seen(pid, head.partition("(")[2], int(fields[1]), int(fields[19]))


def processes() -> dict[int, Seen]:
    """All living processes that /proc shows."""
    found = (see(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {seen.pid: seen for seen in found if seen}


def environment(pid: int | str) -> dict[str, str]:
    """The environment that a process was started with; empty where it may not be read."""
    entries = (entry.partition("=") for entry in read(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, sign, value in entries if sign}


def descendants(roots: Iterable[int], table: Mapping[int, Seen]) -> dict[int, Seen]:
    """Everything in `table` that stems from `roots`."""
    children: dict[int, list[Seen]] = {}
    for seen in table.values():
        children.setdefault(seen.parent, []).append(seen)
    found: dict[int, Seen] = {}
    todo = list(roots)
    while todo:
        new = [seen for seen in children.get(todo.pop(), ()) if seen.pid not in found]
        found.update((seen.pid, seen) for seen in new)
        todo += [seen.pid for seen in new]
    return found


def ancestors(pid: int, table: Mapping[int, Seen]) -> Iterator[Seen]:
    """Parent, grandparent and so on, as far as `table` shows them."""
    seen = table.get(pid)
    while seen and (seen := table.get(seen.parent)):
        yield seen


def namespace(pid: int | str) -> str:
    """A process's PID namespace: numbers mean something only inside one."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


# ---- strays --------------------------------------------------------------------------------------


def stray(process: Seen, table: Mapping[int, Seen]) -> bool | None:
    """Whether a process belongs to an attempt that nobody watches any more; None: it belongs to none.

    Watched are those whose marker names a living node part, and those below one: a launcher hands its own marker on to
    ranks on other nodes, where that node part's number means nothing.
    """
    marks = environment(process.pid)
    owner = re.fullmatch(r"(\d+):(\d+)", marks.get(OWNER, ""))
    if owner is None or ATTEMPT not in marks or process.name == NAME or namespace(process.pid) != namespace("self"):
        return None
    named = table.get(int(owner[1]))
    if named and named.start == int(owner[2]):
        return False
    return all(above.name != NAME for above in ancestors(process.pid, table))


def hunt(spared: set[int]) -> tuple[set[int], set[int], int]:
    """Kills the strays of dead node parts and all that stems from them: (found, still there, watched by others)."""
    found: set[int] = set()
    until = time.monotonic() + CONFIRM
    while True:
        table = processes()
        marked = {pid: stray(seen, table) for pid, seen in table.items() if pid not in spared}
        roots = [pid for pid, lost in marked.items() if lost]
        prey = {pid: table[pid] for pid in {*roots, *descendants(roots, table)} - spared}
        found |= prey.keys()
        if not prey or time.monotonic() > until:
            return found, set(prey), sum(lost is False for lost in marked.values())
        for seen in prey.values():
            seen.send(signal.SIGKILL)
        time.sleep(0.01)


def make_folder(parent: str, me: Seen) -> str:
    """A new folder for this user alone, after those of dead node parts were removed.

    Its name begins with the boot and the PID namespace, as several may share a folder for temporary files; a long
    parent is passed over, since the path of a socket has 107 characters at most.
    """
    if len(parent) > 50:
        parent = "/tmp"  # noqa: S108 - mkdir(2) makes what must not exist yet, with 0700
    prefix = f"sweep-{read('/proc/sys/kernel/random/boot_id')[:8]}.{namespace('self')[5:-1]}."
    for name in os.listdir(parent):
        owner = re.fullmatch(re.escape(prefix) + r"(\d+)\.(\d+)", name)
        if owner and not Seen(int(owner[1]), "", 0, int(owner[2])).alive:
            remove_folder(f"{parent}/{name}")  # another user's is kept by the sticky bit
    path = f"{parent}/{prefix}{me.pid}.{me.start}"
    os.mkdir(path, 0o700)
    return path


def remove_folder(path: str) -> None:
    """Removes a folder as far as we may; most are empty, and importing shutil takes longer than an attempt costs."""
    try:
        os.rmdir(path)
    except OSError:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


# ---- a neutral place -----------------------------------------------------------------------------


def users_environment(watch: int | None, notes: list[str]) -> dict[str, str]:
    """What the user had when the cluster was started, or, without a process to ask, what we were started with.

    Ray starts its raylet with a malloc of its own, which gets in the way of fabrics that hook theirs.
    """
    if watch is None:
        return environment("self")
    found = environment(watch)
    if not found:
        notes.append(f"the environment of process {watch} cannot be read: the worker's own is used")
        found = environment("self")
    if found.get("LD_PRELOAD", "").endswith("/ray/core/libjemalloc.so"):
        del found["LD_PRELOAD"]
    return {name: value for name, value in found.items() if not name.startswith("RAY_")}


def restore_signals() -> None:
    """No signal blocked or ignored: Ray starts its raylet, and thereby us, with SIGINT blocked."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python's own, restored by Popen
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def restore_priority(watch: int | None, notes: list[str]) -> None:
    """Niceness and out-of-memory score as the watched process has them, or 0."""
    wanted = 0 if watch is None else os.getpriority(os.PRIO_PROCESS, watch)
    current = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        if current != wanted:
            os.setpriority(os.PRIO_PROCESS, 0, wanted)
    except OSError as error:
        notes.append(f"niceness stays {current} instead of {wanted}: {error.strerror}")
    score = read("/proc/self/oom_score_adj").strip()
    wanted_score = "0" if watch is None else read(f"/proc/{watch}/oom_score_adj").strip()
    try:
        if score and wanted_score and score != wanted_score:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(wanted_score)
    except OSError as error:
        notes.append(f"oom_score_adj stays {score} instead of {wanted_score}: {error.strerror}")


def restore_limits(watch: int | None, notes: list[str]) -> None:
    """Limits as the watched process has them, and as much locked memory as we may have: fabrics register it."""
    for name in (name for name in dir(resource) if name.startswith("RLIMIT_")):
        which = getattr(resource, name)
        current = resource.getrlimit(which)
        try:
            wanted = current if watch is None else resource.prlimit(watch, which)
            if name == "RLIMIT_MEMLOCK":
                wanted = (wanted[1], wanted[1])
            if wanted != current:
                resource.setrlimit(which, wanted)
        except (OSError, ValueError) as error:
            notes.append(f"{name} stays {current[0]} of {current[1]}: {error}")


# ---- output --------------------------------------------------------------------------------------


class Stream:
    """One stream of one process: whole lines with the time at which they were read; of a flood, head and tail.

    At most `limit` bytes are kept, LINE_COST a line included: half of it the head, the rest the tail. A line longer
    than that half is never kept, and parts head and tail.
    """

    def __init__(self, fd: int, limit: int) -> None:
        self.fd, self.limit, self.half = fd, limit, limit // 2
        self.size = 0
        self.truncated = False
        self.head: list[tuple[float, bytes]] = []
        self.head_cost = 0
        self.tail: deque[tuple[float, bytes, int]] = deque()
        self.tail_cost = 0
        self.partial = bytearray()  # the line that has no end yet
        self.partial_t = 0.0
        self.overlong = False  # it has outgrown `half`: the rest of it is dropped as well

    def feed(self, t: float, data: bytes) -> bytes:
        """Takes what was read at `t`; returns the lines that it completed."""
        self.size += len(data)
        cut = data.rfind(b"\n") + 1
        block = b""
        if cut:
            block = bytes(self.partial) + data[:cut]
            self.partial.clear()
            if self.overlong:
                block = block[block.index(b"\n") + 1 :]
                self.overlong = False
            if block:
                self._keep(t, block)
        if not self.overlong:
            self.partial += data[cut:]
            self.partial_t = t
        if len(self.partial) > self.half:
            self.partial.clear()
            self.tail.clear()
            self.tail_cost = 0
            self.overlong = self.truncated = True
        return block

    def _keep(self, t: float, block: bytes) -> None:
        cost = len(block) + LINE_COST * block.count(b"\n")
        if not self.tail and not self.truncated:
            end, spent = len(block), cost
            if self.head_cost + cost > self.half:
                end, spent = whole_lines(block, self.half - self.head_cost)
            self.head.append((t, block[:end]))
            self.head_cost += spent
            block, cost = block[end:], cost - spent
        if block:
            self.tail.append((t, block, cost))
            self.tail_cost += cost
        while self.tail and self.tail_cost - self.tail[0][2] >= self.limit - self.head_cost:
            self.tail_cost -= self.tail.popleft()[2]
            self.truncated = True

    def report(self) -> dict[str, Any]:
        """What is kept, in the reply's words."""
        excess = self.tail_cost - (self.limit - self.head_cost)
        if excess > 0:
            t, block, cost = self.tail.popleft()
            end, _ = whole_lines(block, excess)
            end = block.find(b"\n", end) + 1  # the line across the border goes too
            self.tail.appendleft((t, block[end:], cost))
            self.truncated = True
        blocks = self.head + [(t, block) for t, block, _ in self.tail]
        lines = [[round(t, 6), line] for t, block in blocks if block for line in text(block[:-1]).split("\n")]
        if self.partial:
            lines.append([round(self.partial_t, 6), text(self.partial)])
        return {"lines": lines, "size": self.size, "truncated": self.truncated, "cut_last": bool(self.partial)}


def whole_lines(block: bytes, room: int) -> tuple[int, int]:
    """Where those whole lines of `block` end that cost no more than `room`, and what they cost."""
    end = spent = 0
    while end < len(block):
        line_end = block.index(b"\n", end) + 1
        cost = line_end - end + LINE_COST
        if spent + cost > room:
            break
        end, spent = line_end, spent + cost
    return end, spent


def text(data: bytes | bytearray) -> str:
    """Output as text; what is not UTF-8 becomes U+FFFD."""
    return data.decode("utf-8", "replace")


# ---- attempts ------------------------------------------------------------------------------------


class Role:
    """One process that an attempt starts: the first of a session of its own."""

    def __init__(self, wanted: Mapping[str, Any], base: Mapping[str, str], folder: str) -> None:
        self.name = str(wanted["role"])
        self.argv = [word.replace("{files}", folder) for word in wanted["argv"]]
        self.env = {**base, **{name: value.replace("{files}", folder) for name, value in wanted.get("env", {}).items()}}
        self.env["PATH"] = search_path(wanted.get("path", ()), self.env)
        if setup := wanted.get("setup"):
            self.argv = ["bash", "-c", setup_script(setup), self.name, *self.argv]
        self.awaited = re.compile(wanted["ready"]) if wanted.get("ready") else None
        self.process: subprocess.Popen[bytes] | None = None
        self.error = "not started"
        self.streams: dict[str, Stream] = {}

    def start(self, limit: int) -> None:
        """Starts it; where that fails, `error` says why."""
        pipes = {name: os.pipe2(os.O_CLOEXEC) for name in ("stdout", "stderr")}
        try:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=pipes["stdout"][1],
                stderr=pipes["stderr"][1],
                env=self.env,
                start_new_session=True,
            )
            self.error = ""
        except (OSError, ValueError) as error:
            self.error = str(error)
        for name, (reader, writer) in pipes.items():
            os.close(writer)
            os.set_blocking(reader, False)
            self.streams[name] = Stream(reader, limit)

    def look(self, block: bytes) -> None:
        """Looks for the line that says that it is ready."""
        if self.awaited and any(self.awaited.search(line) for line in text(block).split("\n")):
            self.awaited = None

    @property
    def running(self) -> bool:
        """Started, and not ended yet."""
        return self.process is not None and self.process.returncode is None

    def terminate(self) -> None:
        """Asks it and its process group to end."""
        if self.process and self.running:
            try:
                os.killpg(self.process.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                return  # whether it has ended is seen by waiting

    def report(self) -> dict[str, Any]:
        """How it ended, in the reply's words."""
        code = self.process.returncode if self.process else None
        return {
            "role": self.name,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "error": "still running" if self.running else self.error,
        }


def search_path(folders: Iterable[str], env: Mapping[str, str]) -> str:
    """PATH with `folders` put first."""
    return os.pathsep.join([*folders, env.get("PATH", os.defpath)])


def setup_script(lines: Iterable[str]) -> str:
    """A script for `bash -c` that runs the lines, says which one failed, and becomes the program."""
    trap = """trap 'echo "setup failed with exit code $?: $BASH_COMMAND" >&2' EXIT"""
    return "\n".join(["set -e", trap, *lines, "trap - EXIT", 'exec "$@"'])


class Attempt:
    """One attempt: from an empty tree of processes to an empty tree."""

    def __init__(self, part: Part, request: Mapping[str, Any]) -> None:
        self.part = part
        self.name = str(request["attempt"])
        self.epoch, self.began = time.time(), time.monotonic()
        timeout = request.get("timeout")
        self.deadline = FOREVER if timeout is None else self.began + timeout
        self.grace = float(request.get("grace", 2.0))
        self.limit = int(request.get("limit", 1 << 24))
        self.wanted, self.files = request["processes"], request.get("files", {})
        self.shared = request.get("folder")
        self.roles: list[Role] = []
        self.ended = "stopped" if part.ending else ""
        self.until = 0.0
        self.adopted = False
        self.signalled: set[int] = set()
        self.left: set[int] = set()
        self.looks = Looks(part.counters, self.began, request.get("looks"))

    def run(self) -> dict[str, Any]:
        """Starts the roles, waits for the end, clears up, and says what happened."""
        folder = make_shared(self.shared) if self.shared else self.part.fresh_folder()
        marks = {ATTEMPT: self.name, OWNER: self.part.owner, AGENT: f"{self.part.folder}/stop"}
        idle = self.looks.since(self.part.last_look)
        try:
            for name, content in self.files.items():
                lay_file(folder, name, content)
            self.roles = [Role(wanted, {**self.part.environment, **marks}, folder) for wanted in self.wanted]
            self._start()
            self._await(lambda: not self.roles[-1].running)
            self.end("exited")
        finally:
            self._clear()
            self._drain()
            self.looks.take()
            self.part.last_look = self.looks.last
            remove_folder(folder)
        streams = [(role.name, name, stream) for role in self.roles for name, stream in role.streams.items()]
        return {
            "start": self.epoch,
            "elapsed": time.monotonic() - self.began,
            "ended": self.ended,
            "until": self.until,
            "exits": [role.report() for role in self.roles],
            "streams": [{"role": role, "stream": name, **stream.report()} for role, name, stream in streams],
            "left": sorted(self.left),
            "killed": len(self.signalled),
            "notes": self.part.notes,
            "looks": self.looks.taken,
            "idle": idle,
        }

    def end(self, how: str) -> None:
        """Has it end: the first reason is the one that counts."""
        if not self.ended:
            self.ended, self.until = how, time.monotonic() - self.began

    def note_end(self, pid: int, status: int) -> None:
        """Takes the end of a child: one of the roles, or an orphan that became ours."""
        for role in self.roles:
            if role.process and role.process.pid == pid:
                role.process.returncode = os.waitstatus_to_exitcode(status)
                return
        self.adopted = True

    def _start(self) -> None:
        for role in self.roles:
            if self.ended:
                return
            role.start(self.limit)
            self.part.childless = self.part.childless and not role.running
            for stream in role.streams.values():
                self.part.listen(stream.fd, partial(self._take, role, stream))
            if role is not self.roles[-1]:
                self._await(partial(ready_or_ended, role))
            if role.error or (role is not self.roles[-1] and role.awaited is not None):
                self.end("exited")

    def _await(self, done: Callable[[], bool]) -> None:
        """Waits until `done`, the deadline, or a stop, whichever comes first."""
        self.part.wait(lambda: self.looks.due() or self.ended != "" or done(), self.deadline, self.looks.period)
        if not done():
            self.end("timeout")

    def _take(self, role: Role, stream: Stream) -> bool:
        """Reads what one stream has; False when there is nothing more, now or ever."""
        try:
            data = os.read(stream.fd, CHUNK)
        except BlockingIOError:
            return False
        if data:
            role.look(stream.feed(time.monotonic() - self.began, data))
            if role is self.roles[-1]:
                self.looks.at_line()
        else:
            self._close(stream)
        return bool(data)

    def _close(self, stream: Stream) -> None:
        self.part.forget(stream.fd)
        os.close(stream.fd)
        stream.fd = -1

    def _drain(self) -> None:
        """Reads what is still in the pipes, and waits for nobody who may hold one open."""
        for role in self.roles:
            for stream in role.streams.values():
                for _ in range(64):  # more than the largest pipe holds
                    if stream.fd < 0 or not self._take(role, stream):
                        break
                if stream.fd >= 0:
                    self._close(stream)

    def _clear(self) -> None:
        """Ends whatever is left of the attempt, and makes sure that nothing is."""
        if self.ended == "exited":
            for role in self.roles:
                role.terminate()
            self.part.wait(lambda: not any(role.running for role in self.roles), time.monotonic() + self.grace)
            self.part.wait(lambda: self.part.childless, time.monotonic() + LINGER)
        if self.part.childless and not self.adopted:
            return  # no child, so no descendant: a subreaper's orphans become its children
        members = self._signal_all(signal.SIGTERM, signal.SIGCONT)  # what is stopped shall hear it too
        self.part.wait(partial(self._gone, members), time.monotonic() + self.grace, 0.02)
        until = time.monotonic() + CONFIRM
        while self._signal_all(signal.SIGKILL) or not self.part.childless:
            if time.monotonic() > until:
                self.left = set(self._members()) or {0}  # 0: a child that /proc hides from us (hidepid)
                return
            self.part.pause(0.01)

    def _signal_all(self, *numbers: int) -> list[Seen]:
        """Signals all that is left of the attempt, and returns it."""
        members = self._members()
        for seen in members.values():
            for number in numbers:
                seen.send(number)
        self.signalled |= members.keys()
        return list(members.values())

    def _gone(self, members: list[Seen]) -> bool:
        """Whether the tree is empty, and those outside it that carried our marks have ended too."""
        return self.part.childless and not any(seen.alive for seen in members)

    def _members(self) -> dict[int, Seen]:
        """All living processes of the attempt: descendants, and whoever else carries our marks."""
        table = processes()
        found = descendants([self.part.me.pid], table)
        marks = f"{ATTEMPT}={self.name}", f"{OWNER}={self.part.owner}"
        for pid in table.keys() - found.keys() - {self.part.me.pid}:
            entries = read(f"/proc/{pid}/environ").split("\0")
            if all(mark in entries for mark in marks):
                found[pid] = table[pid]
        return found


class Looks:
    """Looks at the node's counters during one attempt: before, after, at lines of output, and every so often."""

    def __init__(self, look: Callable[[], Mapping[str, Any]], began: float, wanted: Mapping[str, Any] | None) -> None:
        self.look, self.began = look, began
        self.wanted = wanted is not None
        self.period = float((wanted or {}).get("period") or FOREVER)
        self.taken: list[list[Any]] = []
        self.last: Mapping[str, Any] | None = None
        if self.wanted:
            self.take()

    def take(self) -> None:
        """Looks now."""
        if self.wanted:
            self.last = self.look()
            self.taken.append([self.last["t"] - self.began, self.last["nics"]])

    def at_line(self) -> None:
        """Looks because a line came: the end of one message size's window, and the start of the next."""
        if self.wanted and time.monotonic() - self.began - self.taken[-1][0] >= LOOK_GAP:
            self.take()

    def due(self) -> bool:
        """Looks if a period has passed; never a reason to stop waiting."""
        if self.period != FOREVER and time.monotonic() - self.began - self.taken[-1][0] >= self.period:
            self.take()
        return False

    def since(self, before: Mapping[str, Any] | None) -> list[Any] | None:
        """Seconds since the attempt before ended, and the counters then: what moved meanwhile is not ours."""
        if before is None or self.last is None:
            return None
        return [self.last["t"] - before["t"], before["nics"]]


def lay_file(folder: str, name: str, content: str) -> None:
    """Writes one small file; a script may be executed."""
    if name in ("", ".", "..") or "/" in name:
        raise ValueError(f"{name!r} is not a plain file name")
    mode = 0o700 if content.startswith("#!") else 0o600
    beside = f"{folder}/{name}.{os.getpid()}"  # nodes that share a file system lay the same file at the same time
    with open(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "w", encoding="utf-8") as file:
        file.write(content.replace("{files}", folder))
    os.rename(beside, f"{folder}/{name}")  # noqa: PTH104 - importing pathlib costs a fifth of the start


def make_shared(path: str) -> str:
    """A folder of the same name on all nodes of an attempt; on a shared file system it is one, and may be there."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        seen = os.lstat(path)
        if seen.st_uid != os.geteuid() or not stat.S_ISDIR(seen.st_mode) or seen.st_mode & 0o077:
            raise PermissionError(f"{path} is there already, and not ours alone") from None
    return path


def ready_or_ended(role: Role) -> bool:
    """Whether there is nothing to wait for before the next role."""
    return role.awaited is None or not role.running


# ---- the node part -------------------------------------------------------------------------------


class Loop:
    """Waits for whatever happens: data, ends of children, signals, the end of the process that is watched."""

    def __init__(self) -> None:
        self.childless = True
        self.ending = ""
        self.hurry = FOREVER
        self.deaf_at = FOREVER
        self.watched: Seen | None = None
        self.selector = selectors.DefaultSelector()
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the byte in the pipe is all that is needed
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: self.end(signal.Signals(number).name))
        self.listen(reader, partial(self._hear, reader))

    def listen(self, fd: int, callback: Callable[[], object]) -> None:
        """Has `callback` called whenever `fd` can be read."""
        self.selector.register(fd, selectors.EVENT_READ, callback)

    def forget(self, fd: int) -> None:
        """Undoes `listen`."""
        self.selector.unregister(fd)

    def turn(self, until: float) -> None:
        """Sleeps until something happens, at most until the time `until`, and handles it."""
        wait = min(until, self.deaf_at) - time.monotonic()
        if self.watched:  # without a pidfd: look again and again
            wait = min(wait, 0.25)
        for key, _ in self.selector.select(None if wait == FOREVER else max(wait, 0.0)):
            key.data()
        if time.monotonic() >= self.deaf_at:
            self.end("nobody has spoken to us for long: the connection is dead")
        if self.watched and not self.watched.alive:
            self.end(f"process {self.watched.pid} ended")

    def wait(self, done: Callable[[], bool], until: float, pause: float = FOREVER) -> None:
        """Turns until `done`, at most until the time `until`; whoever started us being gone leaves FAREWELL only."""
        while not done():
            now = time.monotonic()
            limit = min(until, self.hurry)
            if now >= limit:
                return
            self.turn(min(limit, now + pause))

    def pause(self, seconds: float) -> None:
        """Handles whatever happens for that long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.turn(until)

    def end(self, why: str) -> None:
        """Ends the node part soon: what runs is killed first."""
        if not self.ending:
            self.ending, self.hurry = why, time.monotonic() + FAREWELL

    def watch(self, pid: int) -> None:
        """Has us go when that process ends."""
        self.watched = see(pid)
        if self.watched is None:
            self.end(f"process {pid} ended")
            return
        try:
            self.listen(os.pidfd_open(pid), partial(self.end, f"process {pid} ended"))
            self.watched = None
        except OSError:  # a kernel before 5.3
            return

    def reap(self) -> None:
        """Takes the ends of all children, adopted ones too; without a child there is no descendant."""
        self.childless = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            self.note_end(pid, status)

    def note_end(self, pid: int, status: int) -> None:
        """Takes the end of a child."""

    def _hear(self, reader: int) -> None:
        os.read(reader, CHUNK)
        self.reap()


class Part(Loop):
    """Answers requests one after the other, and `stop` at any time."""

    def __init__(self, starters: set[int], facts: Callable[..., Any], counters: Callable[[], Any]) -> None:
        super().__init__()
        me = see(os.getpid())
        if me is None or read("/proc/self/stat").split()[0] != str(me.pid):
            raise RuntimeError("/proc shows other processes than ours: nothing could be watched or killed safely")
        self.me, self.owner, self.spared = me, f"{me.pid}:{me.start}", {me.pid, *starters}
        self.facts, self.counters = facts, counters
        self.environment = environment("self")
        self.notes: list[str] = []
        self.folder = ""
        self.attempts = 0
        self.attempt: Attempt | None = None
        self.last_look: Mapping[str, Any] | None = None
        self.asking: dict[int, socket.socket] = {}
        self.spawns = 0
        self.requests: deque[dict[str, Any]] = deque()
        self.buffer = b""
        self.silence = FOREVER
        self.listen(0, self._read_requests)

    def serve(self) -> None:
        """Answers requests until it is time to go."""
        while not self.ending:
            self.turn(FOREVER)
            while self.requests and not self.ending:
                self.send(self.answer(self.requests.popleft()))

    def send(self, reply: Mapping[str, Any]) -> None:
        """Writes one reply; nobody there to read it is a reason to go."""
        data = memoryview(json.dumps(reply).encode() + b"\n")
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            self.end("nobody reads our replies")

    def end(self, why: str) -> None:
        """Ends the node part soon: what runs is killed first."""
        super().end(why)
        if self.attempt:
            self.attempt.end("stopped")

    def note_end(self, pid: int, status: int) -> None:
        """Takes the end of a child."""
        if self.attempt:
            self.attempt.note_end(pid, status)

    def finish(self) -> None:
        """Leaves nothing behind: no process, no folder."""
        until = time.monotonic() + CONFIRM
        self.reap()
        while not self.childless and time.monotonic() < until:
            for seen in descendants([self.me.pid], processes()).values():
                seen.send(signal.SIGKILL)
            time.sleep(0.01)
            self.reap()
        if self.folder:
            remove_folder(self.folder)

    def fresh_folder(self) -> str:
        """A new folder that only this user may enter."""
        self.attempts += 1
        path = f"{self.folder}/{self.attempts}"
        os.mkdir(path, 0o700)
        return path

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what is asked, whatever it is."""
        operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "hello": self._hello,
            "run": self._run,
            "stop": self._stop,
            "facts": self._facts,
            "counters": lambda _: dict(self.counters()),
            "clock": lambda _: {"time": time.time()},
        }
        try:
            reply = operations[request["op"]](request)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a request, the next one is answered
            reply = {"error": f"{type(error).__name__}: {error}"}
        return {"id": request.get("id"), **reply}

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self.folder:
            watch = request.get("watch_pid")
            if watch is not None:
                self.spared.add(watch)
                self.watch(watch)
            model = watch if request.get("base") == "watch" and not self.ending else None
            self.environment = users_environment(model, self.notes)
            restore_signals()
            restore_priority(model, self.notes)
            restore_limits(model, self.notes)
            self.folder = make_folder(request["folder"], self.me)
            self.silence = float(request.get("silence") or FOREVER)
            self.deaf_at = time.monotonic() + self.silence
            self._open_socket(f"{self.folder}/stop")
        found, left, others = hunt(self.spared)
        return {
            "ready": True,
            "pid": self.me.pid,
            "socket": f"{self.folder}/stop",
            "strays": len(found),
            "left": sorted(left),
            "others": others,
            "notes": self.notes,
        }

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        self.attempt = Attempt(self, request)
        try:
            return self.attempt.run()
        finally:
            self.attempt = None

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.attempt is None or self.attempt.name != request["attempt"]:
            return {"stopped": False}
        self.attempt.end("stopped")
        return {"stopped": True}

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        env = {**self.environment, **request.get("env", {})}
        env["PATH"] = search_path(request.get("path", ()), env)
        if setup := request.get("setup"):
            shown = self._output(["bash", "-c", setup_script(setup), "setup", "env", "-0"], env)
            env = dict(entry.partition("=")[::2] for entry in shown.split("\0") if "=" in entry) or env
        folders = [*env["PATH"].split(os.pathsep), os.path.dirname(sys.executable)]
        programs = {}
        for name, arguments in request.get("programs", {}).items():
            if path := find_program(name, folders):
                version = self._output([path, *arguments], env) if arguments else ""
                programs[name] = {"path": path, "version": "\n".join(version.split("\n")[:5])}
        found = self.facts(env, self._output if request.get("versions") else None)
        return {**found, "programs": programs}

    def _output(self, argv: list[str], env: dict[str, str]) -> str:
        """What a program prints."""
        program = {"role": argv[0], "argv": argv, "env": env}
        reply = self._run({"attempt": "facts", "processes": [program], "timeout": VERSION_TIMEOUT, "grace": 0.5})
        return "\n".join(line for stream in reply["streams"] for _, line in stream["lines"])

    def _read_requests(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            self.forget(0)
            self.end("stdin ended")
        self.deaf_at = time.monotonic() + self.silence
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in filter(None, lines):
            request = as_request(line)
            if request["op"] == "stop":
                self.send(self.answer(request))
            elif request["op"] == "spawned":
                self._tell_asker(request)
            else:
                self.requests.append(request)

    def _open_socket(self, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        self.listen(listener.fileno(), partial(self._admit, listener))

    def _admit(self, listener: socket.socket) -> None:
        """Takes a caller on the socket, if it is this user or root."""
        caller, _ = listener.accept()
        caller.setblocking(False)
        _, uid, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid in (0, os.geteuid()):
            self.listen(caller.fileno(), partial(self._serve_caller, caller))
        else:
            caller.close()

    def _serve_caller(self, caller: socket.socket) -> None:
        self.forget(caller.fileno())
        try:
            request = as_request(caller.recv(CHUNK))  # each is one small packet
        except OSError:
            request = as_request(b"")
        if request["op"] == "spawn" and self.attempt is not None and self.attempt.name == request.get("attempt"):
            self.spawns += 1
            self.asking[self.spawns] = caller  # answered when the command has ended
            self.send({"event": "spawn", "key": self.spawns, **request})
            return
        with caller:
            try:
                known = request["op"] == "stop"
                reply = self.answer(request) if known else {"error": "only stop, and spawn by a running attempt"}
                caller.sendall(json.dumps(reply).encode() + b"\n")
            except OSError:
                return  # a caller that did not wait for the answer

    def _tell_asker(self, request: Mapping[str, Any]) -> None:
        """Hands the end of a command on another node to the agent that asked for it."""
        asker = self.asking.pop(request["key"])
        with asker:
            try:
                asker.sendall(json.dumps(request).encode() + b"\n")
            except OSError:
                return  # an agent that was killed meanwhile


def as_request(line: bytes) -> dict[str, Any]:
    """A request; what is none becomes one that no operation answers to."""
    try:
        request = json.loads(line)
        return {**request, "op": request["op"]}
    except (ValueError, TypeError, KeyError) as error:
        return {"op": f"not a request: {error!r}"}


def find_program(name: str, folders: Iterable[str]) -> str:
    """A program's absolute path; empty where there is none."""
    for path in [name] if "/" in name else [f"{folder}/{name}" for folder in folders if folder]:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return ""


def settle(*, stay: bool) -> set[int]:
    """Leaves whoever started us: a session of our own, no parent to be killed with; returns our ancestors.

    With `stay` it does not leave: a connection of ssh, or a step of Slurm, ends with the process that it started.
    """
    starters = {seen.pid for seen in ancestors(os.getpid(), processes())}
    if not stay:
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(15, NAME.encode(), 0, 0, 0)  # PR_SET_NAME
    if libc.prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the end of stderr tells our starter that we are on our own
    return starters


def main(facts: Callable[..., Any], counters: Callable[[], Any], *, stay: bool) -> None:
    """Settles, serves, and leaves nothing behind."""
    part = None
    try:
        part = Part(settle(stay=stay), facts, counters)
        part.serve()
    except BaseException:
        import traceback

        os.write(1, json.dumps({"id": None, "crash": traceback.format_exc()}).encode() + b"\n")
        raise
    finally:
        if part is not None:
            part.finish()
