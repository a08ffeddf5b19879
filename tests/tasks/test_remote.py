"""The node part as ssh and srun start it: it stays, and ends with its connection, however that dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tasks import pipe, remote

SCRIPT = pipe.script_text(stay=True).encode()


@pytest.fixture
def part() -> Iterator[subprocess.Popen[bytes]]:
    """A node part as a child of ours, its script on the way."""
    words = remote.command("srun", "here", SCRIPT)
    program = words[words.index("python3") + 1 :]
    with subprocess.Popen([sys.executable, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(SCRIPT)
        yield process
        process.kill()


def say(process: subprocess.Popen[bytes], **request: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    reply: dict[str, Any] = json.loads(process.stdout.readline())
    return reply


def hello(process: subprocess.Popen[bytes], **more: Any) -> dict[str, Any]:
    say(process, op="hello", id=1, watch_pid=None, base="own", folder="/tmp", **more)
    return hear(process)


def test_it_stays_the_process_that_was_started(part: subprocess.Popen[bytes]) -> None:
    assert hello(part)["pid"] == part.pid
    say(part, op="counters", id=2)
    assert hear(part)["id"] == 2


def test_it_ends_when_the_connection_does(part: subprocess.Popen[bytes]) -> None:
    hello(part)
    assert part.stdin is not None
    part.stdin.close()
    assert part.wait(20) == 0


def test_it_kills_what_runs_and_ends_when_nobody_speaks_any_more(part: subprocess.Popen[bytes]) -> None:
    """A link that is cut closes nothing: no end of stdin comes, and no signal."""
    hello(part, silence=1.5)
    say(part, op="run", id=2, attempt="a", processes=[{"role": "r", "argv": ["sleep", "60"]}])
    reply = hear(part)
    assert reply["ended"] == "stopped"
    assert reply["elapsed"] >= 1.0
    assert part.wait(20) == 0


def test_empty_lines_are_signs_of_life_and_no_requests(part: subprocess.Popen[bytes]) -> None:
    hello(part, silence=3.0)
    say(part, op="run", id=2, attempt="a", processes=[{"role": "r", "argv": ["sleep", "4"]}])
    assert part.stdin is not None
    for _ in range(8):
        part.stdin.write(b"\n")
        part.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            part.wait(0.5)
    assert hear(part)["ended"] == "exited"


def test_the_command_of_ssh_is_one_line_for_any_shell() -> None:
    *options, host, line = remote.command("ssh", "me@node1", SCRIPT)
    assert (options[0], options[-1], host) == ("ssh", "--", "me@node1")
    assert "\n" not in line
    assert line.startswith("exec python3 -I -S -c ")


def test_srun_is_told_of_the_allocation_and_of_no_shape_of_another_step() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "8", "SLURM_CONF": "/c", "PATH": "/bin"}
    assert remote.environment("srun", environ) == {"SLURM_JOB_ID": "7", "SLURM_CONF": "/c", "PATH": "/bin"}
    assert remote.environment("ssh", environ) == environ
