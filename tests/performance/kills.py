"""SIGKILL of the driver at random moments of a sweep, each followed by `sweep resume`: what is lost, doubled, left?

    python tests/performance/kills.py [--kills 50] [--seed 1] [--executor inline]

Prints one JSON line. A row is lost when a trial was reported done and is not in the archive, or when a planned trial
has no final row in the end; it is doubled when an attempt is there twice, or a trial is final twice in one try of its
block.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.house import House, soon

SPEC = """
command.argv = "bash {folder}/measure.sh {folder}/side {{X}} {{P}} {{repeat}}"
X = [1, 2, 3, 4, 5]
P = ["a", "b"]
"""
RUN = 'repeats = 2\npair = ["P"]\ntimeout = 30\nretry = { attempts = 2, wait = "0.01s" }'
PLANNED = 20
MEASURE = """#!/bin/bash
echo "P=$3 X=$2 #$(($4 + 1))" >> "$1"
[ "$2" -gt 2 ] || { setsid sleep 60 & (sleep 60 &) }
sleep 0.03
echo '{"metric": "step_time", "value": 1, "unit": "s"}'
"""
DONE = re.compile(r"\[\d+/\d+\] command\.run (X=\d P=\w #\d)(?:: attempt \d+)?: ok ")


@dataclass(slots=True)
class Harm:
    """What a campaign of kills did."""

    kills: int = 0
    runs: int = 0
    stints: int = 0
    reported: int = 0
    """Trials that were said to be done, each once per stint that said so."""
    cut_blocks: int = 0
    lost: int = 0
    doubled: int = 0
    left: int = 0


def campaign(house: House, kills: int, seed: int, executor: str) -> Harm:
    """Kill that often; then let the last run come to its end."""
    house.write("measure.sh", MEASURE)
    house.spec(SPEC.format(folder=house.folder), RUN)
    moments = random.Random(seed)
    harm = Harm()
    words: tuple[str, ...] = ("run", "spec.toml")
    reported: set[str] = set()
    while harm.kills < kills or words[0] == "resume":
        kill = harm.kills < kills
        code, said = _stint(house, (*words, "--executor", executor), moments if kill else None)
        harm.stints += 1
        harm.kills += code == -signal.SIGKILL
        harm.left += 0 if soon(lambda: not house.alive(), 15.0) else len(house.alive())
        now = set(DONE.findall(said))
        harm.reported += len(now)
        reported |= now
        begun = re.search(r"^run (r\S+) in ", said)
        if words[0] == "run" and (begun is None or begun[1] not in house.runs()):
            continue  # killed before its first append: there is nothing to resume
        run = words[1] if words[0] == "resume" else (begun[1] if begun is not None else "")
        harm.lost += len(reported - _final(house, run))
        harm.doubled += _doubled(house, run)
        words = ("resume", run)
        if code != -signal.SIGKILL:
            assert code == 0, said
            harm.runs += 1
            harm.lost += PLANNED - len(_final(house, run))
            harm.cut_blocks += house.sql(
                f"SELECT count(DISTINCT block_id) FROM attempts WHERE block_try > 0 AND run = '{run}'"
            )[0][0]
            words, reported = ("run", "spec.toml"), set()
    return harm


def _stint(house: House, words: tuple[str, ...], moments: random.Random | None) -> tuple[int, str]:
    """One driver process, killed at a random moment of its life unless it ends before; exit code and what it said."""
    log = house.folder / "said"
    with log.open("w") as file:
        process = house.start(*words, stderr=file, stdout=file)
        if moments is not None:
            early = moments.random() < 0.2  # while it starts
            if not early:
                soon(lambda: "trials, " in log.read_text() or process.poll() is not None)
            time.sleep(moments.uniform(0.0, 0.8 if early else 1.6))
            process.kill()
        process.wait()
    return process.returncode, log.read_text()


def _final(house: House, run: str) -> set[str]:
    """The trials that count as done, in the words of the log."""
    rows = house.sql(
        "SELECT factors['P'], factors['X'], repeat + 1, outcome, count(*) FROM attempts a WHERE final AND "
        f"run = '{run}' AND block_try = (SELECT max(block_try) FROM attempts b WHERE b.run = a.run "
        "AND b.block_id = a.block_id) GROUP BY ALL"
    )
    assert all(outcome == "ok" for *_, outcome, _ in rows), rows
    return {f"X={x} P={p} #{repeat}" for p, x, repeat, *_ in rows}


def _doubled(house: House, run: str) -> int:
    return len(
        house.sql(
            f"WITH mine AS (SELECT * FROM attempts WHERE run = '{run}') "
            "SELECT 1 FROM mine GROUP BY attempt_id HAVING count(*) > 1 UNION ALL "
            "SELECT 1 FROM mine GROUP BY trial_id, attempt HAVING count(*) > 1 UNION ALL "
            "SELECT 1 FROM mine WHERE final GROUP BY trial_id, block_try HAVING count(*) > 1 UNION ALL "
            f"SELECT 1 FROM measurements WHERE run = '{run}' GROUP BY attempt_id, metric HAVING count(*) > 1"
        )
    )


def main() -> None:
    """Run a campaign in a folder of its own, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executor", choices=["inline", "ray"], default="inline")
    given = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        house = House(Path(folder))
        harm = campaign(house, given.kills, given.seed, given.executor)
        house.close()
    sys.stdout.write(json.dumps({**vars(given), **asdict(harm), "seconds": round(time.monotonic() - start)}) + "\n")
    sys.exit(1 if harm.lost or harm.doubled or harm.left else 0)


if __name__ == "__main__":
    main()
