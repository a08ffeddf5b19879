"""Writers die by SIGKILL at any moment: nothing that was acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from archive import layout, physical
from archive.verify import verify

NURSERY = Path(__file__).parent / "crash_nursery.py"
ROOT = Path(__file__).parents[2]
ROWS_PER_ATTEMPT = 3
GRACE = 1.0


class Nursery:
    """Writers by order, and what they were told is durable."""

    def __init__(self, folder: Path, run: str) -> None:
        self.archive, self.run, self.notes = folder / "archive", run, folder / "acknowledged"
        self.notes.touch()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); {RUN_NURSERY}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._said() == "ready\n"

    def write(self, *, seed: int, actions: int, after: float = 0.0, acks: int = 0, step: int = 0) -> str:
        """A writer's life (see the nursery): "killed", "done", or its error."""
        job = {"archive": str(self.archive), "run": self.run, "notes": str(self.notes), "grace": GRACE}
        assert self._process.stdin is not None
        line = json.dumps({**job, "seed": seed, "actions": actions, "after": after, "acks": acks, "step": step})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return str(json.loads(self._said()))

    def acknowledged(self) -> set[str]:
        return {line for line in self.notes.read_text().split("\n")[:-1] if line}

    def close(self) -> None:
        self._process.communicate()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


RUN_NURSERY = f"runpy.run_path({str(NURSERY)!r}, run_name='__main__')"


@pytest.fixture
def nursery(tmp_path: Path, run_id: str) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path, run_id)
    yield nursery
    nursery.close()


def seen(archive: Path) -> Counter[str]:
    """Attempts that count, as a reader finds them: a file that is gone means to start over, a few times."""
    for left in reversed(range(50)):
        found = layout.live(archive, grace=GRACE)
        attempts: Counter[str] = Counter()
        others: Counter[str] = Counter()
        try:
            for part in (*found.sealed, *found.open):
                tables = physical.read_tables(archive, part)
                attempts.update(each.hex for each in tables["attempts"].column("attempt_id").to_pylist())
                for table in ("measurements", "outputs"):
                    others.update(each.hex for each in tables[table].column("attempt_id").to_pylist())
        except FileNotFoundError:
            assert left, "a file that counts stays missing"
            continue
        assert others == {each: times * (ROWS_PER_ATTEMPT + 1) for each, times in attempts.items()}
        return attempts
    raise AssertionError


def check(nursery: Nursery) -> None:
    """Everything that was durable before this reading began is in it, once."""
    acknowledged = nursery.acknowledged()
    found = seen(nursery.archive)
    assert acknowledged - found.keys() == set()
    assert {each: times for each, times in found.items() if times > 1} == {}


class Reader(threading.Thread):
    """Reads all the time."""

    def __init__(self, nursery: Nursery) -> None:
        super().__init__()
        self._nursery = nursery
        self._over = threading.Event()
        self.readings = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                check(self._nursery)
                self.readings += 1
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self.failure = error

    def finish(self) -> None:
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure


@pytest.mark.slow
def test_writers_killed_at_random_lose_no_row_and_double_none_under_a_reader(nursery: Nursery) -> None:
    dice = random.Random(20261203)
    reader = Reader(nursery)
    reader.start()
    ends: Counter[str] = Counter()
    for seed in range(60):  # some die before they append, most in the midst of it
        acks, after = dice.choice([0, 1, 3, 6, 12]), dice.uniform(0.001, 0.1)
        ends[nursery.write(seed=seed, actions=10_000, acks=acks, after=after)] += 1
    reader.finish()
    assert ends == {"killed": 60}
    assert reader.readings > 5
    assert len(nursery.acknowledged()) > 100
    check(nursery)
    assert nursery.write(seed=1, actions=0) == "done"
    check(nursery)
    assert len(layout.live(nursery.archive).sealed) == 1
    assert verify(nursery.archive) == []


def test_a_writer_killed_before_any_of_its_system_calls_loses_no_row_and_the_next_goes_on(nursery: Nursery) -> None:
    step = 1
    while (end := nursery.write(seed=step, actions=12, step=step)) == "killed":
        check(nursery)
        step += 3 if step < 60 else 11
    assert end == "done"
    assert step > 100
    check(nursery)
    assert verify(nursery.archive) == []
