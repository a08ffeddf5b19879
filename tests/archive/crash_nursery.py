"""Starts writers that are killed: one per line of JSON on stdin, forked so that libraries are loaded once.

A writer appends attempts to a run, each noted in a file of acknowledgements once its append has returned, merges,
seals and deletes by a seeded choice. It is killed with SIGKILL `after` seconds after it was started (or, with `acks`,
after so many of its appends were acknowledged), or before its `step`-th system call that changes the archive. The
answer is one line: "killed", "done", or the writer's error.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import uuid
from pathlib import Path

from archive import store
from archive.delete import delete_dead

CHANGING = frozenset({"os.link", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "open"})
ROWS_PER_ATTEMPT = 3
LINE = 33
"""Bytes of one acknowledgement."""

store.FAN_IN = 4


def rows(attempt: uuid.UUID, run: str) -> dict[str, list[dict[str, object]]]:
    ids: dict[str, object] = {"run": run, "attempt_id": attempt}
    measured = [{**ids, "metric": "time", "value": 1.0, "message_size": n} for n in range(ROWS_PER_ATTEMPT)]
    return {"attempts": [{**ids, "outcome": "ok"}], "measurements": measured, "outputs": [{**ids, "text": "x"}]}


def write(archive: Path, run: str, notes: Path, grace: float, seed: int, actions: int) -> None:
    dice = random.Random(seed)
    writer = store.Writer(archive, run, seed, grace)
    with notes.open("ab", buffering=0) as acknowledged:
        for _ in range(actions):
            what = dice.random()
            if what < 0.85:
                attempt = uuid.uuid4()
                writer.append(rows(attempt, run))
                acknowledged.write(attempt.hex.encode() + b"\n")
            elif what < 0.93:
                writer.seal()
            else:
                delete_dead(archive, grace=grace)
        writer.seal()


def die_before(step: int, archive: Path) -> None:
    """SIGKILL this process just before its `step`-th change of the archive."""
    left = [step]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in CHANGING and str(arguments[0]).startswith(str(archive)):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def raise_one(job: dict[str, object]) -> str:
    archive, notes = Path(str(job["archive"])), Path(str(job["notes"]))
    error = notes.with_suffix(".error")
    enough = notes.stat().st_size + int(str(job["acks"])) * LINE
    child = os.fork()
    if child == 0:
        try:
            if job["step"]:
                die_before(int(str(job["step"])), archive)
            grace, seed = float(str(job["grace"])), int(str(job["seed"]))
            write(archive, str(job["run"]), notes, grace, seed, int(str(job["actions"])))
        except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
            error.write_text(traceback.format_exc())
            os._exit(1)
        os._exit(0)
    if job["after"]:
        while notes.stat().st_size < enough and not error.exists():
            time.sleep(0.001)
        time.sleep(float(str(job["after"])))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return "done" if os.WEXITSTATUS(status) == 0 else error.read_text()


def warm_up() -> None:
    """Load and cache what a first append needs; it starts no thread, so forks stay sound."""
    with tempfile.TemporaryDirectory() as folder:
        run = "r20260101-000000-warm"
        store.Writer(Path(folder), run, 1).append(rows(uuid.uuid4(), run))


if __name__ == "__main__":
    warm_up()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(raise_one(json.loads(line))) + "\n")
        sys.stdout.flush()
