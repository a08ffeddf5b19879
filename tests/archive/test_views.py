"""The curated views say what was measured, and leave out what does not count."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest

import archive
from archive import layout, views
from archive.store import Writer
from schemas import arrow

RUN = "r20261203-101112-ab3d"
START = dt.datetime(2026, 12, 3, 10, 11, 12, tzinfo=dt.UTC)
Row = dict[str, Any]


def attempt(number: int = 1, **changes: object) -> Row:
    return {
        "run": RUN,
        "stint": 1,
        "trial_id": UUID(int=100 + number),
        "attempt_id": UUID(int=number),
        "attempt": 1,
        "phase": "measure",
        "benchmark": "imb",
        "operation": "allreduce",
        "nodes": 2,
        "ranks_per_node": 2,
        "factors": {"batch": "32"},
        "outcome": "ok",
        "node_names": ["n1", "n2"],
        "start": START,
        "final": True,
        "repeat": 0,
        "slot": 0,
        **changes,
    }


def measured(tried: Row, values: dict[str, float], size: int | None = 1000, **changes: object) -> list[Row]:
    """The measurements of one message size of an attempt."""
    shared = ("run", "trial_id", "attempt_id", "phase", "benchmark", "operation", "nodes", "ranks_per_node", "start")
    core = {name: tried[name] for name in (*shared, "repeat", "slot")}
    return [
        {
            **core,
            "nics": tried.get("nics"),
            "sharp": tried.get("sharp"),
            "point_id": UUID(int=7),
            "message_size": size,
            "payload_bytes": size,
            "metric": metric,
            "value": value,
            "variant": "",
            **changes,
        }
        for metric, value in values.items()
    ]


def stint(**changes: object) -> Row:
    return {"run": RUN, "stint": 1, "name": "a name", "cluster": "lab", "tags": ["t"], "start": START, **changes}


def event(kind: str, scope: str, subject: str | None, second: int = 0, **changes: object) -> Row:
    time = START + dt.timedelta(days=1, seconds=second)
    return {"run": RUN, "time": time, "scope": scope, "subject": subject, "kind": kind, "text": "why not", **changes}


Build = Callable[..., archive.Archive]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def build(**tables: list[Row]) -> archive.Archive:
        Writer(tmp_path / "archive", RUN, 1).append({"runs": [stint()], **tables})
        return archive.open(tmp_path / "archive")

    return build


def rows(opened: archive.Archive, text: str) -> list[Row]:
    relation = opened.sql(text)
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def test_a_result_is_one_wide_row_per_attempt_size_and_variant(build: Build) -> None:
    tried = attempt()
    values = {"time": 2.0, "time_min": 1.0, "time_max": 3.0, "bandwidth": 0.5, "message_rate": 9.0, "step_time": 4.0}
    opened = build(
        attempts=[tried],
        measurements=[
            *measured(tried, values),
            *measured(tried, {"time": 5.0}, size=2000),
            *measured(tried, {"time": 6.0}, size=2000, variant="in-place"),
        ],
    )
    found = rows(opened, "FROM results ORDER BY message_size, variant")
    assert [(row["message_size"], row["variant"], row["time"]) for row in found] == [
        (1000, "", 2.0),
        (2000, "", 5.0),
        (2000, "in-place", 6.0),
    ]
    wide = found[0]
    assert wide["metrics"] == values
    assert {name: wide[name] for name in ("time_min", "time_max", "bandwidth", "message_rate")} == {
        "time_min": 1.0,
        "time_max": 3.0,
        "bandwidth": 0.5,
        "message_rate": 9.0,
    }
    assert (wide["cluster"], wide["name"], wide["tags"], wide["factors"]) == ("lab", "a name", ["t"], {"batch": "32"})
    assert (wide["run"], wide["start"], wide["outcome"], wide["node_names"]) == (RUN, START, "ok", ["n1", "n2"])


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("allreduce", 2 * 3 / 4),
        ("all_reduce", 2 * 3 / 4),
        ("Allreduce", 2 * 3 / 4),
        ("reduce_scatter", 3 / 4),
        ("reduce_scatter_block", 3 / 4),
        ("allgather", 3 / 4),
        ("all_gather", 3 / 4),
        ("allgatherv", 3 / 4),
        ("alltoall", 3 / 4),
        ("gather", 3 / 4),
        ("scatter", 3 / 4),
        ("bcast", 1),
        ("broadcast", 1),
        ("reduce", 1),
        ("sendrecv", 1),
        ("pingpong", None),
        ("barrier", None),
        ("iallreduce", None),
    ],
)
def test_algbw_and_busbw_are_derived_as_nccl_tests_define_them(
    build: Build, operation: str, factor: float | None
) -> None:
    tried = attempt(operation=operation)
    (row,) = rows(build(attempts=[tried], measurements=measured(tried, {"time": 4.0})), "FROM results")
    assert row["algbw"] == pytest.approx(1000 / 4e-6 / 1e9)
    assert row["busbw"] == (None if factor is None else pytest.approx(row["algbw"] * factor))


def test_what_a_parser_stored_is_not_derived_again(build: Build) -> None:
    tried = attempt()
    values = {"time": 4.0, "algbw": 7.0, "busbw": 8.0}
    (row,) = rows(build(attempts=[tried], measurements=measured(tried, values)), "FROM results")
    assert (row["algbw"], row["busbw"]) == (7.0, 8.0)


def test_zero_is_a_value_and_no_division(build: Build) -> None:
    tried = attempt(nodes=None, ranks_per_node=None)
    (row,) = rows(build(attempts=[tried], measurements=measured(tried, {"time": 0.0}, size=0)), "FROM results")
    assert (row["time"], row["algbw"], row["busbw"], row["message_size"]) == (0.0, None, None, 0)


def test_a_result_needs_no_message_size(build: Build) -> None:
    tried = attempt(operation="barrier")
    (row,) = rows(build(attempts=[tried], measurements=measured(tried, {"time": 3.0}, size=None)), "FROM results")
    assert (row["message_size"], row["time"], row["algbw"]) == (None, 3.0, None)


def test_a_metric_that_is_there_twice_breaks_no_query(build: Build) -> None:
    tried = attempt()
    twice = [*measured(tried, {"time": 1.0, "step_time": 2.0}), *measured(tried, {"time": 1.0})]
    (row,) = rows(build(attempts=[tried], measurements=twice), "FROM results")
    assert row["metrics"] == {"time": 1.0, "step_time": 2.0}


@pytest.mark.parametrize(
    ("tried", "row", "why"),
    [
        ({"phase": "warmup"}, {}, "phase warmup"),
        ({"phase": "probe"}, {}, "phase probe"),
        ({"sharp": "on"}, {"sharp_observed": False}, "sharp on was asked, the opposite observed"),
        ({"sharp": "off"}, {"sharp_observed": True}, "sharp off was asked, the opposite observed"),
        ({"nics": 2}, {"nics_observed": 1}, "2 NICs were asked, 1 observed"),
        ({}, {"partial": True}, "partial: the last row before a death"),
        ({"outcome": "wrong", "reason": "3 elements"}, {}, "wrong: 3 elements"),
        ({"outcome": "wrong"}, {}, "wrong: "),
        ({"sharp": "on"}, {"sharp_observed": True}, None),
        ({"sharp": "on"}, {"sharp_observed": None}, None),
        ({"sharp": None}, {"sharp_observed": True}, None),
        ({"nics": 2}, {"nics_observed": 2}, None),
        ({"nics": None}, {"nics_observed": 2}, None),
        ({"outcome": "failed"}, {}, None),
    ],
)
def test_a_row_that_does_not_count_is_hidden_and_says_why(build: Build, tried: Row, row: Row, why: str | None) -> None:
    one = attempt(**tried)
    opened = build(attempts=[one], measurements=measured(one, {"time": 1.0}, **row))
    assert opened.sql("SELECT hidden FROM results_all").fetchall() == [(why,)]
    assert len(opened.sql("FROM results")) == (why is None)


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        ([event("exclude", "run", None)], []),
        ([event("exclude", "run", RUN)], []),
        ([event("exclude", "attempt", str(UUID(int=1)))], [2]),
        ([event("exclude", "node", "n3")], [1]),
        ([event("exclude", "node", "n1")], []),
        ([event("exclude", "node", "n4")], [1, 2]),
        ([event("exclude", "period", "2026-12-03T10:00:00Z/2026-12-03T11:00:00Z")], [2]),
        ([event("exclude", "period", "2026-12-03T12:00:00+02/2026-12-03T13:00:00+02")], [2]),
        ([event("exclude", "period", "no time/at all")], [1, 2]),
        ([event("exclude", "run", RUN), event("reinstate", "run", RUN, 1)], [1, 2]),
        ([event("reinstate", "run", RUN), event("exclude", "run", RUN, 1)], []),
        ([event("exclude", "run", None), event("reinstate", "attempt", str(UUID(int=1)), 1)], []),
        ([event("exclude", "node", "n3"), event("exclude", "attempt", str(UUID(int=1)))], []),
        ([event("note", "run", RUN)], [1, 2]),
        ([event("exclude", "node", "n1", run="r20261203-101112-zzzz")], [1, 2]),
        ([event("exclude", "run", RUN, text=None)], []),
    ],
)
def test_what_somebody_excluded_is_hidden_until_it_is_reinstated(
    build: Build, events: list[Row], shown: list[int]
) -> None:
    first, second = attempt(1), attempt(2, node_names=["n1", "n3"], start=START + dt.timedelta(hours=5))
    opened = build(
        attempts=[first, second],
        measurements=[*measured(first, {"time": 1.0}), *measured(second, {"time": 2.0})],
        events=events,
    )
    assert opened.sql("SELECT attempt_id FROM results ORDER BY time").fetchall() == [(UUID(int=n),) for n in shown]
    hidden = [why for (why,) in opened.sql("SELECT hidden FROM results_all WHERE hidden IS NOT NULL").fetchall()]
    assert len(hidden) == 2 - len(shown)
    assert all(why.startswith("excluded: ") for why in hidden)


def test_the_last_attempt_of_each_trial_is_the_one_that_counts(build: Build) -> None:
    trial = UUID(int=1)
    opened = build(
        attempts=[
            attempt(1, trial_id=trial, attempt=1, outcome="lost", final=False),
            attempt(2, trial_id=trial, attempt=3, outcome="ok"),
            attempt(3, trial_id=trial, attempt=2, outcome="timeout", final=False),
            attempt(4, outcome="failed"),
        ]
    )
    found = opened.sql("SELECT attempt_id, outcome FROM attempts_last ORDER BY attempt_id").fetchall()
    assert found == [(UUID(int=2), "ok"), (UUID(int=4), "failed")]


def test_failures_are_newest_first_with_reason_and_proof(build: Build) -> None:
    later = START + dt.timedelta(hours=1)
    opened = build(
        attempts=[
            attempt(1),
            attempt(2, outcome="timeout", reason="too slow", proof=["line"]),
            attempt(3, outcome="unsupported", reason="no SHARP", start=later),
        ]
    )
    found = opened.sql("SELECT outcome, reason, proof FROM failures").fetchall()
    assert found == [("unsupported", "no SHARP", None), ("timeout", "too slow", ["line"])]


def test_a_stint_that_was_described_twice_doubles_no_result(tmp_path: Path) -> None:
    tried = attempt()
    rows_of = {"runs": [stint(), stint()], "attempts": [tried], "measurements": measured(tried, {"time": 1.0})}
    Writer(tmp_path, RUN, 1).append(rows_of)
    assert len(archive.open(tmp_path).sql("FROM results")) == 1


def test_every_curated_view_begins_with_what_it_holds() -> None:
    documented = views.documentation()
    assert {"results", "results_all", "attempts_last", "failures"} <= documented.keys()
    assert all(text for text in documented.values())


def test_every_view_answers_over_an_empty_archive(tmp_path: Path) -> None:
    opened = archive.open(tmp_path)
    for name in views.known():
        relation = opened.sql(f"FROM {name}")
        assert relation.fetchall() == []
        assert len(relation.columns) > 1


def test_show_tables_lists_every_view(tmp_path: Path) -> None:
    listed = dict(archive.open(tmp_path).sql("SHOW TABLES").fetchall())
    assert listed.keys() == views.known()
    assert "One" in listed["attempts_last"] or "attempt" in listed["attempts_last"]


def described(connection: duckdb.DuckDBPyConnection, source: str) -> list[tuple[str, str]]:
    return [row[:2] for row in connection.execute(f"DESCRIBE FROM {source}").fetchall()]


@pytest.mark.parametrize("table", arrow.TABLES)
def test_the_columns_of_an_empty_view_are_those_of_the_files(build: Build, tmp_path: Path, table: str) -> None:
    build()
    Writer(tmp_path / "archive", RUN, 1).seal()
    found = layout.live(tmp_path / "archive")
    (sealed,) = found.tables(table)
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE empty ({views.COLUMNS[table]})")
    assert described(connection, "empty") == described(
        connection, f"read_parquet('{sealed}', hive_partitioning = false)"
    )


def test_the_newest_schema_of_the_views_is_the_one_that_is_written() -> None:
    assert views.VERSION == arrow.VERSION
    assert tuple(views.COLUMNS) == arrow.TABLES
