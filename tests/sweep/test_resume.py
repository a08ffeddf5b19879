"""`sweep resume`: plan minus archive, whatever happened before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import InputError
from schemas.plan import Combination, Setup, Trial
from sweep.deadline import deadline
from sweep.past import left, pasts, rest
from tests.house import House, finished, soon

SIZES = (1, 2, 4, 8)


def trials(count: int, refused: int) -> list[Trial]:
    """A block of that many trials, the first `refused` of them unsupported."""
    setup = Setup(uuid.UUID(int=1), "local", None, "none", None, {})
    return [
        Trial(
            uuid.UUID(int=number + 1),
            Combination("command", "run", MappingProxyType({"nics": number}), MappingProxyType({}), setup),
            SIZES,
            0,
            0,
            uuid.UUID(int=99),
            0,
            number,
            "no such NIC" if number < refused else None,
        )
        for number in range(count)
    ]


def record(trial: Trial, number: int, block_try: int, sizes: tuple[int | None, ...], measured: int) -> dict[str, Any]:
    """The row of an attempt that measured so many of the sizes that it launched."""
    missing = list(sizes[measured:])
    return {
        "trial_id": str(trial.trial_id),
        "attempt": number,
        "block_try": block_try,
        "phase": "measure",
        "outcome": "unsupported" if trial.unsupported else "failed" if missing else "ok",
        "final": not missing or trial.unsupported is not None,
        "sizes": list(sizes),
        "missing": missing,
    }


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.data())
def test_however_often_it_is_cut_a_block_ends_whole_in_one_try(count: int, data: st.DataObject) -> None:
    members = trials(count, data.draw(st.integers(0, count - 1)))
    records: list[dict[str, Any]] = []
    for cuts in (*data.draw(st.lists(st.integers(0, 6), max_size=6)), None):
        past = pasts(records, again=False)
        block_try, todo = left(members, past)
        run_a_stint(block_try, todo, past, records, data, cuts)
    assert left(members, pasts(records, again=False))[1] == []
    check(members, records)


def run_a_stint(
    block_try: int,
    todo: list[Trial],
    past: Mapping[uuid.UUID, Any],
    records: list[dict[str, Any]],
    data: st.DataObject,
    attempts: int | None,
) -> None:
    """What a driver does, killed after so many attempts if a number is given."""
    for trial in todo:
        last = past.get(trial.trial_id)
        number = last.attempt if last is not None else 0
        launched = rest(trial, last, block_try)
        while True:
            if attempts is not None:
                attempts -= 1
                if attempts < 0:
                    return
            number += 1
            measured = data.draw(st.integers(0, len(launched.sizes))) if attempts is not None else len(launched.sizes)
            made = record(trial, number, block_try, launched.sizes, measured)
            records.append(made)
            if made["final"]:
                break
            launched = rest(trial, pasts(records, again=False)[trial.trial_id], block_try)


def check(members: list[Trial], records: list[dict[str, Any]]) -> None:
    launched = [trial for trial in members if trial.unsupported is None]
    tries = {each["block_try"] for each in records if each["outcome"] != "unsupported"}
    for trial in members:
        mine = [each for each in records if each["trial_id"] == str(trial.trial_id)]
        assert [each["attempt"] for each in mine] == list(range(1, len(mine) + 1))
        if trial.unsupported is not None:
            assert len(mine) == 1
            continue
        last = [each for each in mine if each["block_try"] == max(tries)]
        assert sum(each["final"] for each in last) == 1
        measured = Counter(size for each in last for size in each["sizes"] if size not in each["missing"])
        assert measured == Counter(SIZES)  # each once, side by side with the other trials of the block
    if len(launched) == 1:
        assert tries == {0}


@pytest.mark.parametrize("again", [False, True])
def test_what_failed_for_good_is_done_unless_asked_again(again: bool) -> None:
    members = trials(3, 1)
    records = [
        record(members[0], 1, 0, SIZES, 0),
        record(members[1], 1, 0, SIZES, 4),
        {**record(members[2], 1, 0, SIZES, 2), "final": True},
    ]
    past = pasts(records, again=again)
    assert left(members, past) == ((1, members[1:]) if again else (0, []))
    single = trials(1, 0)
    past = pasts([{**record(single[0], 1, 0, SIZES, 2), "final": True}], again=again)
    assert left(single, past) == ((0, single) if again else (0, []))
    assert rest(single[0], past[single[0].trial_id], 0).sizes == (4, 8)


def test_warm_ups_are_no_past() -> None:
    [trial] = trials(1, 0)
    assert pasts([{**record(trial, 0, 0, SIZES, 4), "phase": "warmup"}], again=False) == {}


COUNTED = """command.argv = "bash -c 'echo {X} >> {FOLDER}/side; sleep 0.3'"
X = [1, 2, 3, 4, 5, 6]"""


def counted(house: House, run: str) -> None:
    house.spec(COUNTED.replace("{FOLDER}", str(house.folder)), run)


def test_a_run_that_stops_at_its_deadline_ends_with_4_until_all_is_done(house: House) -> None:
    counted(house, 'deadline = "1.7s"')
    done = house.sweep("run", "spec.toml", "--executor", "inline")
    assert done.code == 4, done.err
    hint = re.search(r"the deadline is near: .*; go on with: (sweep resume (r\S+) --archive \S+)$", done.lines[-1])
    assert hint is not None
    codes = [4]
    while codes[-1] == 4 and len(codes) < 10:
        codes.append(house.sweep(*hint[1].split()[1:], "--executor", "inline").code)
    assert codes[-1] == 0
    assert Counter((house.folder / "side").read_text().split()) == Counter("123456")
    assert house.sql("SELECT count(*), count(DISTINCT trial_id), bool_and(final) FROM attempts") == [(6, 6, True)]
    kinds = house.sql("SELECT kind FROM events ORDER BY time")
    assert kinds == [("started",), ("stopped",)] * (len(codes) - 1) + [("started",), ("ended",)]


def test_a_retry_does_not_wait_beyond_the_deadline(house: House) -> None:
    house.spec("command.argv = \"bash -c 'echo Connection refused; exit 1'\"", 'deadline = "2s"\nretry.wait = "1h"')
    assert house.sweep("run", "spec.toml", "--executor", "inline").code == 4
    assert house.sql("SELECT outcome, final FROM attempts") == [("failed", False)]


def test_a_resume_needs_neither_the_spec_nor_its_folder(house: House) -> None:
    house.write("there/bin/measure", "#!/bin/bash\n[ -e ../go ] || { echo Connection refused; exit 1; }")
    spec = house.spec('command.argv = "measure"', "retry.attempts = 1", '[launch]\npath = ["bin"]', "there/spec.toml")
    assert house.sweep("run", "there/spec.toml", "--executor", "inline").code == 1
    spec.unlink()
    elsewhere = house.folder / "elsewhere"
    elsewhere.mkdir()
    house.write("go", "")
    done = finished(house.start("resume", "last", "--executor", "inline", "--retry-failed", cwd=elsewhere))
    assert done.code == 0, done.err
    assert house.sql("SELECT outcome, attempt, stint FROM attempts ORDER BY attempt") == [
        ("failed", 1, 0),
        ("ok", 2, 1),
    ]
    again = house.sweep("resume", "--executor", "inline")
    assert (again.code, house.sql("SELECT count(*) FROM attempts")) == (0, [(2,)])
    assert "1 in the archive already" in again.err


def test_secrets_are_in_no_row_and_a_resume_needs_their_file_as_it_was(house: House) -> None:
    words = "sekret-in-env sekret-in-argv sekret-in-site sekret-in-line sekret-in-url"
    house.write(
        "site.toml", '[launch]\nenv = { HF_TOKEN = "sekret-in-site" }\nsetup = ["export API_KEY=sekret-in-line"]'
    )
    spec = house.spec(
        """command.argv = "bash -c 'env; echo $0 $@; [ -e go ] || exit 1' --token sekret-in-argv --url=http://u:sekret-in-url@h/"
env.DB_PASSWORD = "sekret-in-env"
env.NCCL_TOKENIZER = "kept"
command.match.tokens_per_second = "none (\\\\d+)"
""",
        "retry.attempts = 1",
    )
    assert house.sweep("run", "spec.toml", "--executor", "inline").code == 1
    text = everything(house)
    assert not any(word in text for word in words.split())
    assert "kept" in text
    assert text.count("<redacted>") > 10
    [(printed,)] = house.sql("SELECT text FROM outputs WHERE stream = 'stdout'")
    assert "DB_PASSWORD=<redacted>" in printed
    spec.write_text(spec.read_text() + "# changed\n")
    refused = house.sweep("resume", "--executor", "inline", "--retry-failed")
    assert (refused.code, len(refused.lines)) == (2, 1)
    assert "the archive keeps no secrets" in refused.err
    spec.write_text(spec.read_text().removesuffix("# changed\n"))
    house.write("go", "")
    assert house.sweep("resume", "--executor", "inline", "--retry-failed").code == 1  # the metric never appears
    assert not any(word in everything(house) for word in words.split())
    assert house.sql("SELECT count(*) FROM attempts") == [(2,)]


def everything(house: House) -> str:
    """Every value of every row, as text."""
    tables = ("runs", "events", "nodes", "attempts", "measurements", "outputs")
    return "\n".join(str(row) for table in tables for row in house.sql(f"SELECT * FROM {table}"))


def test_of_two_drivers_on_one_run_one_stops_and_the_archive_is_right(house: House) -> None:
    counted(house, "repeats = 2")
    first = house.start("run", "spec.toml", "--executor", "inline")
    assert soon((house.folder / "side").exists)
    second = house.sweep("resume", house.runs()[0], "--executor", "inline")
    done = finished(first)
    assert sorted((done.code, second.code)) == [0, 3]
    loser = done if done.code == 3 else second
    assert [line for line in loser.lines if line.startswith("sweep: ")] == [
        f"sweep: run {house.runs()[0]}: another driver works on it or has forgotten it; this one stops"
    ]
    assert loser.lines[-1].startswith("sweep: ")
    assert house.sql("SELECT count(*), count(DISTINCT trial_id), bool_and(final) FROM attempts") == [(12, 12, True)]
    assert house.sweep("verify").code == 0


FULL = """
set -e
mkdir store; mount -t tmpfs -o size=400k none store; head -c 1M /dev/zero > store/filler 2> /dev/null || true
code() { set +e; "$@" 2>> said; echo $? >> codes; set -e; }
code SWEEP run spec.toml --executor inline --archive store/archive
rm store/filler
code SWEEP run spec.toml --executor inline --archive store/archive
mount -o remount,size=100M store
code SWEEP resume --executor inline --archive store/archive
mount -o remount,ro store
code SWEEP run spec.toml --executor inline --archive store/archive
cp -r store/archive archive
"""


def test_a_full_disk_ends_with_3_and_a_line_and_the_rest_is_done_once_there_is_space(house: House) -> None:
    house.spec(
        """command.argv = "bash -c 'echo {X}; head -c 60000 /dev/urandom | base64'"\nX = [1, 2, 3, 4, 5, 6, 7, 8]"""
    )
    script = FULL.replace("code SWEEP", f"code {Path(sys.executable).with_name('sweep')}")
    name, _, value = house.mark.partition("=")
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", script],
        cwd=house.folder,
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (house.folder / "codes").read_text().split() == ["3", "3", "0", "3"]
    told = [line for line in (house.folder / "said").read_text().splitlines() if line.startswith("sweep: ")]
    assert len(told) == 3
    assert all("the disk is full; what was archived is safe: free some space, then resume" in line for line in told[:2])
    assert "is on a read-only file system" in told[2]
    assert house.sql("SELECT count(*), count(DISTINCT trial_id), bool_and(final) FROM attempts") == [(8, 8, True)]
    assert house.sql("SELECT count(DISTINCT stint) FROM attempts") == [(2,)]


def test_an_archive_that_is_a_file_ends_with_3_before_anything_is_started(house: House) -> None:
    counted(house, "")
    house.archive.write_text("no folder")
    done = house.sweep("run", "spec.toml")
    assert (done.code, done.lines[-1]) == (
        3,
        f"sweep: archive {house.archive}: {house.archive} is no folder; name another with --archive",
    )
    assert not (house.folder / "side").exists()


def test_a_cut_pair_is_measured_again_whole_side_by_side(house: House) -> None:
    house.write("pair.sh", "#!/bin/bash\necho $1 >> side\n[ $1 = a ] || [ -e go ] || exec sleep 60")
    house.spec(f'command.argv = "{house.folder}/pair.sh {{P}}"\nP = ["a", "b"]', 'pair = ["P"]\norder = "sorted"')
    process = house.start("run", "spec.toml", "--executor", "inline")
    assert soon(lambda: house.runs() and house.sql("SELECT * FROM attempts") and house.named("sleep"))
    process.send_signal(signal.SIGKILL)
    finished(process)
    house.write("go", "")
    assert house.sweep("resume", "--executor", "inline").code == 0
    rows = house.sql("SELECT block_try, factors['P'], attempt, final, position FROM attempts ORDER BY start")
    assert rows == [(0, "a", 1, True, 0), (1, "a", 2, True, 0), (1, "b", 1, True, 1)]
    assert (house.folder / "side").read_text().split() == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("asked", "end"),
    [
        ("none", None),
        ("auto", 5000.0),
        ("90", 1090.0),
        ("1h30m", 6400.0),
        ("1970-01-01T01:00:00+00:00", 3600.0),
    ],
)
def test_a_deadline_is_a_moment_a_duration_or_the_end_of_the_allocation(asked: str, end: float | None) -> None:
    assert deadline(asked, 1000.0, {"SLURM_JOB_END_TIME": "5000"}) == end


def test_without_an_allocation_there_is_no_automatic_deadline_and_no_nonsense_is_one() -> None:
    assert deadline("auto", 1000.0, {}) is None
    with pytest.raises(InputError, match="is no time"):
        deadline("soon", 1000.0, {})
