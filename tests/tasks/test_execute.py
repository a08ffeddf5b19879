"""Requests and replies, from the driver's side: pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.attempt import Asked, Exit, Line, Process
from schemas.plan import Nic, Tool
from tasks import execute

ASKED = Asked("imb", "pingpong", (1, 2))


def reply(**changes: Any) -> dict[str, Any]:
    stream = {"role": "ranks", "stream": "stdout", "lines": [[0.1, "a"], [0.2, "b"]], "size": 3, "truncated": False}
    return {
        "start": 1000.5,
        "elapsed": 0.0,
        "ended": "exited",
        "exits": [{"role": "ranks", "exit_code": 0, "signal": None, "error": ""}],
        "streams": [{**stream, "cut_last": True}],
        "left": [],
        "killed": 0,
        "notes": [],
        "looks": [],
        "idle": None,
        **changes,
    }


def test_a_request_is_plain_json_with_everything_that_a_process_needs() -> None:
    process = Process("client", 1, ("iperf3", "-c"), {"A": "1"}, ("/opt/bin",), ("module load x",), "ready")
    request = execute.run_request("id", [process], {"hosts": "a\n"}, None, grace=0.0, limit=10)
    assert json.loads(json.dumps(request)) == request
    assert request == {
        "op": "run",
        "attempt": "id",
        "processes": [
            {
                "role": "client",
                "argv": ["iperf3", "-c"],
                "env": {"A": "1"},
                "path": ["/opt/bin"],
                "setup": ["module load x"],
                "ready": "ready",
            }
        ],
        "files": {"hosts": "a\n"},
        "timeout": None,
        "grace": 0.0,
        "limit": 10,
        "looks": {},
    }


def test_a_reply_becomes_an_output_and_zero_stays_zero() -> None:
    output = execute.output(ASKED, reply(left=[7], killed=2, notes=["niceness stays 15"]), node=3)
    assert (output.asked, output.start, output.elapsed, output.ended) == (ASKED, 1000.5, 0.0, "exited")
    assert output.exits == (Exit("ranks", 3, 0, None, ""),)
    assert (output.left, output.killed, output.notes) == ((7,), 2, ("niceness stays 15",))
    assert output.streams[0].lines == (Line(0.1, "a"), Line(0.2, "b"))
    assert (output.streams[0].node, output.streams[0].size, output.streams[0].text) == (3, 3, "a\nb")


@pytest.mark.parametrize(
    ("ended", "signal", "dropped", "truncated"),
    [
        ("exited", None, False, False),
        ("exited", None, True, True),
        ("exited", 9, False, True),
        ("timeout", None, False, True),
        ("stopped", None, False, True),
    ],
)
def test_a_last_line_without_its_end_is_whole_only_if_the_role_ended_by_itself(
    ended: str, signal: int | None, *, dropped: bool, truncated: bool
) -> None:
    answer = reply(ended=ended)
    answer["exits"][0]["signal"] = signal
    answer["streams"][0]["truncated"] = dropped
    assert execute.output(ASKED, answer).streams[0].truncated is truncated


NIC = {"link_layer": "ethernet", "rate_gbps": None, "state": "ACTIVE", "numa": 0, "firmware": None}


def test_facts_become_a_node_with_its_nics_and_the_first_internet_address() -> None:
    answer = {
        "host": "n1",
        "cpus": 2,
        "memory_bytes": None,
        "nics": [{"name": "mlx5_0:1", "address": "fe80::1", **NIC}, {"name": "eth0", "address": "10.0.0.1", **NIC}],
        "facts": {"kernel": "6"},
        "programs": {"mpiexec": {"path": "/usr/bin/mpiexec", "version": "HYDRA"}},
    }
    node = execute.node(answer)
    assert (node.name, node.address, node.cpus, node.memory_bytes) == ("n1", "10.0.0.1", 2, None)
    assert node.nics is not None
    assert node.nics[1] == Nic("eth0", "ethernet", None, "ACTIVE", 0, "10.0.0.1", None)
    assert node.facts == {"kernel": "6"}
    assert execute.tools(answer) == {"mpiexec": Tool("mpiexec", "/usr/bin/mpiexec", "HYDRA")}


def test_a_node_without_nics_has_no_address_and_is_not_unknown() -> None:
    node = execute.node({"host": "n", "cpus": 1, "memory_bytes": 1, "nics": [], "facts": {}, "programs": {}})
    assert (node.address, node.nics) == ("", ())
