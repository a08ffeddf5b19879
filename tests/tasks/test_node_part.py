"""The node part in the real system: what it starts, reads, kills and tells; its streams by themselves, too."""

from __future__ import annotations

import ast
import itertools
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import node_facts, node_part, pipe

ROOT = Path(__file__).parents[2]
SCRIPT = pipe.script_text()
OWN = {"watch_pid": None, "base": "own"}
Reply = dict[str, Any]


@pytest.fixture(autouse=True)
def node_part_ends_with_the_test() -> Iterator[None]:
    yield
    pipe.close()


@pytest.fixture
def token() -> Iterator[str]:
    """A word that a test's processes carry as their name; nothing that carries it outlives the test."""
    word = f"token{uuid.uuid4().hex[:12]}"
    yield word
    for pid in carriers(word):
        os.kill(pid, signal.SIGKILL)


def ask(**request: Any) -> Reply:
    return pipe.converse(SCRIPT, request, OWN)


def run(*argv: str, **options: Any) -> Reply:
    return attempt([{"role": "one", "argv": list(argv)}], **options)


def shell(script: str, **options: Any) -> Reply:
    return run("bash", "-c", script, **options)


def attempt(processes: list[dict[str, Any]], **options: Any) -> Reply:
    return ask(**{"op": "run", "attempt": "a", "processes": processes, "timeout": 60, "grace": 2.0, **options})


def lines(reply: Reply, stream: str = "stdout", role: str = "one") -> list[str]:
    return [
        text
        for each in reply["streams"]
        if (each["role"], each["stream"]) == (role, stream)
        for _, text in each["lines"]
    ]


def stdout(reply: Reply) -> Reply:
    found: Reply = next(each for each in reply["streams"] if each["stream"] == "stdout")
    return found


def carriers(word: str) -> set[int]:
    """Living processes whose command lines begin with a word."""
    return {pid for pid in node_part.processes() if node_part.read(f"/proc/{pid}/cmdline").startswith(word)}


def eventually(happens: Callable[[], object], within: float = 20.0) -> bool:
    until = time.monotonic() + within
    while not happens():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def sleeper(token: str) -> str:
    """A bash command that becomes a process which carries the token and sleeps."""
    return f"exec -a {token} sleep 300"


def stand_in(code: str, *prefix: str, **options: Any) -> subprocess.Popen[str]:
    """Another process in the place of a Ray worker, with `ask(**request)` at hand."""
    opening = f"""
import json, os, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from tasks import pipe
def ask(hello={OWN!r}, **request):
    return pipe.converse(pipe.script_text(), request, hello)
def run(script, hello={OWN!r}):
    return ask(hello, op="run", attempt="theirs", processes=[{{"role": "one", "argv": ["bash", "-c", script]}}])
"""
    argv = [*prefix, sys.executable, "-c", opening + code]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def finish(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def node_part_above(pid: int) -> int:
    table = node_part.processes()
    return next(seen.pid for seen in node_part.ancestors(pid, table) if seen.name == node_part.NAME)


# ---- how it ends


@pytest.mark.parametrize(
    ("script", "exit_code", "number"),
    [("exit 0", 0, None), ("exit 3", 3, None), ("kill -SEGV $$", None, 11), ("kill -KILL $$", None, 9)],
)
def test_exit_codes_and_signals_come_back(script: str, exit_code: int | None, number: int | None) -> None:
    reply = shell(script)
    assert reply["exits"] == [{"role": "one", "exit_code": exit_code, "signal": number, "error": ""}]
    assert (reply["ended"], reply["left"], reply["killed"], reply["notes"]) == ("exited", [], 0, [])


def test_a_missing_binary_is_an_answer_with_the_errno() -> None:
    reply = run("no-such-binary")
    assert reply["exits"][0]["error"] == "[Errno 2] No such file or directory: 'no-such-binary'"
    assert (reply["exits"][0]["exit_code"], reply["exits"][0]["signal"], reply["ended"]) == (None, None, "exited")


def test_a_file_that_is_not_executable_is_an_answer_with_the_errno(tmp_path: Path) -> None:
    file = tmp_path / "benchmark"
    file.write_text("#!/bin/sh\n")
    assert "[Errno 13]" in run(str(file))["exits"][0]["error"]


def test_a_word_that_no_program_can_be_given_is_an_answer_too() -> None:
    assert "null byte" in run("echo", "a\0b")["exits"][0]["error"]


def test_a_time_out_leaves_time_for_last_words_and_keeps_them() -> None:
    reply = shell("trap 'echo bye; exit 7' TERM; echo begun; while :; do sleep 0.05; done", timeout=0.5)
    assert reply["ended"] == "timeout"
    assert lines(reply) == ["begun", "bye"]
    assert reply["exits"][0]["exit_code"] == 7
    assert reply["left"] == []


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(token: str) -> None:
    reply = shell(f"trap '' TERM; bash -c '{sleeper(token)}' & wait", timeout=0.3, grace=0.3)
    assert (reply["ended"], reply["exits"][0]["signal"], reply["left"]) == ("timeout", 9, [])
    assert reply["killed"] == 2
    assert carriers(token) == set()


def test_a_stopped_process_is_killed(token: str) -> None:
    reply = shell(f"bash -c 'kill -STOP $$; {sleeper(token)}' & kill -STOP $$", timeout=0.5, grace=0.2)
    assert (reply["ended"], reply["left"]) == ("timeout", [])
    assert carriers(token) == set()


# ---- nothing stays


DAEMON = "import os,sys,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"


def test_a_daemon_that_forks_twice_into_its_own_session_is_killed_and_counted(token: str) -> None:
    reply = run(sys.executable, "-c", DAEMON + f"os.execvp('sleep', ['{token}', '300'])")
    assert (reply["ended"], reply["exits"][0]["exit_code"]) == ("exited", 0)
    assert (reply["killed"], reply["left"]) == (1, [])
    assert carriers(token) == set()


def test_a_daemon_that_cleared_its_environment_is_killed(token: str) -> None:
    reply = run(sys.executable, "-c", DAEMON + f"os.execve('/bin/sleep', ['{token}', '300'], {{}})")
    assert (reply["killed"], reply["left"], carriers(token)) == (1, [], set())


def test_a_daemon_that_ends_by_itself_in_a_moment_is_not_killed() -> None:
    reply = shell("(setsid sleep 0.05 &)")
    assert (reply["killed"], reply["left"]) == (0, [])


def test_fifty_processes_in_groups_and_sessions_of_their_own_are_killed(token: str) -> None:
    ranks = f"for i in $(seq 25); do setsid bash -c \"trap '' TERM; {sleeper(token)}\" & "
    ranks += f"bash -c 'set -m; ({sleeper(token)}) & wait' & done; sleep 0.5; kill -KILL $$"
    reply = shell(ranks, grace=0.2)
    assert reply["exits"][0]["signal"] == 9
    assert reply["killed"] >= 50
    assert (reply["left"], carriers(token)) == ([], set())


def test_a_tree_that_goes_on_forking_while_it_is_killed_leaves_nothing(token: str) -> None:
    storm = """
import os, time
for _ in range(200):
    if os.fork() == 0:
        time.sleep(0.02), os.fork(), time.sleep(300)
    time.sleep(0.002)
time.sleep(300)
"""
    reply = shell(f"exec -a {token} {sys.executable} -I -S -c '{storm}'", timeout=0.4, grace=0.0)
    assert reply["ended"] == "timeout"
    assert reply["killed"] > 20
    assert (reply["left"], carriers(token)) == ([], set())


def test_whoever_carries_our_marks_is_killed_though_not_a_descendant(token: str) -> None:
    """As a container engine or a job daemon would start it."""
    outsiders: list[subprocess.Popen[bytes]] = []

    def start_outside() -> None:
        eventually(lambda: carriers(token))
        environment = node_part.environment(next(iter(carriers(token))))
        outsiders.append(subprocess.Popen(["sleep", "300"], env=environment))

    thread = threading.Thread(target=start_outside)
    thread.start()
    reply = shell(f"bash -c '{sleeper(token)}' & sleep 1; kill -KILL $$", grace=0.5)
    thread.join()
    assert outsiders[0].wait(timeout=10) == -signal.SIGTERM
    assert (reply["killed"], reply["left"]) == (2, []), "one inside, one outside"


def test_the_next_attempt_finds_an_empty_tree(token: str) -> None:
    shell(f"(setsid bash -c '{sleeper(token)}' &); exit 1")
    reply = shell("ps -e -o args")
    assert not [line for line in lines(reply) if token in line]


# ---- death of those who started it


def test_sigkill_of_the_worker_leaves_nothing(token: str) -> None:
    worker = stand_in(f"run({DAEMONS.format(sleep=sleeper(token))!r})")
    assert eventually(lambda: len(carriers(token)) == 3)
    part = node_part_above(min(carriers(token)))
    finish(worker)
    assert eventually(lambda: not carriers(token))
    assert eventually(lambda: node_part.see(part) is None)


DAEMONS = "(setsid bash -c '{sleep}' &); env -i bash -c '{sleep}' & trap '' TERM; bash -c '{sleep}'"


def test_the_worker_can_be_killed_only_directly_while_the_node_part_survives_its_process_group(token: str) -> None:
    worker = stand_in(f"run({sleeper(token)!r})", start_new_session=True)
    assert eventually(lambda: carriers(token))
    (sleeping,) = carriers(token)
    part = node_part_above(sleeping)
    assert os.getsid(part) != worker.pid
    assert node_part.processes()[part].parent != worker.pid
    os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()
    assert eventually(lambda: not carriers(token) and node_part.see(part) is None)


def test_the_end_of_the_watched_process_ends_it_all(token: str) -> None:
    raylet = subprocess.Popen(["sleep", "300"])
    hello = {"watch_pid": raylet.pid, "base": "own"}
    worker = stand_in(f"print(json.dumps(run({sleeper(token)!r}, {hello!r})), flush=True)\ntime.sleep(300)")
    assert eventually(lambda: carriers(token))
    (sleeping,) = carriers(token)
    part = node_part_above(sleeping)
    raylet.kill()
    raylet.wait()
    assert worker.stdout is not None
    assert '"ended": "stopped"' in worker.stdout.readline()
    assert eventually(lambda: node_part.see(part) is None)
    assert not carriers(token)
    finish(worker)


def test_a_watched_process_that_is_gone_already_ends_it_at_once() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(ConnectionError):
        pipe.converse(SCRIPT, {"op": "run", "attempt": "a", "processes": []}, {"watch_pid": gone.pid, "base": "own"})


def test_a_kernel_without_pidfds_will_do(token: str) -> None:
    old_kernel = (
        "import os\ndef pidfd_open(pid):\n    raise OSError(38, 'not implemented')\nos.pidfd_open = pidfd_open\n"
    )
    raylet = subprocess.Popen(["sleep", "300"])
    threading.Timer(0.5, raylet.kill).start()
    processes = [{"role": "one", "argv": ["bash", "-c", DAEMONS.format(sleep=sleeper(token))]}]
    hello = {"watch_pid": raylet.pid, "base": "own"}
    reply = pipe.converse(old_kernel + SCRIPT, {"op": "run", "attempt": "a", "processes": processes}, hello)
    raylet.wait()
    assert (reply["ended"], reply["left"], carriers(token)) == ("stopped", [], set())


def test_sigterm_ends_it_cleanly(token: str) -> None:
    part = ask(op="hello")["pid"]
    threading.Timer(0.5, os.kill, (part, signal.SIGTERM)).start()
    reply = shell(sleeper(token))
    assert (reply["ended"], reply["left"]) == ("stopped", [])
    assert eventually(lambda: node_part.see(part) is None)
    assert shell("echo again")["exits"][0]["exit_code"] == 0, "the next request has a new node part"


def test_a_long_grace_is_cut_short_once_the_worker_is_gone(token: str) -> None:
    script = f"trap '' TERM; {sleeper(token)}"
    request = {"attempt": "a", "processes": [{"role": "one", "argv": ["bash", "-c", script]}], "grace": 1000.0}
    worker = stand_in(f"ask(op='run', **{request!r})")
    assert eventually(lambda: carriers(token))
    finish(worker)
    assert eventually(lambda: not carriers(token))


# ---- strays


def test_strays_of_a_killed_node_part_are_hunted_and_those_of_a_living_one_spared(token: str) -> None:
    dead, living = f"{token}dead", f"{token}living"
    tree = f"bash -c '{sleeper(dead)}' & env -i bash -c '{sleeper(dead)}' & {sleeper(dead)}"
    workers = [stand_in(f"run({tree!r})"), stand_in(f"run({sleeper(living)!r})")]
    assert eventually(lambda: len(carriers(dead)) == 3 and len(carriers(living)) == 1)
    os.kill(node_part_above(min(carriers(dead))), signal.SIGKILL)
    workers[0].communicate()
    strays = carriers(dead)
    assert len(strays) == 3, "nobody is there to kill them"

    greeting = ask(op="hello")

    assert greeting["strays"] >= 3
    assert greeting["left"] == []
    assert greeting["others"] >= 1
    assert carriers(dead) == set()
    assert len(carriers(living)) == 1
    finish(workers[1])
    assert eventually(lambda: not carriers(living))


def test_a_process_below_a_living_node_part_is_no_stray_whatever_marker_it_was_handed(token: str) -> None:
    """A launcher forwards its own environment to ranks on other nodes."""
    worker = stand_in(f"run({f'SWEEP_NODE_PART=999999:1 bash -c {shlex.quote(sleeper(token))}'!r})")
    assert eventually(lambda: carriers(token))
    time.sleep(0.2)
    inside = carriers(token)
    ask(op="hello")
    assert carriers(token) == inside
    finish(worker)
    assert eventually(lambda: not carriers(token))


def test_a_strays_hunt_spares_unmarked_processes_and_nonsense_in_markers(token: str) -> None:
    bystanders = [
        subprocess.Popen(["sleep", "300"], env={"SWEEP_ATTEMPT": "x"}),
        subprocess.Popen(["sleep", "300"], env={"SWEEP_ATTEMPT": "x", "SWEEP_NODE_PART": "nonsense"}),
        subprocess.Popen(["sleep", "300"], env={"SWEEP_NODE_PART": "999999:1"}),
    ]
    ask(op="hello")
    assert [bystander.poll() for bystander in bystanders] == [None] * 3
    for bystander in bystanders:
        bystander.kill()
        bystander.wait()


def test_a_strays_hunt_ends_at_the_border_of_a_pid_namespace(token: str) -> None:
    """The numbers in a marker mean something only inside one."""
    inside = f"SWEEP_ATTEMPT=x SWEEP_NODE_PART=999999:1 exec bash -c {shlex.quote(sleeper(token))}"
    lab = subprocess.Popen(["unshare", "-Urpf", "--kill-child", "bash", "-c", inside])
    assert eventually(lambda: carriers(token))
    assert ask(op="hello")["left"] == []
    assert carriers(token)
    lab.kill()
    lab.wait()
    assert eventually(lambda: not carriers(token))


def test_folders_of_killed_node_parts_are_removed(tmp_path: Path) -> None:
    hello = {**OWN, "folder": str(tmp_path)}
    short = tmp_path if len(str(tmp_path)) <= 50 else Path("/tmp")
    first = pipe.converse(SCRIPT, {"op": "hello"}, hello)
    folder = Path(first["socket"]).parent
    assert folder.parent == short
    os.kill(first["pid"], signal.SIGKILL)
    assert eventually(lambda: node_part.see(first["pid"]) is None)
    assert folder.exists()
    pipe.converse(SCRIPT, {"op": "hello"}, hello)
    assert not folder.exists()


# ---- stop


def test_an_attempt_is_stopped_over_the_socket_by_another_process(token: str) -> None:
    path = ask(op="hello")["socket"]
    code = f"while not pipe.tell({{'op': 'stop', 'attempt': 'mine'}}, {path!r})['stopped']: time.sleep(0.01)"
    stopper = stand_in(code)
    reply = shell(f"trap '' TERM; {sleeper(token)}", attempt="mine", grace=0.2)
    assert (reply["ended"], reply["left"]) == ("stopped", [])
    assert stopper.wait(timeout=30) == 0
    stopper.communicate()


def test_stopping_what_does_not_run_is_a_no_op() -> None:
    path = ask(op="hello")["socket"]
    assert pipe.tell({"op": "stop", "attempt": "never"}, path) == {"stopped": False}
    assert ask(op="stop", attempt="never") == {"stopped": False}


def test_nonsense_and_requests_other_than_stop_are_not_met_on_the_socket() -> None:
    path = ask(op="hello")["socket"]
    for nonsense in (b"\0\xff\n", b"[]\n", b"", b"{", b'{"op": "counters"}\n'):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
            caller.sendall(nonsense)
            caller.shutdown(socket.SHUT_WR)
            assert b"error" in caller.recv(4096)
    assert shell("exit 0")["exits"][0]["exit_code"] == 0


def test_nobody_else_may_enter_the_folder_of_the_socket() -> None:
    folder = Path(ask(op="hello")["socket"]).parent
    assert folder.stat().st_mode & 0o777 == 0o700


# ---- output


def test_lines_are_stamped_when_they_are_read() -> None:
    reply = shell("echo a; sleep 0.4; echo b; echo c >&2")
    (t_a, a), (t_b, b) = stdout(reply)["lines"]
    assert (a, b, lines(reply, "stderr")) == ("a", "b", ["c"])
    assert 0 <= t_a < t_b - 0.3 < reply["elapsed"]


def test_a_flood_is_read_to_its_end_in_bounded_memory() -> None:
    part = ask(op="hello")["pid"]
    reply = shell("yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c 200000000; echo; echo last", limit=1 << 20)
    stream = stdout(reply)
    assert reply["exits"][0]["exit_code"] == 0
    assert (stream["size"], stream["truncated"], stream["cut_last"]) == (200_000_006, True, False)
    texts = lines(reply)
    assert texts[-1] == "last"
    assert set(texts[:-2]) == {"0123456789abcdefghijklmnopqrstuvwxyz"}
    assert sum(map(len, texts)) <= 1 << 20
    peak = next(line for line in Path(f"/proc/{part}/status").read_text().splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 64 * 1024, "KiB"


def test_a_flood_without_a_single_newline_is_bounded_too() -> None:
    stream = stdout(shell("head -c 50000000 /dev/zero; echo; echo after", limit=1 << 16))
    assert (stream["size"], stream["truncated"]) == (50_000_007, True)
    assert [text for _, text in stream["lines"]] == ["after"]


def test_a_hundred_thousand_lines_come_back_whole() -> None:
    reply = shell("seq 100000")
    assert lines(reply) == [str(number) for number in range(1, 100_001)]
    assert not stdout(reply)["truncated"]


def test_half_a_line_at_the_end_is_kept_and_flagged() -> None:
    stream = stdout(shell("printf 'one\\ntw'"))
    assert ([text for _, text in stream["lines"]], stream["cut_last"], stream["truncated"]) == (
        ["one", "tw"],
        True,
        False,
    )


def test_a_line_written_in_pieces_is_one_line_with_the_time_of_its_end() -> None:
    ((t, text),) = stdout(shell("printf on; sleep 0.3; echo e"))["lines"]
    assert text == "one"
    assert t > 0.3


@pytest.mark.parametrize(
    ("written", "read"),
    [(r"a\xffb\n", "a\ufffdb"), (r"a\0b\n", "a\0b"), (r"\xe2\x82\xac\n", "€"), (r"\xe2\x82\n", "\ufffd")],
)
def test_bytes_that_are_no_text_come_back_as_text(written: str, read: str) -> None:
    assert lines(run("printf", written)) == [read]


def test_no_output_is_no_lines() -> None:
    assert [(stream["lines"], stream["size"]) for stream in run("true")["streams"]] == [([], 0), ([], 0)]


def test_a_pipe_that_somebody_outside_holds_open_delays_nothing(token: str) -> None:
    held: list[int] = []

    def hold() -> None:
        eventually(lambda: carriers(token))
        held.append(os.open(f"/proc/{next(iter(carriers(token)))}/fd/1", os.O_WRONLY))

    thread = threading.Thread(target=hold)
    thread.start()
    reply = shell(f"echo said; exec -a {token} sleep 1")
    thread.join()
    os.close(held[0])
    assert (lines(reply), reply["ended"], reply["left"]) == (["said"], "exited", [])


def test_there_is_nothing_to_read_on_stdin() -> None:
    assert lines(shell("cat; readlink /proc/self/fd/0")) == ["/dev/null"]


# ---- several roles


SERVER = (
    "trap 'echo closed; exit 0' TERM; echo warming; sleep 0.3; echo listening on 5201; while :; do sleep 0.05; done"
)


def test_the_client_starts_when_the_server_is_ready_and_decides_the_end() -> None:
    server = {"role": "server", "argv": ["bash", "-c", SERVER], "ready": r"listening on \d+"}
    client = {"role": "client", "argv": ["bash", "-c", "echo measured; exit 4"]}
    reply = attempt([server, client])
    ready = next(t for t, text in stdout(reply)["lines"] if text.startswith("listening"))
    measured = reply["streams"][2]["lines"][0][0]
    assert ready < measured
    assert lines(reply, role="server") == ["warming", "listening on 5201", "closed"]
    assert [(exit_["role"], exit_["exit_code"]) for exit_ in reply["exits"]] == [("server", 0), ("client", 4)]
    assert (reply["ended"], reply["killed"], reply["left"]) == ("exited", 0, [])


def test_a_server_that_ends_before_it_is_ready_ends_the_attempt() -> None:
    server = {"role": "server", "argv": ["bash", "-c", "echo address in use >&2; exit 1"], "ready": "listening"}
    reply = attempt([server, {"role": "client", "argv": ["echo"]}])
    assert [(exit_["exit_code"], exit_["error"]) for exit_ in reply["exits"]] == [(1, ""), (None, "not started")]
    assert (reply["ended"], lines(reply, "stderr", "server")) == ("exited", ["address in use"])


def test_a_server_that_never_gets_ready_is_a_time_out() -> None:
    reply = attempt(
        [{"role": "server", "argv": ["sleep", "300"], "ready": "listening"}, {"role": "client", "argv": ["echo"]}],
        timeout=0.3,
    )
    assert (reply["ended"], reply["exits"][0]["signal"], reply["exits"][1]["error"]) == ("timeout", 15, "not started")


def test_a_server_that_does_not_heed_sigterm_is_killed_and_counted() -> None:
    server = {"role": "server", "argv": ["bash", "-c", "trap '' TERM; while :; do sleep 0.05; done"]}
    reply = attempt([server, {"role": "client", "argv": ["sleep", "0.2"]}], grace=0.2)
    assert (reply["ended"], reply["exits"][0]["signal"], reply["left"]) == ("exited", 9, [])
    assert reply["killed"] >= 1


def test_a_client_that_is_missing_ends_the_server(token: str) -> None:
    reply = attempt(
        [{"role": "server", "argv": ["bash", "-c", sleeper(token)]}, {"role": "client", "argv": ["no-such"]}]
    )
    assert reply["exits"][0]["signal"] == 15
    assert carriers(token) == set()


# ---- what a process gets


def test_environment_path_files_and_marks_are_as_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FROM_THE_USER", "kept")
    tool = tmp_path / "mytool"
    tool.write_text("#!/bin/bash\necho $FROM_THE_USER $ADDED; cat $FOLDER/hosts; $FOLDER/agent; echo $SWEEP_ATTEMPT\n")
    tool.chmod(0o700)
    process = {"role": "one", "argv": ["mytool"], "env": {"ADDED": "too", "FOLDER": "{files}"}, "path": [str(tmp_path)]}
    files = {"hosts": "a\nb\n", "agent": "#!/bin/bash\necho {files} $(stat -c %a {files})\n"}
    reply = attempt([process], files=files, attempt="mine")
    *most, folder, mark = lines(reply)
    assert (most, mark) == (["kept too", "a", "b"], "mine")
    path, mode = folder.split()
    assert mode == "700"
    assert not Path(path).exists()


def test_setup_lines_run_before_the_program_in_its_own_process() -> None:
    process = {
        "role": "one",
        "argv": ["bash", "-c", "echo $STACK $0 $1", "word one", "two"],
        "setup": ["load() { export STACK=$1; }", "load hpcx"],
    }
    reply = attempt([process])
    assert lines(reply) == ["hpcx word one two"]
    assert lines(attempt([{"role": "one", "argv": ["sh", "-c", "kill -9 $$"], "setup": ["true"]}])) == []


def test_a_setup_line_that_fails_is_named_and_the_program_not_started() -> None:
    process = {"role": "one", "argv": ["echo", "started"], "setup": ["true", "source /no/such/init.sh"]}
    reply = attempt([process])
    assert reply["exits"][0]["exit_code"] == 1
    assert lines(reply) == []
    assert "setup failed with exit code 1: source /no/such/init.sh" in lines(reply, "stderr")


def test_the_environment_of_the_watched_process_replaces_the_workers(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/home/user", "RAY_ADDRESS": "x", "UCX_TLS": "tcp"}
    preload = "/site-packages/ray/core/libjemalloc.so"
    raylet = subprocess.Popen(["sleep", "300"], env={**environment, "LD_PRELOAD": preload}, stderr=subprocess.DEVNULL)
    code = f"print(run('env', {{'watch_pid': {raylet.pid}, 'base': 'watch'}})['streams'][0]['lines'], flush=True)"
    worker = stand_in(code, env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_JOB_ID": "01"})
    said, _ = worker.communicate()
    raylet.kill()
    raylet.wait()
    found = dict(text.split("=", 1) for _, text in ast.literal_eval(said))
    assert not {"OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_JOB_ID", "LD_PRELOAD"} & found.keys()
    assert (found["HOME"], found["UCX_TLS"], found["SWEEP_ATTEMPT"]) == ("/home/user", "tcp", "theirs")


def test_no_signal_is_blocked_or_ignored() -> None:
    code = "print(json.dumps(run('grep -E \"Sig(Blk|Ign)\" /proc/self/status')['streams'][0]['lines']))"
    spoil = "import signal, os, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); "
    spoil += "signal.signal(signal.SIGUSR1, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    said, _ = stand_in(code, sys.executable, "-c", spoil).communicate()
    of_the_c_library = 0b11 << 31  # 32 and 33: nobody else may touch them, and whoever started us may have
    assert [int(text.split()[1], 16) & ~of_the_c_library for _, text in ast.literal_eval(said)] == [0, 0]


NEUTRAL = """
reply = run("nice; cat /proc/self/oom_score_adj")
print(json.dumps([reply["streams"][0]["lines"], reply["notes"]]))
"""
SPOILT = ("sh", "-c", 'echo 1000 > /proc/self/oom_score_adj; exec nice -n 15 "$@"', "sh")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower a niceness")
def test_niceness_and_oom_score_are_restored() -> None:
    said, _ = stand_in(NEUTRAL, *SPOILT).communicate()
    found, notes = ast.literal_eval(said)
    assert [text for _, text in found][:2] == ["0", "0"]
    assert notes == []


def test_what_may_not_be_restored_is_noted_in_every_attempt() -> None:
    unprivileged = ("setpriv", "--bounding-set", "-all") if os.geteuid() == 0 else ()
    said, _ = stand_in(NEUTRAL, *SPOILT, *unprivileged).communicate()
    found, notes = ast.literal_eval(said)
    assert found[0][1] == "15"
    assert "niceness stays 15 instead of 0: Permission denied" in notes


# ---- requests


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "dance"},
        {"op": "run"},
        {"op": "run", "attempt": "a", "processes": []},
        {
            "op": "run",
            "attempt": "a",
            "processes": [{"role": "x", "argv": ["echo"], "ready": "("}, {"role": "y", "argv": ["echo"]}],
        },
        {"op": "run", "attempt": "a", "processes": [{"role": "x", "argv": ["echo"]}], "files": {"../x": ""}},
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_the_next_one_met(request_: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError):
        ask(**request_)
    assert shell("exit 0")["exits"][0]["exit_code"] == 0


def test_facts_name_the_node_and_the_programs_that_are_there(tmp_path: Path) -> None:
    tool = tmp_path / "mytool"
    tool.write_text("#!/bin/sh\necho version $STACK\nseq 10\n")
    tool.chmod(0o700)
    programs = {"mytool": ["--version"], "no-such-tool": ["--version"], "true": []}
    facts = ask(op="facts", programs=programs, path=[str(tmp_path)], env={}, setup=["export STACK=1.2"])
    assert facts["host"] == socket.gethostname()
    assert 1 <= facts["cpus"] <= (os.cpu_count() or 1)
    assert facts["memory_bytes"] > 1 << 20
    assert facts["programs"]["mytool"] == {"path": str(tool), "version": "version 1.2\n1\n2\n3\n4"}
    assert Path(facts["programs"]["true"]["path"]).is_absolute()
    assert "no-such-tool" not in facts["programs"]
    assert facts["facts"]["kernel"] == os.uname().release
    assert all(isinstance(value, str) and value for value in facts["facts"].values())
    assert "lo" not in {nic["name"] for nic in facts["nics"]}


def test_configuration_files_and_sharp_libraries_are_facts(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Ring\n")
    (tmp_path / "libsharp_coll.so.5").touch()
    (tmp_path / "libother.so").touch()
    facts = node_facts.facts({"HOME": str(tmp_path), "LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"})["facts"]
    assert len(facts[f"sha256 {tmp_path}/.nccl.conf"]) == 64
    assert str(tmp_path / "libsharp_coll.so.5") in facts["sharp_libraries"].split()
    assert "libother" not in facts["sharp_libraries"]


LIBRARY = """\
#include <string.h>
int MPI_Get_library_version(char *text, int *size) { strcpy(text, "Some MPI 7.1\\nbuilt today"); return *size = 0; }
const char *ucp_get_version_string(void) { return "1.17.0"; }
unsigned fi_version(void) { return 2u << 16 | 5; }
int ncclGetVersion(int *code) { *code = CODE; return 0; }
"""


@pytest.mark.parametrize(("code", "version"), [(22803, "2.28.3"), (2708, "2.7.8")])
def test_libraries_tell_their_versions_and_one_that_crashes_costs_only_what_comes_after_it(
    tmp_path: Path, code: int, version: str
) -> None:
    (tmp_path / "all.c").write_text(LIBRARY)
    (tmp_path / "crash.c").write_text("int ncclGetVersion(int *code) { return *(int *)1; }")
    build = ["cc", "-shared", "-fPIC", "-o"]
    for name in ("libucp.so.0", "libfabric.so.1", "libnccl.so.2", "libmpi.so.40"):
        subprocess.run([*build, tmp_path / name, tmp_path / "all.c", f"-DCODE={code}"], check=True)
    request = {"op": "facts", "programs": {}, "path": [], "env": {"LD_LIBRARY_PATH": str(tmp_path)}, "versions": True}
    facts = ask(**request)["facts"]
    assert (facts["libucp.so.0"], facts["libfabric.so.1"]) == ("1.17.0", "2.5")
    assert (facts["libnccl.so.2"], facts["libmpi.so.40"]) == (version, "Some MPI 7.1")
    subprocess.run([*build, tmp_path / "libnccl.so.2", tmp_path / "crash.c"], check=True)
    crashed = ask(**request)["facts"]
    assert crashed["libfabric.so.1"] == "2.5"
    assert not {"libnccl.so.2", "libmpi.so.40"} & crashed.keys()
    assert not [name for name in ask(**{**request, "versions": False})["facts"] if name.startswith("lib")]


def test_counters_count_what_went_over_a_device() -> None:
    before = ask(op="counters")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(100):
            sender.sendto(bytes(1000), ("127.0.0.1", 9))
    after = ask(op="counters")
    assert after["t"] > before["t"]
    assert after["nics"]["lo"]["tx_bytes"] - before["nics"]["lo"]["tx_bytes"] >= 100_000
    assert after["nics"]["lo"]["rx_errors"] >= 0


# ---- the script, and its streams by themselves


@pytest.mark.parametrize("name", ["node_part", "node_facts"])
def test_an_old_system_python_can_read_the_script(name: str) -> None:
    ast.parse((ROOT / "tasks" / f"{name}.py").read_text(), feature_version=(3, 9))


def fed(data: bytes, cuts: list[int], limit: int) -> node_part.Stream:
    stream = node_part.Stream(-1, limit)
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for t, (begin, end) in enumerate(itertools.pairwise(borders)):
        stream.feed(float(t), data[begin:end])
    return stream


OUTPUT = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n", b"0123456789" * 3]), max_size=60).map(b"".join)


@given(OUTPUT, st.lists(st.integers(0, 2000), max_size=20))
@settings(max_examples=200, deadline=None)
def test_output_within_the_limit_is_kept_to_the_byte(data: bytes, cuts: list[int]) -> None:
    report = fed(data, cuts, 1 << 16).report()
    whole, last = data.split(b"\n")[:-1], data.split(b"\n")[-1]
    assert [text.encode() for _, text in report["lines"]] == whole + ([last] if last else [])
    assert (report["size"], report["truncated"], report["cut_last"]) == (len(data), False, bool(last))
    assert [t for t, _ in report["lines"]] == sorted(t for t, _ in report["lines"])


@given(OUTPUT, st.lists(st.integers(0, 2000), max_size=20), st.integers(80, 600))
@settings(max_examples=400, deadline=None)
def test_of_too_much_output_whole_lines_of_head_and_tail_are_kept(data: bytes, cuts: list[int], limit: int) -> None:
    report = fed(data, cuts, limit).report()
    kept = [text.encode() for _, text in report["lines"]]
    last = kept.pop() if report["cut_last"] else b""
    whole = data.split(b"\n")[:-1]
    fits = (
        sum(len(line) + 1 + node_part.LINE_COST for line in whole) <= limit
        and max(map(len, data.split(b"\n"))) <= limit // 2 - 1
    )
    heads = next(n for n in range(len(kept), -1, -1) if kept[:n] == whole[:n])
    tails = next(n for n in range(len(kept), -1, -1) if n == 0 or kept[-n:] == whole[-n:])
    assert report["size"] == len(data)
    assert heads + tails >= len(kept), "every kept line is a whole line of the head or of the tail"
    assert sum(len(line) + 1 + node_part.LINE_COST for line in kept) <= limit
    assert last in (b"", data.split(b"\n")[-1])
    assert report["truncated"] or kept == whole
    assert not (fits and report["truncated"])
