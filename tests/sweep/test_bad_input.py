"""Bad input, typed by a user: one clear line per problem, exit code 2 or 3, no traceback, nothing lost."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house import Done, House

ROOT = Path(__file__).parents[2]
MPICH = ROOT / ".stacks" / "mpich" / "bin"
IMPI = Path(sys.executable).parent

IMB = 'benchmark = "imb.allreduce"\nmessage_size = 4\nranks_per_node = 2\n'
COMMAND = 'benchmark = "command.run"\n'


def sized(levels: str) -> str:
    """A spec with these message sizes, on line 3."""
    return f"[factors]\n{IMB.replace('= 4', '= ' + levels)}"


@dataclass(frozen=True, slots=True)
class Bad:
    """What a user types or writes, and what each line on stderr has to hold: what is wrong, where, what is right."""

    name: str
    spec: str | bytes
    lines: Sequence[str]


SPECS = (
    Bad("not TOML", "name = \n[factors", [r"not TOML.toml:1:8: not valid TOML"]),
    Bad("not UTF-8", b"name = '\xff'", [r":1: byte 0xff is not UTF-8; save the spec as UTF-8"]),
    Bad("empty", "", [r"factors: is missing; write \[factors\]"]),
    Bad("no benchmark", "[factors]\nnodes = 1", [r":1: factors.benchmark: is missing; write benchmark = "]),
    Bad("key", f"nmae = 'x'\n[factors]\n{IMB}", [r":1: nmae: unknown key `nmae`; did you mean `name`\?"]),
    Bad("run key", f"[factors]\n{IMB}[run]\nrepeat = 3", [r":6: run.repeat: .*did you mean `repeats`\?"]),
    Bad(
        "benchmark", f"[factors]\n{IMB.replace('imb', 'imbb')}", [r":2: .*unknown benchmark `imbb`; did you mean `imb`"]
    ),
    Bad(
        "operation", f"[factors]\n{IMB.replace('allr', 'alr')}", [r":2: .*`alreduce` of `imb`; did you mean `imb.allr"]
    ),
    Bad("factor", f"[factors]\n{IMB}mesage_size = 8", [r":5: .*`mesage_size`; did you mean `message_size`\?"]),
    Bad("parameter", f"[factors]\n{IMB}imb.iters = 8", [r":5: factors.imb.iters: .*did you mean `imb.iterations`\?"]),
    Bad("no levels", f"[factors]\n{IMB}nics = []", [r":5: factors.nics: has no levels, .*give at least one level"]),
    Bad("backwards", sized('"4M:4"'), [r":3: .*'4M:4' runs backwards; write \"4:4M\""]),
    Bad(
        "overflow",
        sized('"16384P"'),
        [r":3: factors.message_size: .*too large; at most"],
    ),
    Bad("suffix", sized('"4 KB"'), [r":3: .*suffix 'KB'; write 4KiB for 1024 or 4kB for"]),
    Bad("too many", sized('"0:1G:+1"'), [r":3: .*1,073,741,825 values.*larger step"]),
    Bad("negative", sized("-4"), [r":3: factors.message_size: -4 is negative; write"]),
    Bad(
        "not yet",
        f"[factors]\n{IMB}[launch]\nlauncher = 'torchrun'",
        [r":6: launch.launcher: .*not yet supported; today: "],
    ),
    Bad("slid", f"[factors]\n{IMB}where = 'nodes = 1'", [r":5: .*`where` stands under \[factors\]; move it above"]),
    Bad(
        "where", f"where = 'nodes ='\n[factors]\n{IMB}", [r"where.toml: where: syntax error.*; the factors are nodes, "]
    ),
    Bad(
        "where's name", f"where = 'nodez = 1'\n[factors]\n{IMB}", [r"where: .*\"nodez\" not found.*; the factors are "]
    ),
    Bad("where's type", f"where = 'nodes + 1'\n[factors]\n{IMB}", [r"where: it is no condition.*; the factors are "]),
    Bad(
        "where that reads",
        f"where = \"nodes IN (SELECT 1 FROM read_csv('/etc/passwd'))\"\n[factors]\n{IMB}",
        [r"where: the table function read_csv is not allowed; "],
    ),
    Bad(
        "where that reads a name",
        f"where = \"EXISTS (FROM '/etc/passwd')\"\n[factors]\n{IMB}",
        [r"where: there is no table /etc/passwd; "],
    ),
    Bad(
        "where that ends", f"where = '1 = 1; DROP TABLE t'\n[factors]\n{IMB}", [r"where: syntax error at or near \";\""]
    ),
    Bad(
        "empty grid",
        f"where = 'nodes > 7'\n[factors]\n{IMB}",
        [r"grid is empty; `where` excludes all 1 points: nodes > 7"],
    ),
    Bad(
        "template",
        f"[factors]\n{COMMAND}command.argv = 'echo {{foo}}'",
        [r"factors.command.argv: .*names no factor; known"],
    ),
    Bad("no argv", f"[factors]\n{COMMAND}", [r"factors.command.argv: is missing; write what to run"]),
    Bad(
        "expression",
        f"[factors]\n{COMMAND}command.argv = 'ls'\ncommand.match.x = '(['",
        [r"factors.command.match.x: is no regular expression"],
    ),
    Bad(
        "several",
        f"nmae = 'x'\n[factors]\n{IMB}sharp = 'maybe'\n[run]\nrepeat = 3\n[launch]\nlauncher = 'torchrun'",
        [r":1: nmae: ", r":6: factors.sharp: ", r":8: run.repeat: ", r":10: launch.launcher: .*not yet supported"],
    ),
)

SQL = (
    ("", [r"there is no statement; give exactly one"]),
    ("selec 1", [r"syntax error at or near \"selec\""]),
    ("SELECT 1; SELECT 2", [r"there are 2 statements; give exactly one"]),
    ("SELECT foo FROM results", [r"\"foo\" not found"]),
    ("FROM resultz", [r"there is no table resultz; there are attempts, "]),
    ("CREATE TABLE t AS SELECT 1", [r"does more than read; an archive is only read: SELECT"]),
    ("DELETE FROM attempts", [r"does more than read"]),
    ("COPY (SELECT 1) TO 'out.csv'", [r"does more than read"]),
    ("WITH t AS (COPY (SELECT 1) TO 'out.csv') SELECT 1", [r"COPY inside a query; an archive is only read"]),
    ("EXPLAIN ANALYZE COPY (SELECT 1) TO 'out.csv'", [r"does more than read"]),
    ("ATTACH 'x.db'", [r"does more than read"]),
    ("INSTALL httpfs", [r"does more than read"]),
    ("LOAD httpfs", [r"does more than read"]),
    ("SET memory_limit = '100GB'", [r"does more than read"]),
    ("FROM read_csv('/etc/passwd')", [r"the table function read_csv is not allowed"]),
    ("FROM '/etc/passwd'", [r"there is no table /etc/passwd"]),
    ("SELECT getenv('HOME')", [r"getenv is not allowed; it reaches beyond the archive"]),
    ("@missing.sql", [r"missing.sql: cannot be read: No such file"]),
    ("@binary.sql", [r"binary.sql: is not UTF-8"]),
)


def typed(house: House, commands: Sequence[Sequence[str]]) -> list[Done]:
    """Several commands, each to its end, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda words: house.sweep(*words), commands))


def assert_told(done: Done, lines: Sequence[str], code: int = 2) -> None:
    """Exactly these problems, one line each, nothing on stdout."""
    assert (done.code, done.out) == (code, ""), done.err
    assert len(done.lines) == len(lines), done.err
    for line, pattern in zip(done.lines, lines, strict=True):
        assert line.startswith("sweep: ")
        assert re.search(pattern, line), line


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> House:
    """An archive with three runs, the last two of the same name."""
    house = House(tmp_path_factory.mktemp("asked"))
    for name in ("first", "twice", "twice"):
        house.write("spec.toml", f'name = "{name}"\n[factors]\n{COMMAND}command.argv = "/bin/echo hello"\n')
        assert house.sweep("run", "spec.toml", "--executor", "inline").code == 0
    (house.folder / "binary.sql").write_bytes(b"\xff")
    return house


def test_a_wrong_spec_is_told_line_by_line(house: House) -> None:
    for each in SPECS:
        raw = each.spec if isinstance(each.spec, bytes) else each.spec.encode()
        (house.folder / f"{each.name}.toml").write_bytes(raw)
    done = typed(house, [["plan", f"{each.name}.toml"] for each in SPECS])
    for each, told in zip(SPECS, done, strict=True):
        assert_told(told, each.lines)


def test_a_run_says_the_same_as_a_plan_and_leaves_no_archive(house: House) -> None:
    (house.folder / "bad.toml").write_text(f"where = 'nodes ='\n[factors]\n{IMB}")
    assert_told(house.sweep("run", "bad.toml"), [r"bad.toml: where: syntax error"])
    assert not house.archive.exists()


def test_a_file_that_is_none_is_named(house: House) -> None:
    house.spec('command.argv = "ls"')
    house.write("bad.toml", "cluster = 3\n")
    asked = {
        ("plan", "missing.toml"): [r"missing.toml: no such spec"],
        ("plan", "."): [r"\.: is a directory, not a spec"],
        ("plan", "spec.toml", "--site", "missing.toml"): [r"missing.toml: no such site file"],
        ("plan", "spec.toml", "--inventory", "missing.toml"): [r"missing.toml: no such inventory"],
        ("plan", "spec.toml", "--inventory", "bad.toml"): [r"bad.toml:1: cluster: 3 is not allowed"],
        ("plan", "spec.toml", "--site", "bad.toml"): [r"bad.toml:1: cluster: 3 is not allowed"],
        ("init", "spec.toml"): [r"spec.toml: is there already; name another file, or add --force"],
        ("init", "no/folder.toml"): [r"no/folder.toml: cannot be written: No such file or directory"],
        ("benchmarks", "imbb"): [r"there is no benchmark `imbb`; did you mean `imb`\?"],
    }
    for words, told in zip(asked, typed(house, list(asked)), strict=True):
        assert_told(told, asked[words])


def test_sql_that_is_wrong_or_does_more_than_read_is_told_in_one_line(archive: House) -> None:
    done = typed(archive, [["sql", statement] for statement, _ in SQL])
    for (_, lines), told in zip(SQL, done, strict=True):
        assert_told(told, lines)
    assert not (archive.folder / "out.csv").exists()
    assert archive.sql("SELECT count(*) FROM attempts") == [(3,)]


def test_sql_that_takes_too_long_or_goes_nowhere_is_told_in_one_line(archive: House) -> None:
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b"
    assert_told(archive.sweep("sql", endless, "--limit", "0.3"), [r"took longer than 0.3 s; ask for less"])
    assert_told(archive.sweep("sql", "SELECT 1", "-o", "no/file"), [r"no/file: cannot be written: No such file"])
    assert_told(archive.sweep("sql", "SELECT 1", "-o", "."), [r"\.: cannot be written: Is a directory"])


def test_a_run_that_is_none_or_may_be_several_is_told_with_the_candidates(archive: House) -> None:
    first, second, third = archive.runs()
    twice = rf"'twice' may be {second}, {third}; give more of its id"
    nobody = rf"there is no run 'nobody'; there are {first}, {second}, {third}"
    asked = {
        ("show", "nobody"): nobody,
        ("status", "nobody"): nobody,
        ("resume", "nobody", "--executor", "inline"): nobody,
        ("sql", "--run", "nobody", "FROM results"): nobody,
        ("show", "twice"): twice,
        ("status", "twice"): twice,
        ("resume", "twice", "--executor", "inline"): twice,
        ("show", "r2"): r"'r2' may be ",
        ("show", "first", "zz"): rf"run {first}: no trial whose id begins with 'zz'; `sweep show {first}` lists them",
        ("show", "first", "", "-f", "csv"): r"--format: one trial is no listing for csv; write table or json",
    }
    for words, told in zip(asked, typed(archive, list(asked)), strict=True):
        assert_told(told, [asked[words]])


def test_an_archive_that_is_none_is_named_by_whatever_asks_it(house: House) -> None:
    house.write("file", "")
    asked = [["list"], ["status"], ["show", "last"], ["sql", "SELECT 1"], ["verify"], ["resume"]]
    for place, what in (("nowhere", "there is no such folder"), ("file", "this is a file, an archive is a folder")):
        for told in typed(house, [[*words, "--archive", place] for words in asked]):
            assert_told(told, [rf"archive .*/{place}: {what}"], code=3)
    for told in typed(house, [[*words, "--archive", "s3://bucket/x"] for words in asked]):
        assert_told(told, [r"s3:/bucket/x .*not yet supported; name a local folder"])
    assert [path.name for path in house.folder.iterdir()] == ["file"]


def test_an_empty_archive_answers_with_nothing(house: House) -> None:
    house.archive.mkdir()
    told = {words: house.sweep(*words) for words in (("list",), ("sql", "FROM results"), ("verify",))}
    assert {done.code for done in told.values()} == {0}
    assert told["list",].out.endswith("(0 rows)\n")
    assert told["sql", "FROM results"].out.endswith("(0 rows)\n")
    assert told["verify",].err == f"{house.archive}: no problems\n"
    for words in (["status"], ["show", "last"], ["resume"]):
        assert_told(house.sweep(*words), [r"there is no run 'last'; the archive is empty"])


def test_an_archive_that_cannot_be_written_stops_a_run_before_it_measures(house: House) -> None:
    house.write("once.sh", "#!/bin/sh\necho ran >> ran\n")
    house.spec(f'command.argv = "{house.folder}/once.sh"')
    house.write("file", "")
    for place in ("file", "/proc/archive"):
        done = house.sweep("run", "spec.toml", "--executor", "inline", "--archive", place)
        assert done.code == 3
        assert len([line for line in done.lines if line.startswith("sweep: ")]) == 1, done.err
        assert f"archive {place}" in done.err.replace(f"{house.folder}/", "")
    assert not (house.folder / "ran").exists()


MOUNTED = """
mkdir {place} && mount -t tmpfs -o size=2m tmpfs {place} || exit 99
{sweep} run spec.toml --executor inline --archive {place}/a 2> before; echo $? >> codes
{harm}
{sweep} run spec.toml --executor inline --archive {place}/a 2> during; echo $? >> codes
{undo}
{sweep} sql --archive {place}/a -f csv "SELECT run, count(*) FROM attempts_last GROUP BY run ORDER BY run" > asked
{sweep} verify --archive {place}/a 2> verified; echo $? >> codes
"""


@pytest.fixture
def mounts(house: House) -> House:
    """A house in which a user may mount."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine forbids namespaces")
    return house


@pytest.mark.parametrize(
    ("harm", "undo", "what"),
    [
        (
            "mount -o remount,ro {place}",
            "mount -o remount,rw {place}",
            "is on a read-only file system; name another with --archive",
        ),
        (
            "cat /dev/zero > {place}/filler 2> /dev/null",
            "rm {place}/filler",
            "the disk is full; what was archived is safe: free some space, then resume",
        ),
    ],
    ids=["read-only", "full"],
)
def test_an_archive_that_is_read_only_or_full_loses_nothing(mounts: House, harm: str, undo: str, what: str) -> None:
    place = mounts.folder / "disk"
    mounts.spec('command.argv = "/bin/echo {n}"\nn = [1, 2, 3]')
    words = {"place": place, "sweep": IMPI / "sweep"}
    script = MOUNTED.format(harm=harm.format(**words), undo=undo.format(**words), **words)
    done = subprocess.run(["unshare", "-rm", "bash", "-c", script], cwd=mounts.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = {name: (mounts.folder / name).read_text() for name in ("codes", "before", "during", "asked", "verified")}
    assert read["codes"].split() == ["0", "3", "0"], read
    problems = [line for line in read["during"].splitlines() if line.startswith("sweep: ")]
    assert len(problems) == 1
    assert what in problems[0]
    assert str(place) in problems[0]
    header, *rows = read["asked"].splitlines()
    assert header.startswith("run,")
    assert rows == [f"{re.findall('r20[0-9a-z-]+', read['before'])[0]},3"]


def test_a_corrupt_file_is_named_and_the_rest_answers(house: House) -> None:
    house.spec('command.argv = "/bin/echo hello"')
    for _ in range(2):
        assert house.sweep("run", "spec.toml", "--executor", "inline").code == 0
    first, second = house.runs()
    [hurt] = (house.archive / "attempts").rglob(f"{first}*.parquet")
    raw = bytearray(hurt.read_bytes())
    raw[4 : len(raw) // 2] = b"\xa5" * (len(raw) // 2 - 4)
    hurt.write_bytes(raw)
    answered = house.sweep("sql", "-f", "csv", "SELECT run FROM attempts")
    assert (answered.code, answered.out) == (0, f"run\n{second}\n")
    assert re.fullmatch(rf"sweep: {hurt}: .*; answered without it; `sweep verify` lists all such files\n", answered.err)
    listed = house.sweep("list", "-f", "csv")
    assert listed.code == 0
    assert {line.split(",")[0] for line in listed.out.splitlines()[1:]} == {first, second}
    assert str(hurt) in listed.err
    verified = house.sweep("verify")
    assert verified.code == 3
    assert [line for line in verified.out.splitlines() if str(hurt) in line]
    assert "Traceback" not in answered.err + listed.err + verified.err


def test_a_run_whose_record_is_corrupt_is_told_in_words(house: House) -> None:
    house.spec('command.argv = "/bin/echo hello"')
    assert house.sweep("run", "spec.toml", "--executor", "inline").code == 0
    [record] = (house.archive / "runs").glob("*.parquet")
    record.write_bytes(b"PAR1" + b"\0" * 200 + b"PAR1")
    done = house.sweep("status")
    assert (done.code, done.out) == (3, "")
    assert all(line.startswith("sweep: ") for line in done.lines)
    assert str(record) in done.err


def test_an_mpiexec_of_no_flavour_we_know_is_said_by_plan_run_and_doctor(house: House) -> None:
    house.write("odd/mpiexec", "#!/bin/sh\necho 'SuperMPI 3.0'\n")
    house.write("site.toml", '[launch]\npath = ["odd"]\n')
    house.write("spec.toml", f"[factors]\n{IMB}")
    reason = (
        f"{house.folder}/odd/mpiexec is of no flavour we know (its --version says 'SuperMPI 3.0'); use that of MPICH"
    )
    planned = house.sweep("plan", "spec.toml")
    assert planned.code == 0
    assert reason in planned.out
    assert reason.partition(";")[0] in house.sweep("doctor").out
    assert house.sweep("run", "spec.toml", "--executor", "inline").code == 3
    [(outcome, said)] = house.sql("SELECT outcome, reason FROM attempts")
    assert outcome == "unsupported"
    assert said.startswith(reason)


def test_a_program_that_is_not_there_is_said_by_plan_and_run(house: House) -> None:
    house.write("bare/mpiexec", "#!/bin/sh\necho HYDRA build details\n")
    house.write("bare/python3", "#!/bin/sh\necho no mpi4py here >&2; exit 1\n")
    house.write("site.toml", '[launch]\npath = ["bare"]\n')
    house.write("spec.toml", '[factors]\nbenchmark = "mpi4py.pingpong"\nmessage_size = 4\nranks_per_node = 2\n')
    reason = f"{house.folder}/bare/python3 is of no use here (it says 'no mpi4py here'); pip install "
    assert reason in house.sweep("plan", "spec.toml").out
    done = house.sweep("run", "spec.toml", "--executor", "inline")
    assert done.code == 3
    assert reason in done.err
    assert house.sql("SELECT outcome, reason LIKE '%no mpi4py here%', final FROM attempts") == [
        ("unsupported", True, True)
    ]


MISBEHAVES = {
    "garbage": ("head -c 3000 /dev/urandom; echo", "unparsed", "no banner of Intel MPI Benchmarks"),
    "nothing": ("exec >&- 2>&-", "unparsed", "IMB-MPI1 printed nothing"),
    "half": (
        'all=$($real "$@"); sed \'/^ *64 /q\' <<< "$all"',
        "failed",
        "exited with 0, but 4 of 9 sizes have no result (128",
    ),
    "torn": ('all=$($real "$@"); head -c 1500 <<< "$all"', "failed", "sizes have no result"),
    "flood": ("yes 'a line of noise' | head -c 40000000; $real \"$@\"", "ok", ""),
    "bytes": ("printf '\\xff\\xfe\\n'; $real \"$@\"; printf '\\x00\\xc3\\n'", "ok", ""),
    "error": (
        "echo 'Invalid benchmark name Allreduze'",
        "failed",
        "IMB-MPI1 knows no such argument: Allreduze",
    ),
    "fatal": ("echo 'Abort(1): Fatal error in PMPI_Init: Other MPI error'", "failed", "MPI gave up: PMPI_Init"),
    "stubborn": ("trap '' TERM; sleep 300; sleep 300", "timeout", "no end after"),
}
"""Name -> what IMB-MPI1 does, the outcome, and what the reason says."""


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One run over IMB-MPI1s that misbehave, each a stack of its own."""
    house = House(tmp_path_factory.mktemp("misbehaving"))
    for name, (action, *_) in MISBEHAVES.items():
        alone = '[ "$PMI_RANK" = 0 ] || exec $real "$@"' if "$real" in action else '[ "$PMI_RANK" = 0 ] || exit 0'
        house.write(f"{name}/IMB-MPI1", f"#!/bin/bash\nreal={IMPI}/IMB-MPI1\n{alone}\n{action}\n")
    house.spec(
        f"""benchmark = "imb.allreduce"
message_size = "4:1K"
ranks_per_node = 2
stack = [{", ".join(f'"{name}"' for name in MISBEHAVES)}]
imb.iterations = 10""",
        "timeout = 8\nretry.attempts = 1",
        "\n".join(f'[levels.stack.{name}]\npath = ["{name}", "{MPICH}"]' for name in MISBEHAVES),
    )
    done = house.sweep("run", "spec.toml", "--executor", "inline")
    assert done.code == 1, done.err
    assert "Traceback" not in done.err
    yield house
    assert house.close() == []


@pytest.mark.parametrize("name", MISBEHAVES)
def test_a_benchmark_that_misbehaves_is_a_row_that_says_how(misbehaving: House, name: str) -> None:
    _, expected, words = MISBEHAVES[name]
    [(outcome, reason, left)] = misbehaving.sql(
        f"SELECT outcome, reason, len(\"left\") FROM attempts WHERE stack = '{name}'"
    )
    assert (outcome, left) == (expected, 0), reason
    assert words in reason
    [(kept,)] = misbehaving.sql(f"SELECT count(*) FROM results WHERE stack = '{name}'")
    assert (kept == 9) == (outcome == "ok")


def test_what_a_misbehaving_benchmark_printed_can_be_read_again(misbehaving: House) -> None:
    shown = misbehaving.sweep("show", "last", "-f", "json")
    assert shown.code == 0
    [(trial,)] = misbehaving.sql("SELECT trial_id FROM attempts WHERE stack = 'bytes'")
    one = misbehaving.sweep("show", "last", str(trial)[:8])
    assert one.code == 0, one.err
    assert "#bytes" in one.out
