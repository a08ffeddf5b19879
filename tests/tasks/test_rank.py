"""The rank wrapper: each rank its own environment, what it reports, and that a program cannot tell it was wrapped."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.attempt import Asked, Line, Output, Stream
from tasks import rank, wrap
from tests.tasks.lab_ranks import STACKS, mpiexec, output

HOST = os.uname().nodename
ENV = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}


def wrapped(
    folder: Path,
    argv: Sequence[str],
    ranks: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
    record: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    flavour: str | None = "mpich",
    before: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program behind the wrapper, with the files of its launch laid into a folder."""
    for name, text in wrap.files(ranks or {}, record, "mpiexec", flavour).items():
        (folder / name).write_text(text)
    line = [word.replace("{files}", str(folder)) for word in (*before, *wrap.command(argv, sys.executable))]
    return subprocess.run(line, env={**ENV, **(env or {})}, capture_output=True, text=True, timeout=60)


def printing(*expressions: str) -> tuple[str, ...]:
    """A program that prints these as JSON."""
    code = f"import json, os, sys; sys.stdout.write(json.dumps([{', '.join(expressions)}]) + chr(10))"
    return (sys.executable, "-I", "-c", code)


@pytest.mark.parametrize("stack", STACKS)
def test_every_rank_of_a_real_launcher_gets_its_own_environment_and_reports_it(stack: str, tmp_path: Path) -> None:
    launcher = mpiexec(stack)
    more = ("--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE") if stack == "openmpi5" else ()
    envs = [{"UCX_NET_DEVICES": f"mlx5_{local}:1", "SOME": 'it\'s "a" $b'} for local in range(3)]
    done = wrapped(
        tmp_path,
        printing("os.environ['UCX_NET_DEVICES'], os.environ['SOME'], sys.argv[1:]", "os.getpid()"),
        {HOST: envs, "elsewhere": [{}]},
        ["UCX_NET_DEVICES", "UNSET"],
        {"CUDA_VISIBLE_DEVICES": "1,2", "LD_LIBRARY_PATH": str(STACKS[stack] / "lib"), "SECRET": "s3cret"},
        stack,
        (launcher.path, *more, "-n", "3"),
    )
    assert done.returncode == 0, done.stderr
    seen = sorted(json.loads(line)[0] for line in done.stdout.splitlines())
    assert seen == [f"mlx5_{local}:1" for local in range(3)]
    left, reports = wrap.reports(output(done))
    assert [(each.host, each.rank, each.gpu) for each in reports] == [(HOST, number, "1,2") for number in range(3)]
    assert sorted(each.local_rank for each in reports if each.local_rank is not None) == [0, 1, 2]
    assert all(each.env == {"UCX_NET_DEVICES": f"mlx5_{each.local_rank}:1"} for each in reports)
    assert all(re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", each.cpus) for each in reports)
    assert rank.MARK not in "\n".join(line.text for line in left.lines())
    assert "s3cret" not in done.stderr


def test_labels_that_a_launcher_puts_before_lines_go_with_the_reports(tmp_path: Path) -> None:
    launcher = mpiexec("mpich")
    done = wrapped(
        tmp_path,
        ("sh", "-c", "echo said >&2"),
        record=["HOME"],
        before=(launcher.path, "-prepend-rank", "-n", "2"),
    )
    left, reports = wrap.reports(output(done))
    assert [each.rank for each in reports] == [0, 1]
    assert sorted(line.text for line in left.lines("stderr")) == ["[0] said", "[1] said"]


def test_the_program_is_as_it_would_be_without_the_wrapper(tmp_path: Path) -> None:
    look = (
        "sh",
        "-c",
        "env | sort; grep -E '^(Sig|Cpus_allowed_list)' /proc/self/status; ls /proc/self/fd; echo $0 $@",
        "a",
        "b c",
    )
    bare = subprocess.run(look, env=ENV, capture_output=True, text=True)
    done = wrapped(tmp_path, look)
    assert done.stdout == bare.stdout
    assert done.stdout.count("LC_CTYPE") == 0


def test_the_program_takes_the_wrappers_place(tmp_path: Path) -> None:
    assert wrapped(tmp_path, ("sh", "-c", "exit 7")).returncode == 7
    assert wrapped(tmp_path, ("sh", "-c", "kill -TERM $$")).returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (("no-such-program",), 127, "sweep rank: cannot start no-such-program: No such file or directory"),
        (("/etc/passwd",), 126, "sweep rank: cannot start /etc/passwd: Permission denied"),
    ],
)
def test_a_program_that_cannot_start_is_told_as_a_shell_tells_it(
    tmp_path: Path, argv: tuple[str, ...], code: int, text: str
) -> None:
    done = wrapped(tmp_path, argv)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, text)


def test_a_rank_for_which_there_is_no_environment_does_not_run(tmp_path: Path) -> None:
    two = [{"A": "0"}, {"A": "1"}]
    ran = printing("'ran'")
    unnumbered = wrapped(tmp_path, ran, {HOST: two})
    assert "no variable tells the local rank: MPI_LOCALRANKID" in unnumbered.stderr
    third = wrapped(tmp_path, ran, {HOST: two}, env={"MPI_LOCALRANKID": "2"})
    assert f"local rank 2 on {HOST}, and the launch has 2 ranks per node" in third.stderr
    stranger = wrapped(tmp_path, ran, {"a": two, "b": [{}]}, env={"MPI_LOCALRANKID": "0"})
    assert f"{HOST} is none of the nodes of this launch" in stranger.stderr
    assert {(each.returncode, each.stdout) for each in (unnumbered, third, stranger)} == {(rank.REFUSED, "")}


def test_a_launcher_inside_an_allocation_is_not_taken_for_the_allocations_own(tmp_path: Path) -> None:
    two = [{"A": "0"}, {"A": "1"}]
    env = {"SLURM_LOCALID": "0", "MPI_LOCALRANKID": "1"}
    assert json.loads(wrapped(tmp_path, printing("os.environ['A']"), {HOST: two}, env=env).stdout) == ["1"]
    assert wrap.local_rank_variables("srun", None)[0] == "SLURM_LOCALID"
    assert "SLURM_LOCALID" not in wrap.local_rank_variables("mpiexec", "openmpi5")


def test_one_environment_for_all_ranks_of_a_node_needs_no_number(tmp_path: Path) -> None:
    ranks = {HOST: [{"A": "here"}], "elsewhere": [{"A": "there"}]}
    assert json.loads(wrapped(tmp_path, printing("os.environ['A']"), ranks).stdout) == ["here"]


def test_a_program_killed_by_a_closed_pipe_dies_as_it_always_does(tmp_path: Path) -> None:
    done = wrapped(tmp_path, ("bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}"))
    assert done.stdout.splitlines()[-1] == str(128 + signal.SIGPIPE)


def test_binding_is_reported_as_it_is(tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    done = wrapped(tmp_path, ("true",), before=("taskset", "-c", str(one)))
    assert [each.cpus for each in wrap.reports(output(done))[1]] == [str(one)]


def test_values_of_any_length_and_bytes_come_back_in_lines_that_stay_whole(tmp_path: Path) -> None:
    env = {
        "LONG": "x" * 100_000,
        "ODD": os.fsdecode(b"caf\xe9"),
        "WORDS": "größer\n\t\"'",
        **{f"V{i}": "y" * 300 for i in range(20)},
    }
    done = wrapped(tmp_path, ("true",), record=list(env), env=env)
    assert max(map(len, done.stderr.splitlines())) < 4096
    left, (report,) = wrap.reports(output(done))
    assert list(left.lines()) == []
    assert report.env["WORDS"] == env["WORDS"]
    assert report.env["ODD"] == "caf?"
    assert report.env["LONG"].startswith("xxx")
    assert report.env["LONG"].endswith("…")
    assert [report.env[f"V{i}"] for i in range(20)] == ["y" * 300] * 20


@given(st.sets(st.integers(0, 300)))
def test_cpus_are_written_as_the_kernel_writes_them(cpus: set[int]) -> None:
    text = rank.ranges(cpus)
    spans = [[int(end) for end in span.split("-")] for span in text.split(",") if span]
    assert [cpu for span in spans for cpu in range(span[0], span[-1] + 1)] == sorted(cpus)
    assert all(after[0] > before[-1] + 1 for before, after in itertools.pairwise(spans))


@given(st.text(), st.text(alphabet='ab {}":,', max_size=8))
def test_a_line_that_is_no_report_stays_whatever_stands_in_it(before: str, after: str) -> None:
    line = Line(0.0, f"{before}{rank.MARK}{after}")
    given_output = Output(Asked("b", "o"), 0.0, 1.0, "exited", streams=(Stream("r", 0, "stderr", (line,)),))
    assert wrap.reports(given_output) == (given_output, ())


def test_words_of_another_rank_on_the_line_of_a_report_stay() -> None:
    report = {"host": "a", "rank": 0, "local_rank": 0, "cpus": "0", "gpu": None, "env": {}}
    line = Line(1.0, f"half a sent{rank.MARK}{json.dumps(report)}ence")
    found, ranks = wrap.reports(
        Output(Asked("b", "o"), 0.0, 1.0, "exited", streams=(Stream("r", 0, "stderr", (line,)),))
    )
    assert [each.text for each in found.lines()] == ["half a sentence"]
    assert [each.host for each in ranks] == ["a"]


def test_nodes_with_the_same_environment_share_one_set() -> None:
    many = {f"n{i}": [{"A": "1"}, {"A": "2"}] for i in range(1000)}
    same = json.loads(wrap.files(many, [], "mpiexec", "mpich")[wrap.SPEC])
    assert (len(same["sets"]), same["nodes"]) == (1, {})
    other = json.loads(wrap.files({**many, "odd": [{}]}, [], "mpiexec", "mpich")[wrap.SPEC])
    assert (len(other["sets"]), other["nodes"]["n7"], other["nodes"]["odd"]) == (2, 0, 1)


def test_what_ranks_report_stands_in_an_attempt_s_evidence_by_rank() -> None:
    ranks = [wrap.Rank("n1", 0, 0, "0-3", "1", {"UCX_NET_DEVICES": "a"}), wrap.Rank("n2", None, None, "4", None)]
    assert wrap.evidence(ranks) == {
        "rank 0 node": "n1",
        "rank 0 cpus": "0-3",
        "rank 0 gpu": "1",
        "rank 0 UCX_NET_DEVICES": "a",
        "rank of n2 node": "n2",
        "rank of n2 cpus": "4",
    }
    assert wrap.evidence([]) == {}
