"""The pipe to a node part: started, found dead and started anew, used by threads, and carried to workers by value."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks import node_part, pipe

ROOT = Path(__file__).parents[2]
SCRIPT = pipe.script_text()
OWN = {"watch_pid": None, "base": "own"}


@pytest.fixture(autouse=True)
def node_part_ends_with_the_test() -> Iterator[None]:
    yield
    pipe.close()


def ask(**request: Any) -> dict[str, Any]:
    return pipe.converse(SCRIPT, request, OWN)


def sleep(seconds: float, name: str) -> dict[str, Any]:
    processes = [{"role": "one", "argv": ["sleep", str(seconds)]}]
    return ask(op="run", attempt=name, processes=processes, grace=0.5)


def in_thread(results: list[Any], seconds: float, name: str) -> threading.Thread:
    def work() -> None:
        try:
            results.append(sleep(seconds, name))
        except ConnectionError as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def is_alive(pid: int) -> bool:
    return node_part.see(pid) is not None


def test_one_node_part_serves_a_process_until_it_is_closed() -> None:
    first = ask(op="hello")
    assert ask(op="hello")["pid"] == first["pid"]
    assert is_alive(first["pid"])
    pipe.close()
    assert not is_alive(first["pid"])
    assert not Path(first["socket"]).parent.exists()
    assert ask(op="hello")["pid"] != first["pid"]


def test_closing_what_was_never_opened_is_a_no_op() -> None:
    pipe.close()
    pipe.close()


def test_a_node_part_that_died_idle_is_replaced_without_a_word() -> None:
    first = ask(op="hello")["pid"]
    os.kill(first, signal.SIGKILL)
    while is_alive(first):
        time.sleep(0.01)
    assert sleep(0, "a")["exits"][0]["exit_code"] == 0


def test_a_node_part_that_dies_under_a_request_is_a_connection_error_and_the_next_call_starts_another() -> None:
    first = ask(op="hello")["pid"]
    threading.Timer(0.3, os.kill, (first, signal.SIGKILL)).start()
    with pytest.raises(ConnectionError, match="it was killed"):
        sleep(300, "a")
    second = ask(op="hello")
    assert second["pid"] != first
    assert second["strays"] <= 1, "the one left behind is hunted when the second is started"


def test_what_the_node_part_refuses_is_a_runtime_error_with_its_words() -> None:
    with pytest.raises(RuntimeError, match=r"KeyError: 'dance'"):
        ask(op="dance")


def test_a_script_that_python_cannot_run_is_a_runtime_error_with_its_words() -> None:
    with pytest.raises(RuntimeError, match="SyntaxError"):
        pipe.converse("this is no script", {"op": "hello"}, OWN)


def test_a_hello_that_fails_leaves_no_half_greeted_node_part_behind() -> None:
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        pipe.converse(SCRIPT, {"op": "counters"}, {**OWN, "folder": "/no/such/folder"})
    assert sleep(0, "a")["exits"][0]["exit_code"] == 0


def test_threads_take_turns() -> None:
    results: list[Any] = []
    threads = [in_thread(results, 0.1, f"a{number}") for number in range(4)]
    for thread in threads:
        thread.join()
    assert [result["exits"][0]["exit_code"] for result in results] == [0] * 4
    starts = sorted(result["start"] for result in results)
    assert all(later - earlier >= 0.1 for earlier, later in itertools.pairwise(starts))


def test_a_stop_is_told_while_another_thread_converses_and_finds_the_attempt_by_itself() -> None:
    results: list[Any] = []
    thread = in_thread(results, 300, "mine")
    while not pipe.tell({"op": "stop", "attempt": "mine"})["stopped"]:
        time.sleep(0.01)
    thread.join()
    assert results[0]["ended"] == "stopped"
    assert pipe.tell({"op": "stop", "attempt": "mine"}) == {"stopped": False}


def test_a_stop_told_to_a_node_part_that_is_gone_stops_nothing() -> None:
    path = ask(op="hello")["socket"]
    pipe.close()
    assert pipe.tell({"op": "stop", "attempt": "mine"}, path) == {"stopped": False}


def test_closing_ends_a_conversation_that_another_thread_waits_in() -> None:
    pid = ask(op="hello")["pid"]
    results: list[Any] = []
    thread = in_thread(results, 300, "mine")
    time.sleep(0.3)
    pipe.close()
    thread.join()
    assert isinstance(results[0], ConnectionError) or results[0]["ended"] == "stopped"
    assert not is_alive(pid)


def test_an_interrupted_conversation_ends_the_attempt_and_the_node_part() -> None:
    pid = ask(op="hello")["pid"]
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        sleep(300, "a")
    assert not is_alive(pid)


def test_a_forked_child_does_not_talk_to_its_parents_node_part() -> None:
    pid = ask(op="hello")["pid"]
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tasks import pipe
mine = pipe.converse(pipe.script_text(), {{"op": "hello"}}, {OWN!r})["pid"]
if os.fork() == 0:
    theirs = pipe.converse(pipe.script_text(), {{"op": "hello"}}, {OWN!r})["pid"]
    pipe.close()
    os._exit(0 if theirs != mine else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert is_alive(pid)


def test_a_request_and_a_reply_larger_than_a_pipe_come_through() -> None:
    text = "0123456789\n" * 100_000
    processes = [{"role": "one", "argv": ["cat", "{files}/big"]}]
    reply = ask(op="run", attempt="a", processes=processes, files={"big": text})
    assert len(reply["streams"][0]["lines"]) == 100_000


def test_it_starts_in_a_process_whose_standard_streams_are_closed() -> None:
    """The ends of its pipes may get the numbers 0 to 2 there."""
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
os.closerange(0, 3)
from tasks import pipe
request = {{"op": "run", "attempt": "a", "processes": [{{"role": "one", "argv": ["echo", "x"]}}]}}
reply = pipe.converse(pipe.script_text(), request, {OWN!r})
pipe.close()
os._exit(0 if reply["streams"][0]["size"] == 2 else 1)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_it_travels_by_value_to_a_worker_where_the_user_has_a_tasks_module_of_his_own(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("raise RuntimeError('the wrong tasks')\n")
    pickled, script = tmp_path / "pickled", tmp_path / "script"
    script.write_text(SCRIPT)
    send = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from ray import cloudpickle
from tasks import pipe
cloudpickle.register_pickle_by_value(pipe)
open({str(pickled)!r}, "wb").write(cloudpickle.dumps([pipe.converse, pipe.tell, pipe.close]))
"""
    receive = f"""
import pickle, sys
for _ in range(2):  # each task is unpickled anew
    converse, tell, close = pickle.load(open({str(pickled)!r}, "rb"))
    request = {{"op": "hello"}}
    print(converse(open({str(script)!r}).read(), request, {{"watch_pid": None, "base": "own"}})["pid"])
print(tell({{"op": "stop", "attempt": "x"}}))
close()
assert not any(name.startswith(("tasks", "schemas")) for name in sys.modules)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", send], check=True, timeout=120, cwd="/")
    options: dict[str, Any] = {"check": True, "timeout": 120, "cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
    said = subprocess.run([sys.executable, "-W", "ignore::ResourceWarning", "-c", receive], **options).stdout.split(
        "\n"
    )
    assert said[0] == said[1], "one node part per process"
    assert said[2] == "{'stopped': False}"
