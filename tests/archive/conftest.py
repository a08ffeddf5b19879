"""Rows of small trials, and what an archive says of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from archive import layout, physical
from schemas import arrow

START = dt.datetime(2026, 12, 3, 10, 11, 12, tzinfo=dt.UTC)
SIZES = (8, 4096, 1)
RowsOf = Callable[..., dict[str, list[dict[str, object]]]]


@pytest.fixture
def run_id() -> str:
    return "r20261203-101112-ab3d"


@pytest.fixture
def trial(run_id: str) -> RowsOf:
    """The rows of one attempt by its number: the attempt, its measurements in no order, its output."""

    def rows(number: int, run: str = run_id) -> dict[str, list[dict[str, object]]]:
        attempt: dict[str, object] = {"run": run, "attempt_id": UUID(int=number)}
        ids = {**attempt, "trial_id": UUID(int=number % 7)}
        core: dict[str, object] = {"benchmark": "imb", "operation": "allreduce", "nodes": 4 - number % 3, "nics": None}
        start = START + dt.timedelta(seconds=number)
        measured = [
            {
                **ids,
                **core,
                "start": start,
                "message_size": size,
                "metric": "time",
                "value": number + size / 7,
                "unit": "us",
            }
            for size in SIZES
        ]
        tried = {**ids, **core, "start": start, "outcome": "ok", "factors": {"env.X": "1"}, "sizes": list(SIZES)}
        output = {**attempt, "role": "ranks", "stream": "stdout", "text": "a line\n" * 20, "stamps": [0.25, 0.5]}
        return {"attempts": [tried], "measurements": measured, "outputs": [output]}

    return rows


@pytest.fixture
def stored() -> Callable[[Path], dict[str, list[dict[str, object]]]]:
    """Every row that counts in an archive, by table."""

    def read(archive: Path) -> dict[str, list[dict[str, object]]]:
        found = layout.live(archive)
        rows: dict[str, list[dict[str, object]]] = {table: [] for table in arrow.TABLES}
        for part in (*found.sealed, *found.open):
            for table, some in physical.read_tables(archive, part).items():
                rows[table] += some.to_pylist()
        return rows

    return read


@pytest.fixture
def numbers(stored: Callable[[Path], Mapping[str, Sequence[Mapping[str, object]]]]) -> Callable[[Path], list[int]]:
    """The numbers of the attempts that count in an archive; each must have all its measurements and its output."""

    def read(archive: Path) -> list[int]:
        rows = stored(archive)
        counted = sorted(_number(row) for row in rows["attempts"])
        assert sorted(_number(row) for row in rows["measurements"]) == sorted([*counted] * len(SIZES))
        assert sorted(_number(row) for row in rows["outputs"]) == counted
        return counted

    return read


def _number(row: Mapping[str, object]) -> int:
    attempt_id = row["attempt_id"]
    assert isinstance(attempt_id, UUID)
    return attempt_id.int
