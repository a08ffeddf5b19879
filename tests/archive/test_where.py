"""`where` is SQL over the factors, and over nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archive.where import keep
from schemas.errors import InputError

GRID: dict[str, list[Any]] = {
    "nodes": [1, 2, 4, 8],
    "nics": [1, 2, 1, 2],
    "sharp": ["off", "on", "off", "on"],
    "env.NCCL_ALGO": ["Ring", "Tree", "Ring", "Tree"],
    "mixed": [32, "32x", True, 1.5],
    "ratio": [1, 0.5, 0.25, 0.0],
    "message_size": [None, 0, 8, 2**40],
    "flag": [True, False, True, False],
    "huge": [1, 2**70, 3, 4],
}


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("true", [0, 1, 2, 3]),
        ("false", []),
        ("NULL", []),
        ("nodes > 2", [2, 3]),
        ("NOT (sharp = 'on' AND nodes < 3)", [0, 2, 3]),
        ("NODES BETWEEN 2 AND 4", [1, 2]),
        ("env.NCCL_ALGO = 'Ring'", [0, 2]),
        ("\"env.NCCL_ALGO\" = 'Ring'", [0, 2]),
        ("env.nccl_algo IN ('Tree')", [1, 3]),
        ("mixed = '32'", [0]),
        ("mixed IN ('32x', 'true', '1.5')", [1, 2, 3]),
        ("ratio < 0.4", [2, 3]),
        ("ratio = 1", [0]),
        ("message_size < 10", [1, 2]),
        ("message_size IS NULL", [0]),
        ("coalesce(message_size, 0) = 0", [0, 1]),
        ("flag", [0, 2]),
        ("huge > 1e20", [1]),
        ("CASE WHEN nodes = 1 THEN true END", [0]),
        ("nodes = 2 -- the rest is a comment", [1]),
        ("nodes = 2\n  OR nodes = 4", [1, 2]),
        ("list_contains([1, 8], nodes)", [0, 3]),
        ("sharp LIKE 'o%' AND regexp_matches(sharp, 'f+')", [0, 2]),
        ("nodes * nics = 16", [3]),
    ],
)
def test_a_condition_keeps_the_rows_where_it_is_true(where: str, kept: list[int]) -> None:
    assert keep(where, GRID) == [row in kept for row in range(4)]


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("", "empty"),
        ("  \n ", "empty"),
        ("node = 3", '"node" not found'),
        ("nodes >", "syntax error"),
        ("nodes = 'many'", "Could not convert"),
        ("nodes", "no condition but a value of type bigint"),
        ("'true'", "no condition but a value of type varchar"),
        ("sharp = 'on", "unterminated"),
        ("count(*) > 2", "aggregates"),
        ("sum(nodes) OVER () > 3", "window"),
        ("unnest([true, false])", "UNNEST"),
        ("columns(*)", ""),
        ("*", "STAR"),
        ("true) AS a, (false", "not one condition"),
        ("true) FROM grid -- ", "syntax error"),
        ("true) FROM grid; DROP TABLE grid; SELECT (true", "does more than read"),
        ("true); SELECT (true", "2 statements"),
        ("true ORDER BY 1", "syntax error"),
        ("nodes IN (SELECT 1)", "a query inside"),
        ("EXISTS (SELECT 1)", "a query inside"),
        ("(WITH t AS (SELECT 1) SELECT true)", "a query inside"),
        ("EXISTS (FROM read_text('/etc/passwd'))", "read_text is not allowed"),
        ("EXISTS (FROM '/etc/passwd')", "no table /etc/passwd"),
        ("EXISTS (WITH t AS (COPY (SELECT 1) TO '/tmp/x') FROM t)", "COPY"),
        ("read_text('/etc/passwd') = ''", "read_text"),
        ("getenv('HOME') = ''", "getenv is not allowed"),
        ("random() < 0.5", "another answer each time"),
        ("now() > TIMESTAMP '2026-01-01'", "another answer each time"),
        ("current_date > DATE '2026-01-01'", "another answer each time"),
        ("nodes = ?", ""),
        ("nodes = $1", ""),
        ("error('my own')", "my own"),
        ("\0", ""),
    ],
)
def test_what_is_no_condition_over_the_factors_is_refused_in_one_line(where: str, what: str) -> None:
    with pytest.raises(InputError) as refused:
        keep(where, GRID)
    (problem,) = refused.value.problems
    assert problem.where == "where"
    assert what in problem.what
    assert "nodes, nics, sharp, env.NCCL_ALGO" in problem.remedy
    assert "\n" not in str(problem)


def test_factors_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(InputError, match="differ only in case"):
        keep("true", {"env.http_proxy": ["a"], "env.HTTP_PROXY": ["b"]})


def test_a_factor_with_the_name_of_a_prefix_wins_over_the_dotted_spelling() -> None:
    grid: dict[str, list[Any]] = {"imb": ["x", "y"], "imb.iterations": [1, 2]}
    assert keep("imb = 'x' OR \"imb.iterations\" = 2", grid) == [True, True]


@pytest.mark.parametrize("name", ["it's", 'a "b"', "select", "env.WITH SPACE", "a.b.c", "ümlaut", "1st"])
def test_any_name_works_in_quotes(name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    assert keep(f"{quoted} = 2", {name: [1, 2, 3]}) == [False, True, False]


def test_no_rows_are_kept_of_no_rows() -> None:
    assert keep("nodes > 1", {"nodes": []}) == []


def test_a_condition_neither_writes_nor_reads_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grid.csv").write_text("nodes\n1\n")
    monkeypatch.chdir(tmp_path)
    for where in ("EXISTS (FROM 'grid.csv')", "nodes IN (FROM read_csv('grid.csv'))", "EXISTS (FROM glob('*'))"):
        with pytest.raises(InputError):
            keep(where, GRID)
    assert [path.name for path in tmp_path.iterdir()] == ["grid.csv"]


CONDITIONS: list[tuple[str, Callable[[int, str], bool]]] = [
    ("nodes >= 4", lambda nodes, sharp: nodes >= 4),
    ("nodes % 3 = 1", lambda nodes, sharp: nodes % 3 == 1),
    ("NOT (sharp = 'on' AND nodes < 3)", lambda nodes, sharp: not (sharp == "on" and nodes < 3)),
    ("sharp = 'off' OR nodes IN (2, 5)", lambda nodes, sharp: sharp == "off" or nodes in {2, 5}),
]


@settings(deadline=None, max_examples=15)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["on", "off"])), max_size=50),
    condition=st.sampled_from(CONDITIONS),
)
def test_row_by_row_it_says_what_python_would(
    rows: list[tuple[int, str]], condition: tuple[str, Callable[[int, str], bool]]
) -> None:
    where, expected = condition
    grid: dict[str, list[Any]] = {"nodes": [nodes for nodes, _ in rows], "sharp": [sharp for _, sharp in rows]}
    assert keep(where, grid) == [expected(*row) for row in rows]


def test_a_million_rows_keep_their_order() -> None:
    rows = 1_000_000
    grid: dict[str, list[Any]] = {"nodes": list(range(rows)), "sharp": ["on", "off"] * (rows // 2)}
    kept = keep("nodes % 1000 = 7 AND sharp = 'off'", grid)
    assert len(kept) == rows
    assert [row for row, each in enumerate(kept) if each] == list(range(7, rows, 1000))
