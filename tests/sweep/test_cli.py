"""The command line from a user's seat: it teaches, it answers in every format, and it finds what is there."""

from __future__ import annotations

import csv
import fcntl
import importlib.metadata
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import sysconfig
import termios
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
import typer.main
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.testing import CliRunner

from archive.layout import is_run
from archive.where import keep
from sweep.cli import app
from sweep.drive import new_run_id
from sweep.expand import expand
from sweep.inventory import from_toml
from sweep.load import load
from tests.house import Done, House, finished, soon

ROOT = Path(__file__).parents[2]
MPICH = ROOT / ".stacks" / "mpich" / "bin"
SWEEP = Path(sys.executable).with_name("sweep")
FORMATS = ("table", "json", "csv", "markdown")

ECHO = """
command.argv = "/bin/echo lat={n} size={message_size}"
command.match.latency = 'lat=(?P<value>[0-9.]+) size=(?P<size>[0-9]+)'
command.unit.latency = "us"
message_size = [8, 16]
n = [0, 1.5]
"""


def commands() -> dict[str, TyperCommand]:
    """Every command of the command line, those of groups under both names."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found: dict[str, TyperCommand] = {}
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            found |= {
                f"{name} {inner}": each for inner, each in command.commands.items() if isinstance(each, TyperCommand)
            }
        elif isinstance(command, TyperCommand):
            found[name] = command
    return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """An archive with one run of four trials, and one of a trial that fails."""
    house = House(tmp_path_factory.mktemp("asked"))
    house.write("spec.toml", f'name = "answers"\n[factors]\nbenchmark = "command.run"\n{ECHO}')
    assert house.sweep("run", "spec.toml", "--executor", "inline").code == 0
    house.write(
        "fails.toml", '[factors]\nbenchmark = "command.run"\ncommand.argv = "false"\n[run]\nretry.attempts = 1\n'
    )
    assert house.sweep("run", "fails.toml", "--executor", "inline").code == 1
    yield house
    assert house.close() == []


@pytest.mark.parametrize("name", commands())
def test_each_command_explains_itself_and_each_option_says_its_default(name: str) -> None:
    command = commands()[name]
    assert command.help
    assert len(command.help.splitlines()[0]) > 20
    for parameter in command.params:
        told = getattr(parameter, "help", None)
        assert told, f"{name}: {parameter.name} has no help"
        shown = parameter.default is not None and getattr(parameter, "show_default", True)
        flag = isinstance(parameter, TyperOption) and parameter.is_flag
        several = parameter.nargs == -1
        assert shown or flag or several or parameter.required or "Default: " in told, (
            f"{name}: {parameter.name} hides its default"
        )


def test_help_of_everything_is_printed_and_fits_a_terminal() -> None:
    for words in (["--help"], *([*name.split(), "--help"] for name in commands())):
        done = CliRunner().invoke(app, words, prog_name="sweep", env={"COLUMNS": "80"})
        assert done.exit_code == 0
        assert max(map(len, done.output.splitlines())) <= 80
        assert f"Usage: sweep {' '.join(words[:-1])}".strip() in done.output


def test_without_a_command_the_help_is_shown(house: House) -> None:
    done = house.sweep()
    assert "First contact" in done.out + done.err
    assert "sweep init" in done.out + done.err


def test_the_version_is_the_distributions(house: House) -> None:
    assert house.sweep("--version").out == f"fabric-sweep {importlib.metadata.version('fabric-sweep')}\n"


def test_completion_is_there_for_the_usual_shells(house: House) -> None:
    blind = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    for shell in ("bash", "zsh", "fish"):
        assert "_SWEEP_COMPLETE=complete_" in house.sweep("--show-completion", shell, env=blind).out
    typed = {"_SWEEP_COMPLETE": "complete_bash", "COMP_WORDS": "sweep ver", "COMP_CWORD": "1"}
    assert house.sweep(env=typed).out.split() == ["verify"]
    home = house.folder / "home"
    home.mkdir()
    assert house.sweep("--install-completion", "bash", env={"HOME": str(home), **blind}).code == 0
    assert (home / ".bash_completions" / "sweep.sh").exists()


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("status",),
        ("show", "answers"),
        ("sql", "FROM results"),
        ("benchmarks",),
        ("benchmarks", "imb"),
        ("doctor",),
    ],
)
def test_every_listing_speaks_every_format(asked: House, words: tuple[str, ...], style: str) -> None:
    done = asked.sweep(*words, "--format", style)
    assert done.code == 0, done.err
    if style == "json":
        assert isinstance(json.loads(done.out), list)
    elif style == "csv":
        rows = list(csv.reader(io.StringIO(done.out)))
        assert len({len(row) for row in rows}) == 1
        assert len(rows) > 1
    elif style == "markdown":
        assert {line[0] + line[-1] for line in done.out.splitlines()} == {"||"}


def test_a_format_that_a_listing_does_not_have_is_refused(asked: House) -> None:
    done = asked.sweep("list", "--format", "parquet")
    assert done.code == 2
    assert "Traceback" not in done.err


def test_runs_are_listed_newest_first_with_how_far_they_are(asked: House) -> None:
    rows = json.loads(asked.sweep("list", "-f", "json").out)
    assert [(row["name"], row["state"], row["trials"], row["ok"], row["failed"]) for row in rows] == [
        ("fails", "ended", 1, 0, 1),
        ("answers", "ended", 4, 4, 0),
    ]


def test_run_ids_sort_by_time_within_a_second_and_differ_within_a_millisecond() -> None:
    moments = [1.8e9 + step / 1000 for step in range(3000)]
    ids = [new_run_id(moment) for moment in moments]
    assert ids == sorted(ids)
    assert all(map(is_run, ids))
    assert len({new_run_id(1.8e9) for _ in range(20)}) > 1


def test_a_run_is_shown_trial_by_trial_and_a_trial_to_the_bottom(asked: House) -> None:
    trials = json.loads(asked.sweep("show", "answers", "-f", "json").out)
    assert [(trial["outcome"], trial["attempts"]) for trial in trials] == [("ok", 1)] * 4
    head = asked.sweep("show", "answers").out.splitlines()[0].split()
    assert set(trials[0]) - set(head) == {"nics", "sharp", "stack", "reason"}, (
        "a table has no room for what nobody asked"
    )
    one = asked.sweep("show", "answers", trials[0]["trial"])
    assert one.code == 0
    assert "── attempt 1: ok" in one.out
    assert re.search(r"^command \(command on \S+\):\n  /bin/echo lat=", one.out, re.MULTILINE)
    assert re.search(r"^ +\d+ +latency +(0|1\.5) +us", one.out, re.MULTILINE)
    assert re.search(r"^stdout of command on \S+:\nlat=", one.out, re.MULTILINE)
    [attempt] = json.loads(asked.sweep("show", "answers", trials[0]["trial"], "-f", "json").out)
    assert attempt["trial_id"].startswith(trials[0]["trial"])
    assert {row["metric"] for row in attempt["measurements"]} == {"duration", "latency"}
    assert [row["stream"] for row in attempt["outputs"] if row["text"]] == ["stdout"]


def test_an_attempt_that_failed_is_shown_with_its_reason(asked: House) -> None:
    [trial] = json.loads(asked.sweep("show", "fails", "-f", "json").out)
    assert trial["reason"] == "command ended with exit code 1; there is no result"
    shown = asked.sweep("show", "fails", trial["trial"]).out
    assert shown.startswith("── attempt 1: failed command ended with exit code 1")


VALUES = """SELECT 7 AS i, 1.5 AS d, 2.0::DOUBLE AS f, 'nan'::DOUBLE AS n, NULL AS nothing, true AS b, 'a|b' AS t,
DATE '2026-01-02' AS day, [1, 2] AS l, MAP {'x': 1} AS m, {'k': 'v'} AS s,
uuid '00000000-0000-0000-0000-000000000001' AS u"""


def test_values_are_what_they_are_in_each_format(asked: House) -> None:
    def ask(style: str) -> str:
        done = asked.sweep("sql", VALUES, "-f", style)
        assert done.code == 0, done.err
        return done.out

    assert json.loads(ask("json")) == [
        {
            "i": 7,
            "d": 1.5,
            "f": 2.0,
            "n": "nan",
            "nothing": None,
            "b": True,
            "t": "a|b",
            "day": "2026-01-02",
            "l": [1, 2],
            "m": {"x": 1},
            "s": {"k": "v"},
            "u": "00000000-0000-0000-0000-000000000001",
        }
    ]
    assert ask("csv").splitlines()[1].startswith('7,1.5,2.0,nan,,true,a|b,2026-01-02,"[1, 2]","{""x"": 1}"')
    assert re.split(r" {2,}", ask("table").splitlines()[2].strip())[:4] == ["7", "1.5", "2", "nan"]
    assert re.search(r"true  a\|b  2026-01-02  1, 2  x=1  k=v  0{8}-", ask("table"))
    assert "| 7 | 1.5 | 2 | nan |  | true | a\\|b | 2026-01-02 | 1, 2 | x=1 | k=v |" in ask("markdown")


def test_a_statement_comes_as_text_from_a_file_or_from_stdin(asked: House) -> None:
    asked.write("one.sql", "SELECT 1 AS one\n-- and nothing else\n")
    expected = "one\n1\n"
    assert asked.sweep("sql", "SELECT 1 AS one", "-f", "csv").out == expected
    assert asked.sweep("sql", "@one.sql", "-f", "csv").out == expected
    for words in ([], ["-"]):
        with (asked.folder / "one.sql").open() as stdin:
            assert finished(asked.start("sql", *words, "-f", "csv", stdin=stdin)).out == expected


def test_rows_go_to_a_file_or_a_pipe_as_parquet(asked: House) -> None:
    asked.write("out.parquet", "what was there before")
    done = asked.sweep("sql", "FROM results", "-f", "parquet", "-o", "out.parquet")
    assert (done.code, done.out, done.err) == (0, "", "")
    path = asked.folder / "piped.parquet"
    with path.open("wb") as piped:
        assert finished(asked.start("sql", "FROM results", "-f", "parquet", stdout=piped)).code == 0
    for each in (path, asked.folder / "out.parquet"):
        rows = duckdb.execute(f"SELECT message_size, metrics['latency'] FROM '{each}' ORDER BY ALL").fetchall()
        assert rows == [(8, 0.0), (8, 1.5), (16, 0.0), (16, 1.5)]


def test_a_file_keeps_what_it_had_until_the_answer_is_whole(asked: House) -> None:
    asked.write("kept.csv", "what was there before")
    before = sorted(asked.folder.iterdir())
    assert asked.sweep("sql", "SELEC 1", "-o", "kept.csv").code == 2
    assert (asked.folder / "kept.csv").read_text() == "what was there before"
    assert asked.sweep("sql", "SELECT 1 AS a", "-f", "csv", "-o", "kept.csv").code == 0
    assert (asked.folder / "kept.csv").read_text() == "a\n1\n"
    assert sorted(asked.folder.iterdir()) == before


@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_has_enough_ends_it_in_silence(asked: House, buffered: str) -> None:
    for words in (["sql", "FROM range(200000)"], ["list"]):
        process = asked.start(*words, env={"PYTHONUNBUFFERED": buffered})
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_a_full_disk_behind_stdout_is_told_in_one_line(asked: House) -> None:
    with Path("/dev/full").open("w") as full:
        done = finished(asked.start("sql", "FROM range(100)", stdout=full))
    assert (done.code, done.err) == (3, "sweep: stdout: No space left on device\n")


@pytest.mark.skipif(not Path("/usr/bin/less").exists(), reason="there is no pager here")
def test_a_long_answer_is_paged_on_a_terminal_and_a_short_one_is_not(asked: House) -> None:
    paged = on_terminal(asked, ["sql", "FROM range(200)"], {"PAGER": "less"})
    assert "  0\n" in paged
    assert "(200 rows)" not in paged
    assert "(3 rows)" in on_terminal(asked, ["sql", "FROM range(3)"], {"PAGER": "less"})
    assert "parquet is no text" in on_terminal(asked, ["sql", "FROM range(3)", "-f", "parquet"], {})
    assert "no statement" in on_terminal(asked, ["sql"], {})


def on_terminal(house: House, words: list[str], env: Mapping[str, str]) -> str:
    """What a command shows on a terminal of 24 lines, whose user presses q once nothing more comes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = house.start(
        *words, env={"TERM": "xterm", **env}, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not select.select([ours], [], [], 1.0)[0]:
            if shown and process.poll() is None:
                os.write(ours, b"q")
            continue
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert process.wait(60) in (0, 2)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r\n", "\n")


def test_ctrl_c_ends_a_question_at_once(asked: House) -> None:
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b"
    process = asked.start("sql", endless)
    assert soon(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 2)
    process.send_signal(2)
    done = finished(process)
    assert (done.code, done.out, done.err) == (130, "", "")


def test_status_tells_from_elsewhere_how_far_a_run_is_and_when_its_driver_is_gone(house: House) -> None:
    house.write("wait.sh", f"#!/bin/sh\n[ $1 = 0 ] || while [ ! -e {house.folder}/go ]; do sleep 0.05; done\n")
    house.spec(f'command.argv = "{house.folder}/wait.sh {{n}}"\nn = [0, 1]', 'order = "sorted"\ntimeout = 100')
    process = house.start("run", "spec.toml", "--executor", "inline")
    assert soon(
        lambda: house.named("wait.sh") and house.runs() and house.sql("SELECT count(*) FROM attempts") == [(1,)]
    )
    [running] = json.loads(house.sweep("status", "-f", "json").out)
    assert [running[name] for name in ("state", "trials", "done", "ok", "driver_pid")] == ["open", 2, 1, 1, process.pid]
    assert house.sweep("status").err == ""
    process.kill()
    process.wait()
    assert soon(lambda: not house.named("wait.sh"))
    told = house.sweep("status")
    gone = f"sweep: the driver of this run (process {process.pid}) is gone"
    assert told.err == f"{gone}; go on with: sweep resume {house.runs()[0]}\n"
    assert re.search(r"^state +open$", told.out, re.MULTILINE)
    house.write("go", "")
    assert house.sweep("resume", "--executor", "inline").code == 0
    assert json.loads(house.sweep("status", "-f", "json").out)[0]["state"] == "ended"


def elsewhere(house: House, *words: str, path: str) -> Done:
    """`sweep WORDS` by a Python that has no programs beside it, with this PATH."""
    python = house.folder / "bare" / "python3"
    if not python.exists():
        python.parent.mkdir()
        python.symlink_to(Path(sys.executable).resolve())
    env = {
        "PATH": path,
        "HOME": str(house.folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_paths()["purelib"]]),
        "SWEEP_ARCHIVE": str(house.archive),
    }
    done = subprocess.run([python, "-m", "sweep", *words], cwd=house.folder, env=env, capture_output=True, text=True)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def nothing(house: House) -> str:
    """A PATH with a shell and nothing else."""
    folder = house.folder / "shell"
    folder.mkdir()
    for name in ("bash", "sh"):
        (folder / name).symlink_to(f"/bin/{name}")
    return str(folder)


@pytest.mark.parametrize("best", ["imb", "mpi4py", "command"])
def test_init_writes_a_spec_that_plans_and_runs_and_whose_comments_are_true(
    house: House, nothing: str, best: str
) -> None:
    path = {"imb": f"{SWEEP.parent}:", "mpi4py": f"{MPICH}:", "command": ""}[best] + nothing
    told = elsewhere(house, "init", "first.toml", path=path)
    assert told.code == 0, told.err
    assert told.err == f"wrote first.toml (benchmark {best}); next: sweep plan first.toml, sweep run first.toml\n"
    text = (house.folder / "first.toml").read_text()
    assert {str(each).partition(".")[0] for each in listed(tomllib.loads(text)["factors"]["benchmark"])} == {best}
    planned = json.loads(elsewhere(house, "plan", "first.toml", "-f", "json", path=path).out)
    assert not [trial for trial in planned["trials"] if trial["unsupported"]]
    house.write("short.toml", re.sub(r"repeats = 3", "repeats = 1", re.sub(r'"([14]):1M"', r'"\1:64"', text)))
    run = elsewhere(house, "run", "short.toml", "--executor", "inline", path=path)
    assert run.code == 0, run.err
    assert house.sql("SELECT count(*) > 0 FROM results") == [(True,)]
    house.write("here.toml", elsewhere(house, "inventory", path=path).out)
    for each in uncommented(text):
        house.write("tried.toml", each)
        spec = load(house.folder / "tried.toml", environ={"HOME": str(house.folder)})
        assert expand(spec, from_toml(house.folder / "here.toml"), keep, 1).trials


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def uncommented(text: str) -> Iterator[str]:
    """The spec with one of its commented lines in force, each in turn."""
    lines = text.splitlines()
    found = [index for index, line in enumerate(lines) if re.match(r"# [\w.]+ +?= ", line)]
    assert len(found) >= 5
    for index in found:
        yield "\n".join([*lines[:index], lines[index].removeprefix("# "), *lines[index + 1 :]])
    examples = re.findall(r'also (".*)$', text, re.MULTILINE)
    for levels in re.findall(r'"[^"]+"|\[.*?\]', " ".join(examples)):
        yield re.sub(r'message_size( *)= ".*?"', rf"message_size\1= {levels}", text)


def test_init_keeps_a_file_that_is_there_unless_told(house: House) -> None:
    house.write("sweep.toml", "mine")
    assert house.sweep("init").code == 2
    assert (house.folder / "sweep.toml").read_text() == "mine"
    assert house.sweep("init", "--force").code == 0
    assert "[factors]" in (house.folder / "sweep.toml").read_text()


def findings(done: Done) -> dict[str, tuple[str, str, str]]:
    return {each["what"]: (each["state"], each["found"], each["remedy"]) for each in json.loads(done.out)}


def test_doctor_finds_what_is_there_and_says_what_to_type_for_the_rest(house: House, nothing: str) -> None:
    whole = findings(elsewhere(house, "doctor", "-f", "json", path=f"{SWEEP.parent}:{nothing}"))
    assert whole["ray"] == ("ok", importlib.metadata.version("ray"), "")
    assert whole["mpiexec"] == ("ok", f"intelmpi at {SWEEP.parent}/mpiexec", "")
    assert whole["imb: IMB-MPI1"][:2] == ("ok", f"{SWEEP.parent}/IMB-MPI1")
    assert whole["mpi4py: python3"][0] == "missing"
    assert "No module named 'mpi4py'" in whole["mpi4py: python3"][1]
    assert whole["archive"] == ("ok", f"{house.archive} can be written, and will be made", "")
    bare = elsewhere(house, "doctor", "-f", "json", path=nothing)
    assert bare.code == 0
    missing = {what: remedy for what, (state, _, remedy) in findings(bare).items() if state == "missing"}
    assert "pip install 'fabric-sweep[imb]'" in missing["mpiexec"]
    assert "pip install 'fabric-sweep[imb]'" in missing["imb: IMB-MPI1"]
    mpich = findings(elsewhere(house, "doctor", "-f", "json", path=f"{MPICH}:{nothing}"))
    assert mpich["mpiexec"] == ("ok", f"mpich at {MPICH}/mpiexec", "")
    assert re.fullmatch(rf"{MPICH}/python3 mpi4py \S+", mpich["mpi4py: python3"][1])


def test_doctor_looks_at_every_stack_of_the_site(house: House) -> None:
    house.write("site.toml", f'[levels.stack.mpich]\npath = ["{MPICH}"]\n[levels.stack.none]\npath = ["nowhere"]\n')
    found = findings(house.sweep("doctor", "-f", "json"))
    assert found["mpiexec of stack mpich"] == ("ok", f"mpich at {MPICH}/mpiexec", "")
    assert found["mpi4py: python3 of stack mpich"][0] == "ok"


def test_doctor_names_what_is_broken_and_ends_with_3(house: House, nothing: str) -> None:
    house.write("file", "")
    done = elsewhere(house, "doctor", "--archive", "file", path=nothing)
    assert done.code == 3
    assert re.search(r"^broken +archive +file is a file\n +→ name a folder: --archive FOLDER$", done.out, re.MULTILINE)
    done = elsewhere(house, "doctor", "--archive", "/proc/archive", "-f", "json", path=nothing)
    assert done.code == 3
    assert findings(done)["archive"][0] == "broken"


def test_doctor_says_when_two_wheels_overwrote_each_others_mpiexec(house: House, nothing: str) -> None:
    house.write("env/bin/mpiexec", "#!/bin/sh\necho 'HYDRA build details:'\n")
    for name in ("impi_rt-2021.18", "mpich-5.0", "ray-2.60"):
        distribution, _, version = name.partition("-")
        folder = f"env/lib/python3.11/site-packages/{name}.dist-info"
        house.write(
            f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {distribution.replace('_', '-')}\nVersion: {version}\n"
        )
    done = elsewhere(house, "doctor", "-f", "json", path=f"{house.folder}/env/bin:{nothing}")
    state, found, remedy = findings(done)["mpiexec"]
    assert (done.code, state) == (3, "broken")
    assert found == f"{house.folder}/env/bin/mpiexec is mpich's, and the wheels impi-rt and mpich share its folder"
    assert "pip uninstall impi-rt mpich, then install one of them" in remedy


def test_benchmarks_says_every_operation_parameter_and_default(house: House) -> None:
    whole = json.loads(house.sweep("benchmarks", "-f", "json").out)
    assert {row["benchmark"] for row in whole} >= {"imb", "mpi4py", "command"}
    for row in whole:
        detail = json.loads(house.sweep("benchmarks", row["benchmark"], "-f", "json").out)
        names = {kind: [each["name"] for each in detail if each["kind"] == kind] for kind in ("operation", "parameter")}
        assert names["operation"] == [f"{row['benchmark']}.{each}" for each in row["operations"]]
        assert names["parameter"] == [f"{row['benchmark']}.{each}" for each in row["parameters"]]
        assert all(each["meaning"] for each in detail)
    outline = house.sweep("benchmarks", env={"COLUMNS": "80"}).out
    assert max(map(len, outline.splitlines())) <= 110
    assert "iterations = 1000, warmup = true" in outline


def test_an_archive_without_faults_verifies_in_silence(asked: House) -> None:
    done = asked.sweep("verify")
    assert (done.code, done.out, done.err) == (0, "", f"{asked.archive}: no problems\n")
