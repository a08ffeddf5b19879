"""`sweep run` in the real system: every attempt is a row, and the exit code tells how it went."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest

import archive
from tests.house import House, finished, soon

ROOT = Path(__file__).parents[2]
MPICH = ROOT / ".stacks" / "mpich" / "bin"
IMPI = Path(sys.executable).parent

CASES = """#!/bin/bash
# what a benchmark may do; every start leaves a line in the side file
case=$1 side=$2/side.$1
echo start >> "$side"
tries=$(wc -l < "$side")
case $case in
  ok) echo '{"metric": "step_time", "value": 0, "unit": "s"}'; sleep 0.05; echo plain >&2 ;;
  usage) echo "prog: error: unrecognized arguments: --speed" >&2; exit 2 ;;
  passing) if [ "$tries" -lt 3 ]; then echo "connect: Connection refused" >&2; exit 1; fi ;;
  hopeless) echo "connect: Connection refused" >&2; exit 1 ;;
  puzzle) exit 7 ;;
  crash) kill -SEGV $$ ;;
  unparsed) echo '{"metric": "step_time", "value": "fast", "unit": "s"}' ;;
  hang) setsid sleep 300 & (sleep 300 &) ; sleep 300 ;;
  daemon) setsid sleep 300 & disown; (trap '' TERM; setsid sleep 300 &) ; exit 0 ;;
  garbage) head -c 3000 /dev/urandom; echo; printf '\\xff\\xfe\\n' ;;
  flood) yes 0123456789012345678901234567890123456789 | head -c 3000000 ;;
  nothing) exec >&- 2>&- ;;
esac
"""
STUBBORN = """#!/bin/bash
trap '' TERM
setsid bash -c "trap '' TERM; sleep 300" &
(setsid bash -c "trap '' TERM; sleep 300" &)
sleep 300
sleep 300
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> House:
    """One run in which programs do whatever programs do."""
    house = House(tmp_path_factory.mktemp("cases"))
    house.write("cases.sh", CASES)
    house.write("stubborn.sh", STUBBORN)
    names = re.findall(r"^  (\w+)\)", CASES, re.MULTILINE)
    house.spec(
        f"""command.argv = "bash {house.folder}/cases.sh {{case}} {house.folder}"
case = {json.dumps(names)}""",
        'timeout = 1.5\nretry = { attempts = 3, wait = "0.05s" }\norder = "sorted"',
    )
    house.spec(f'command.argv = "{house.folder}/stubborn.sh"', "timeout = 1\nretry.attempts = 1", name="stubborn.toml")
    beside = house.start("run", "stubborn.toml", "--executor", "inline", "--archive", "stubborn")
    done = house.sweep("run", "spec.toml", "--executor", "inline")
    assert done.code == 1, done.err
    assert finished(beside).code == 1
    house.write("said", done.err)
    assert house.close() == []
    return house


def attempts(house: House, case: str) -> list[tuple[str, bool, bool]]:
    """Outcome, final, and whether a reason is given, of each attempt of a case, in order."""
    return house.sql(
        f"SELECT outcome, final, reason <> '' FROM attempts WHERE factors['case'] = '{case}' ORDER BY attempt"
    )


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("ok", [("ok", True, False)]),
        ("usage", [("failed", True, True)]),
        ("passing", [("failed", False, True), ("failed", False, True), ("ok", True, False)]),
        ("hopeless", [("failed", False, True), ("failed", False, True), ("failed", True, True)]),
        ("puzzle", [("failed", False, True), ("failed", True, True)]),
        ("crash", [("failed", False, True), ("failed", True, True)]),
        ("unparsed", [("unparsed", True, True)]),
        ("hang", [("timeout", False, True), ("timeout", False, True), ("timeout", True, True)]),
        ("daemon", [("ok", True, False)]),
        ("garbage", [("ok", True, False)]),
        ("flood", [("ok", True, False)]),
        ("nothing", [("ok", True, False)]),
    ],
)
def test_each_attempt_is_a_row_and_what_may_pass_is_tried_again(
    cases: House, case: str, expected: list[tuple[str, bool, bool]]
) -> None:
    assert attempts(cases, case) == expected


def test_every_start_of_the_program_has_its_row(cases: House) -> None:
    started = {path.suffix[1:]: len(path.read_text().splitlines()) for path in cases.folder.glob("side.*")}
    assert dict(cases.sql("SELECT factors['case'], count(*) FROM attempts GROUP BY ALL")) == started
    assert cases.sql("SELECT trial_id FROM attempts GROUP BY ALL HAVING count(*) FILTER (final) <> 1") == []
    assert cases.sql("SELECT attempt_id FROM attempts GROUP BY ALL HAVING count(*) > 1") == []


def test_an_attempt_keeps_what_was_started_and_how_it_ended(cases: House) -> None:
    [(argv, role, node, code, signal, elapsed)] = cases.sql(
        "SELECT argv[1].argv, argv[1].role, argv[1].node = node_names[1], exit_code, signal, elapsed_s "
        "FROM attempts WHERE factors['case'] = 'ok'"
    )
    assert argv == ["bash", f"{cases.folder}/cases.sh", "ok", str(cases.folder)]
    assert (role, node, code, signal) == ("command", True, 0, None)
    assert 0.05 <= elapsed < 3
    assert cases.sql("SELECT DISTINCT signal FROM attempts WHERE factors['case'] = 'crash'") == [(11,)]
    assert cases.sql("SELECT DISTINCT exit_code FROM attempts WHERE factors['case'] = 'puzzle'") == [(7,)]


def test_raw_output_is_kept_line_by_line_with_stamps(cases: House) -> None:
    rows = cases.sql(
        "SELECT stream, text, stamps, size, truncated FROM outputs JOIN attempts USING (attempt_id) "
        "WHERE factors['case'] = 'ok' ORDER BY stream"
    )
    (_, said, said_at, _, _), (_, printed, printed_at, size, truncated) = rows
    assert (said, truncated, size) == ("plain", False, len(printed) + 1)
    assert 0 <= printed_at[0] < said_at[0]


def test_a_flood_is_kept_at_both_ends_and_said_to_be_cut(cases: House) -> None:
    [(text, stamps, size, truncated)] = cases.sql(
        "SELECT text, stamps, size, truncated FROM outputs JOIN attempts USING (attempt_id) "
        "WHERE factors['case'] = 'flood' AND stream = 'stdout'"
    )
    assert (size, truncated) == (3_000_000, True)
    assert len(stamps) == text.count("\n") + 1
    assert 200_000 < len(text) < 300_000


def test_bytes_that_are_no_text_are_kept_as_far_as_text_can(cases: House) -> None:
    [(text,)] = cases.sql(
        "SELECT text FROM outputs JOIN attempts USING (attempt_id) "
        "WHERE factors['case'] = 'garbage' AND stream = 'stdout'"
    )
    assert text.endswith("\ufffd\ufffd")


def test_every_window_lies_inside_its_attempt(cases: House) -> None:
    assert cases.sql("SELECT count(*) > 5 FROM measurements WHERE t_begin IS NOT NULL") == [(True,)]
    assert (
        cases.sql(
            "SELECT * FROM measurements JOIN attempts USING (attempt_id) "
            "WHERE NOT (0 <= t_begin AND t_begin <= t_end AND t_end <= elapsed_s)"
        )
        == []
    )


def test_zero_is_a_value(cases: House) -> None:
    assert cases.sql("SELECT value, unit FROM measurements WHERE metric = 'step_time'") == [(0.0, "s")]


def test_what_a_benchmark_leaves_running_is_killed_and_counted(cases: House) -> None:
    daemons = "SELECT min(killed) >= 2, max(len(\"left\")) FROM attempts WHERE factors['case'] = 'daemon'"
    assert cases.sql(daemons) == [(True, 0)]
    rows = archive.open(cases.folder / "stubborn").sql('SELECT outcome, final, killed >= 4, "left" FROM attempts')
    assert rows.fetchall() == [("timeout", True, True, [])]


def test_without_a_terminal_each_attempt_is_one_plain_line(cases: House) -> None:
    said = (cases.folder / "said").read_text().splitlines()
    assert not any("\x1b" in line or "\r" in line for line in said)
    total = len(re.findall(r"^  (\w+)\)", CASES, re.MULTILINE))
    [rows] = cases.sql("SELECT count(*) FROM attempts")
    assert sum(bool(re.match(rf"\[\d+/{total}\] command\.run ", line)) for line in said) == rows[0]
    assert said[-2].startswith(f"[{total}/{total}] ") or said[-1].startswith("run ")
    # what follows from a failure stands after it
    first = next(index for index, line in enumerate(said) if "case=passing" in line)
    assert said[first].startswith("[2/")
    assert "failed" in said[first]
    assert re.fullmatch(r"trying again in \d+ s", said[first + 1])


def test_the_last_line_counts_what_happened_and_names_the_archive(cases: House) -> None:
    last = (cases.folder / "said").read_text().splitlines()[-1]
    assert re.fullmatch(
        rf"run {cases.runs()[0]}: 4 failed, 6 ok, 1 timeout, 1 unparsed; 8 attempts tried again; "
        rf"archive {cases.archive}",
        last,
    )


IMB = """\
#!/bin/bash
# the real IMB-MPI1, which {words}
real={real}/IMB-MPI1
[ "$PMI_RANK" = 0 ] || exec $real "$@"
echo "$@" >> {folder}/{name}.side
{action}
"""
DIES = """\
[ -e {folder}/died ] && exec $real "$@"
touch {folder}/died
$real "$@" | sed '/^ *64 /q'
exit 1"""
DEFECTS = """\
$real "$@" | sed -e '/#bytes/s/$/     defects/' -e '/^ *[0-9]/s/$/        2.00/'"""


@pytest.fixture(scope="module")
def imb(tmp_path_factory: pytest.TempPathFactory) -> House:
    """One run of the real IMB-MPI1: as it is, dying half way at first, and finding defects in its own results."""
    house = House(tmp_path_factory.mktemp("imb"))
    sites = []
    for name, action in (("dies", DIES), ("defects", DEFECTS), ("plain", 'exec $real "$@"')):
        words = {"folder": house.folder, "name": name, "real": IMPI, "words": name}
        house.write(f"{name}/IMB-MPI1", IMB.format(action=action.format(**words), **words))
        sites.append(f'[levels.stack.{name}]\npath = ["{name}", "{MPICH}"]')
    house.spec(
        """benchmark = "imb.allreduce"
message_size = "4:1K"
ranks_per_node = 2
stack = ["plain", "dies", "defects"]
imb.iterations = 10""",
        'timeout = 60\norder = "sorted"\nretry = { attempts = 3, wait = "0.05s" }',
        "\n".join(sites),
    )
    done = house.sweep("run", "spec.toml", "--executor", "inline")
    assert done.code == 1, done.err
    assert house.close() == []
    return house


def test_after_half_a_table_only_the_missing_sizes_are_launched_again(imb: House) -> None:
    rows = imb.sql(
        "SELECT outcome, final, sizes, missing, "
        "(SELECT list(DISTINCT message_size ORDER BY message_size) FROM measurements m "
        "WHERE m.attempt_id = a.attempt_id AND NOT partial) FROM attempts a WHERE stack = 'dies' ORDER BY attempt"
    )
    whole = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert rows == [
        ("failed", False, whole, whole[4:], whole[:4]),
        ("ok", True, whole[4:], [], whole[4:]),
    ]
    assert imb.sql("SELECT DISTINCT message_size FROM measurements WHERE partial") == [(64,)]
    assert len((imb.folder / "dies.side").read_text().splitlines()) == 2


def test_each_asked_size_counts_once(imb: House) -> None:
    counted = "SELECT message_size, count(*) FROM results WHERE stack = '{}' GROUP BY ALL ORDER BY ALL"
    assert imb.sql(counted.format("dies")) == imb.sql(counted.format("plain")) == [(2**n, 1) for n in range(2, 11)]


def test_windows_of_sizes_follow_each_other(imb: House) -> None:
    windows = imb.sql(
        "SELECT t_begin, t_end FROM measurements WHERE stack = 'plain' AND metric = 'time' ORDER BY message_size"
    )
    assert all(begin <= end for begin, end in windows)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(windows))


def test_results_that_the_tool_itself_finds_wrong_are_archived_and_not_counted(imb: House) -> None:
    [(outcome, final, reason)] = imb.sql("SELECT outcome, final, reason FROM attempts WHERE stack = 'defects'")
    assert (outcome, final) == ("wrong", True)
    assert "defects" in reason
    assert imb.sql("SELECT count(*) > 8 FROM measurements WHERE stack = 'defects'") == [(True,)]
    assert imb.sql("SELECT count(*) FROM results WHERE stack = 'defects'") == [(0,)]


def test_all_ok_ends_with_0_and_what_cannot_run_here_is_a_row_with_the_reason(house: House) -> None:
    house.spec('command.argv = "/bin/true"\nsharp = ["off", "on"]')
    done = house.sweep("run", "spec.toml", "--executor", "inline")
    assert done.code == 0, done.err
    [(outcome, final, reason, argv)] = house.sql("SELECT outcome, final, reason, argv FROM attempts WHERE sharp = 'on'")
    assert (outcome, final, argv) == ("unsupported", True, [])
    assert reason


def test_bad_input_ends_with_2_and_makes_no_archive(house: House) -> None:
    house.spec('command.argv = "/bin/true {nonsense}"\nsharp = "on"')
    done = house.sweep("run", "spec.toml", "--executor", "inline")
    assert done.code == 2
    assert len(done.lines) == 1
    assert not house.archive.exists()
    assert house.sweep("resume", "r20200101-000000-aaaa").code in (2, 3)


def test_an_attempt_whose_node_part_dies_is_lost_and_tried_again(house: House) -> None:
    house.write("once.sh", "#!/bin/bash\n[ -e side ] || { touch side; exec sleep 60; }")
    house.spec(
        f'command.argv = "{house.folder}/once.sh"',
        'timeout = 50\nretry = { attempts = 3, wait = "0.05s" }',
    )
    process = house.start("run", "spec.toml", "--executor", "inline")
    assert soon(lambda: house.named("sleep"))
    [strays] = house.named("sleep")
    [seen] = house.named("sweep-node-part")
    seen.send(9)
    done = finished(process)
    assert done.code == 0, done.err
    assert not strays.alive
    assert house.sql("SELECT outcome, final FROM attempts ORDER BY attempt") == [("lost", False), ("ok", True)]


def test_a_node_part_that_somebody_else_ends_is_no_interrupt(house: House) -> None:
    house.spec('command.argv = "sleep 60"', 'timeout = 50\nretry = { attempts = 2, wait = "0.05s" }')
    process = house.start("run", "spec.toml", "--executor", "inline")
    for _ in range(2):
        assert soon(lambda: house.named("sleep"))
        [sleeper] = house.named("sleep")
        [seen] = house.named("sweep-node-part")
        seen.send(15)
        assert soon(lambda gone=sleeper: not gone.alive)  # type: ignore[misc]  # bound now, not when called
    done = finished(process)
    assert (done.code, house.sql("SELECT outcome, final FROM attempts ORDER BY attempt")) == (
        1,
        [("lost", False), ("lost", True)],
    )


def test_warm_ups_come_once_per_set_of_nodes_and_are_archived_as_such(house: House) -> None:
    house.spec('command.argv = "/bin/echo {X}"\nX = [1, 2]', "warmup = 2\nrepeats = 2")
    assert house.sweep("run", "spec.toml", "--executor", "inline").code == 0
    assert house.sql("SELECT phase, count(*) FROM attempts GROUP BY ALL ORDER BY ALL") == [
        ("measure", 4),
        ("warmup", 2),
    ]
    assert house.sql("SELECT count(*) FROM results") == [(4,)]


@pytest.mark.parametrize("start", [("sweep",), ("python", "-m", "sweep")])
def test_modules_of_the_users_that_are_called_like_ours_change_nothing(house: House, start: tuple[str, ...]) -> None:
    for name in ("tasks", "schemas", "archive", "typer", "tenacity"):
        house.write(f"{name}.py", "raise SystemExit('the user\\'s own module was imported')")
    house.spec('command.argv = "/bin/true"', name="sp\udcffec.toml")  # no UTF-8 at that
    done = house.sweep("run", "sp\udcffec.toml", "--executor", "inline", program=start)
    assert (done.code, house.sql("SELECT outcome FROM attempts")) == (0, [("ok",)]), done.err


@pytest.mark.parametrize("place", ["/dev/full", "a pipe that nobody reads", "nowhere"])
def test_a_log_that_cannot_be_written_ends_no_run(house: House, place: str) -> None:
    house.spec('command.argv = "/bin/true"')
    reader, writer = os.pipe()
    os.close(reader)
    stderr = os.open("/dev/full", os.O_WRONLY) if place == "/dev/full" else writer
    process = house.start(
        *("run", "spec.toml", "--executor", "inline"),
        stderr=stderr,
        preexec_fn=(lambda: os.close(2)) if place == "nowhere" else None,
    )
    assert finished(process).code == 0
    assert house.sql("SELECT outcome FROM attempts") == [("ok",)]
    for each in {stderr, writer}:
        os.close(each)


def on_terminal(house: House, width: int) -> tuple[int, str]:
    """Exit code and screen of a run whose stderr is a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = house.start(
        *("run", "spec.toml", "--executor", "inline"), stderr=theirs, env={"TERM": "xterm-256color", "COLUMNS": ""}
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:  # the other side was closed
        pass
    os.close(ours)
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(), seen.decode()


@pytest.mark.parametrize("width", [120, 24])
def test_a_terminal_shows_a_bar_with_what_is_done_failed_retried_and_left(house: House, width: int) -> None:
    house.spec(
        """command.argv = "bash -c 'sleep 0.2; [ {X} != 2 ]'"\nX = [1, 2, 3]""",
        'order = "sorted"\nretry = { attempts = 2, wait = "0.1s" }',
    )
    code, screen = on_terminal(house, width)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    assert code == 1
    assert "\x1b[" in screen
    assert "Traceback" not in screen
    if width == 120:
        assert re.search(r"3/3 +failed 1 retried 1 +\d:\d\d:\d\d ETA", plain)
        assert "X=3" in plain
    assert "command.run X=2" in plain
    assert "go on with" not in plain
