"""What crosses between nodes of one attempt: the agent that launchers call instead of ssh, and looks at counters."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks import agent, pipe

ROOT = Path(__file__).parents[2]
SCRIPT = pipe.script_text()
OWN = {"watch_pid": None, "base": "own"}
AGENT = f"#!/usr/bin/env python3\n{(ROOT / 'tasks' / 'agent.py').read_text()}"


@pytest.fixture(autouse=True)
def node_part_ends_with_the_test() -> Iterator[None]:
    yield
    pipe.close()


def run(argv: list[str], spawn: pipe.Spawn | None = None, **more: Any) -> dict[str, Any]:
    request = {
        "op": "run",
        "attempt": "a1",
        "processes": [{"role": "ranks", "argv": argv}],
        "files": {"agent": AGENT},
        "timeout": 60.0,
        "grace": 1.0,
        **more,
    }
    return pipe.converse(SCRIPT, request, OWN, spawn)


@pytest.mark.parametrize(
    ("words", "host", "command"),
    [
        (["node1", "echo", "a b"], "node1", "echo a b"),
        (["-x", "node1", "hydra_pmi_proxy --control-port 1"], "node1", "hydra_pmi_proxy --control-port 1"),
        (["-q", "-p", "22", "-o", "StrictHostKeyChecking=no", "me@node1", "true"], "node1", "true"),
        (["10.0.0.1", "orted", "-mca", "x", "y"], "10.0.0.1", "orted -mca x y"),
    ],
)
def test_the_agent_is_called_as_ssh_is(words: list[str], host: str, command: str) -> None:
    assert agent.parse(words) == (host, command)


def test_a_command_of_the_agent_runs_where_spawn_runs_it_and_ends_as_it_ended() -> None:
    asked: list[tuple[str, str]] = []

    def spawn(host: str, command: str) -> int:
        asked.append((host, command))
        return 7

    reply = run(["{files}/agent", "-x", "node1", "some command"], spawn)
    assert asked == [("node1", "some command")]
    assert reply["exits"][0]["exit_code"] == 7


def test_many_commands_run_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=30)

    def spawn(host: str, command: str) -> int:
        together.wait()
        return 0

    script = "for i in 1 2 3; do {files}/agent node$i go & done; wait"
    assert run(["bash", "-c", script], spawn)["exits"][0]["exit_code"] == 0


def test_a_host_outside_the_gang_is_refused_with_a_reason() -> None:
    def spawn(host: str, command: str) -> int:
        raise LookupError(f"{host} is no node of this attempt")

    reply = run(["{files}/agent", "elsewhere", "true"], spawn)
    assert reply["exits"][0]["exit_code"] == 255
    said = [text for stream in reply["streams"] if stream["stream"] == "stderr" for _, text in stream["lines"]]
    assert said == ["sweep agent: elsewhere is no node of this attempt"]


def test_without_other_nodes_every_host_is_refused() -> None:
    assert run(["{files}/agent", "node1", "true"])["exits"][0]["exit_code"] == 255


def test_an_agent_of_another_attempt_is_refused() -> None:
    reply = run(["env", "SWEEP_ATTEMPT=a2", "{files}/agent", "node1", "true"], lambda host, command: 0)
    assert reply["exits"][0]["exit_code"] == 255


def test_an_attempt_that_is_killed_does_not_wait_for_its_agents() -> None:
    gone = threading.Event()
    reply = run(["{files}/agent", "node1", "true"], lambda host, command: int(gone.wait(30)), timeout=0.5)
    gone.set()
    assert reply["ended"] == "timeout"
    assert not reply["left"]


def test_real_mpich_starts_its_ranks_through_the_agent() -> None:
    """Its proxies run here, started by the agent's command as a shell would; the ranks say their number."""
    import subprocess

    mpich = ROOT / ".stacks" / "mpich" / "bin"
    commands: list[str] = []

    def spawn(host: str, command: str) -> int:
        commands.append(command)
        return subprocess.run(["bash", "-c", command], check=False, stdin=subprocess.DEVNULL).returncode

    argv = [f"{mpich}/mpiexec", "-launcher", "ssh", "-launcher-exec", "{files}/agent", "-hosts", "nodeA", "-n", "2"]
    reply = run([*argv, "-iface", "lo", "bash", "-c", "echo rank $PMI_RANK"], spawn)
    said = sorted(text for stream in reply["streams"] for _, text in stream["lines"] if text.startswith("rank"))
    assert len(commands) == 1, reply
    assert "hydra_pmi_proxy" in commands[0]
    assert said == ["rank 0", "rank 1"]


def test_looks_count_what_went_over_the_loopback_and_lines_of_output_bound_them() -> None:
    code = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
def sink():
    peer, _ = listener.accept()
    while peer.recv(1 << 20):
        pass
threading.Thread(target=sink, daemon=True).start()
sender = socket.create_connection(listener.getsockname())
import time
for megabytes in (1, 8):
    print("start", flush=True)
    time.sleep(0.05)
    sender.sendall(bytes(megabytes << 20))
    time.sleep(0.2)
    print(megabytes, flush=True)
"""
    reply = run(["python3", "-c", code], looks={})
    looks = [(t, nics["lo"]["tx_bytes"]) for t, nics in reply["looks"]]
    total = looks[-1][1] - looks[0][1]
    assert total >= 9 << 20
    assert len(looks) >= 5
    stdout = next(stream["lines"] for stream in reply["streams"] if stream["stream"] == "stdout")
    ends = [t for t, text in stdout if text != "start"]
    at = [next(count for t, count in looks if t >= end) for end in ends]
    assert 8 << 20 <= at[1] - at[0] < total


def test_a_period_gives_looks_without_output() -> None:
    reply = run(["sleep", "1"], looks={"period": 0.1})
    times = [t for t, _ in reply["looks"]]
    assert len(times) >= 8
    assert times == sorted(times)


def test_without_being_asked_nobody_looks() -> None:
    assert run(["true"])["looks"] == []


def test_what_moved_between_two_attempts_is_told() -> None:
    assert run(["true"], looks={})["idle"] is None
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sender:
        peer, _ = listener.accept()
        with peer:
            threading.Thread(target=sender.sendall, args=(bytes(4 << 20),), daemon=True).start()
            got = 0
            while got < 4 << 20:
                got += len(peer.recv(1 << 20))
    reply = run(["true"], looks={})
    seconds, before = reply["idle"]
    assert seconds > 0
    assert reply["looks"][0][1]["lo"]["tx_bytes"] - before["lo"]["tx_bytes"] >= 4 << 20


def test_a_shared_folder_may_be_there_already_and_a_strangers_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    reply = run(["cat", "{files}/sizes"], files={"sizes": "4\n8\n"}, folder=str(shared))
    assert [text for stream in reply["streams"] for _, text in stream["lines"]] == ["4", "8"]
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(RuntimeError, match="not ours alone"):
        run(["true"], folder=str(open_to_all))


def test_sampling_ten_times_a_second_costs_less_than_a_hundredth_of_a_core() -> None:
    """CPU time of the node part itself, which a busy machine does not stretch as it stretches wall time."""
    pid = pipe.converse(SCRIPT, {"op": "hello"}, OWN)["pid"]

    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100.0

    before = spent()
    reply = run(["sleep", "6"], looks={"period": 0.1})
    assert len(reply["looks"]) >= 40
    assert spent() - before <= 0.01 * reply["elapsed"] + 0.02, "two clock ticks are what can be seen at all"
