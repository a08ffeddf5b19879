"""What counts in an archive at one moment is what SQL sees, whatever happens to its files."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import archive
from archive import layout, sandbox
from archive.statement import accept
from archive.store import Writer
from archive.views import COLUMNS, known
from schemas import arrow
from schemas.errors import ArchiveError, InputError

RowsOf = Callable[..., dict[str, list[dict[str, Any]]]]
RUNS = ("r20261203-101112-aaaa", "r20261203-101112-abbb", "r20261204-000000-cccc")
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def fill(trial: RowsOf) -> Callable[..., None]:
    """Write a run with some trials into an archive, in one stint, sealed or left open."""

    def fill(folder: Path, run: str, *, seal: bool, trials: int = 3, name: str = "a name") -> None:
        writer = Writer(folder, run, 1)
        writer.append({"runs": [{"run": run, "stint": 1, "name": name, "cluster": "lab", "trials": trials}]})
        for number in range(trials):
            rows = trial(number, run)
            for row in (*rows["attempts"], *rows["measurements"]):
                row.update(phase="measure", repeat=number % 2, slot=0)
            for row in rows["measurements"]:
                row["point_id"] = UUID(int=number)
            writer.append(rows)
        if seal:
            writer.seal()

    return fill


@pytest.fixture
def filled(tmp_path: Path, fill: Callable[..., None]) -> archive.Archive:
    """Three runs: two sealed, one open."""
    for run in RUNS:
        fill(tmp_path / "archive", run, seal=run != RUNS[1], name=f"name of {run[-1]}")
    return archive.open(tmp_path / "archive")


def count(opened: archive.Archive, table: str = "measurements", where: str = "true") -> int:
    ((rows,),) = opened.sql(f"SELECT count(*) FROM {table} WHERE {where}").fetchall()
    return int(rows)


def test_importing_and_opening_an_archive_loads_neither_duckdb_nor_pyarrow(tmp_path: Path) -> None:
    code = "import archive, sys; archive.open(sys.argv[1]); print({'duckdb', 'pyarrow', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert done.stdout == "set()\n"


def test_a_query_does_not_load_pyarrow(tmp_path: Path) -> None:
    code = (
        "import archive, sys; opened = archive.open(sys.argv[1]); opened.sql('FROM results').fetchall(); opened.runs();"
        "print({'pyarrow', 'numpy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert done.stdout == "set()\n"


def test_opening_what_is_no_folder_says_so_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, what in ((tmp_path / "none", "no such folder"), (file, "a file"), ("az://a/b", "not supported yet")):
        with pytest.raises(ArchiveError, match=what) as error:
            archive.open(path)
        assert "\n" not in str(error.value)
    with pytest.raises(ArchiveError):
        archive.open(file / "below", create=True)
    assert archive.open(tmp_path / "new" / "archive", create=True).path.is_dir()


def test_a_question_about_an_empty_archive_has_typed_columns_and_no_rows(tmp_path: Path) -> None:
    opened = archive.open(tmp_path)
    relation = opened.sql("SELECT point_id, value, start FROM measurements")
    assert [str(kind) for kind in relation.types] == ["UUID", "DOUBLE", "TIMESTAMP WITH TIME ZONE"]
    assert relation.fetchall() == []
    assert opened.runs() == []
    assert opened.attempts(RUNS[0]) == []
    assert opened.measured(RUNS[0]) == set()


def test_sealed_and_open_rows_are_answered_together(filled: archive.Archive) -> None:
    assert count(filled) == 3 * 3 * 3
    assert count(filled, "attempts") == 9
    assert count(filled, "runs") == 3
    assert count(filled, "outputs") == 9
    assert count(filled, "counters") == 0


def test_sealing_changes_no_answer(tmp_path: Path, fill: Callable[..., None]) -> None:
    fill(tmp_path, RUNS[0], seal=False)
    opened = archive.open(tmp_path)
    questions = [f"FROM {table} ORDER BY ALL" for table in ("runs", "measurements", "outputs", "results", "failures")]
    before = [opened.sql(text).fetchall() for text in questions]
    Writer(tmp_path, RUNS[0], 2).seal()
    assert [opened.sql(text).fetchall() for text in questions] == before


def test_an_answer_comes_as_pandas_polars_and_arrow(filled: archive.Archive) -> None:
    relation = filled.sql("SELECT run, value FROM measurements ORDER BY value LIMIT 4")
    assert len(relation.df()) == len(relation.pl()) == len(relation.fetchall()) == 4
    assert relation.arrow().read_all().num_rows == 4
    assert relation.columns == ["run", "value"]


def test_an_answer_outlives_its_archive_and_all_its_files(tmp_path: Path, fill: Callable[..., None]) -> None:
    fill(tmp_path, RUNS[0], seal=True)
    relation = archive.open(tmp_path).sql("SELECT message_size FROM measurements ORDER BY ALL LIMIT 2")
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    gc.collect()
    assert relation.fetchall() == [(1,), (1,)]
    assert relation.filter("message_size > 1").fetchall() == []


def test_an_answer_keeps_the_order_that_was_asked_for(filled: archive.Archive) -> None:
    values = [row[0] for row in filled.sql("SELECT value FROM measurements ORDER BY value DESC").fetchall()]
    assert values == sorted(values, reverse=True)


def test_an_archive_may_lie_under_any_name(tmp_path: Path, fill: Callable[..., None]) -> None:
    folder = tmp_path / "it's [an] odd* {name}?"
    for run in RUNS:
        fill(folder, run, seal=run != RUNS[1])
    assert count(archive.open(folder)) == 27


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "garbage": lambda data: b"no Parquet at all" * 50,
    "a broken footer": lambda data: data[:-40] + bytes(byte ^ 0x55 for byte in data[-40:-8]) + data[-8:],
    "a broken page": lambda data: data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["sealed", "open"])
def test_a_corrupt_file_is_named_and_the_rest_still_answers(filled: archive.Archive, damage: str, which: str) -> None:
    found = layout.live(filled.path)
    broken = found.tables("measurements")[0] if which == "sealed" else found.open[1].path
    broken.write_bytes(DAMAGES[damage](broken.read_bytes()))
    lost = 9 if which == "sealed" else 3
    ((values, sizes),) = filled.sql("SELECT count(value), sum(message_size) FROM measurements").fetchall()
    assert values == 27 - lost
    assert sizes == (27 - lost) / 3 * (8 + 4096 + 1)
    assert [problem.where for problem in filled.problems] == [str(broken)], filled.problems
    assert "\n" not in str(filled.problems[0])
    filled.sql("FROM results").fetchall()
    assert len(filled.problems) == 1
    if which == "sealed":
        assert count(filled, "attempts") == 9


def test_many_corrupt_files_are_all_named(filled: archive.Archive) -> None:
    found = layout.live(filled.path)
    broken = [*found.tables("measurements"), *(part.path for part in found.open)]
    for path in broken:
        path.write_bytes(path.read_bytes()[:100])
    assert count(filled) == 0
    assert sorted(problem.where for problem in filled.problems) == sorted(map(str, broken))


def test_an_error_of_the_statement_blames_no_file(filled: archive.Archive) -> None:
    for text in (
        "SELECT error(run) FROM runs",
        "SELECT CAST(run AS INTEGER) FROM runs",
        "SELECT nosuch FROM runs",
        "SELECT error('/etc/passwd') FROM measurements",
    ):
        with pytest.raises(InputError):
            filled.sql(text)
    assert filled.problems == []


def test_files_that_vanish_after_the_listing_make_the_query_start_over(
    filled: archive.Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = []
    listed = layout.live

    def listed_and_sealed(path: Path) -> layout.Live:
        found = listed(path)
        listings.append(found)
        if len(listings) == 1:
            with monkeypatch.context() as undone:
                undone.setattr(layout, "live", listed)
                Writer(path, RUNS[1], 2).seal()
            for part in found.open:
                part.path.unlink()
        return found

    monkeypatch.setattr(layout, "live", listed_and_sealed)
    assert count(filled) == 27
    assert len(listings) == 2
    assert filled.problems == []


def test_a_file_that_stays_away_is_named_and_the_rest_still_answers(filled: archive.Archive) -> None:
    missing = layout.live(filled.path).tables("measurements")[0]
    missing.unlink()
    assert count(filled) == 18
    assert [problem.where for problem in filled.problems] == [str(missing)]
    assert "missing" in str(filled.problems[0])


def test_a_reader_beside_a_writer_sees_each_append_whole(tmp_path: Path, trial: RowsOf) -> None:
    writer = Writer(tmp_path, RUNS[0], 1)
    opened = archive.open(tmp_path)
    for number in range(70):
        writer.append(trial(number, RUNS[0]))
        if number % 10 == 9:
            assert count(opened, "attempts") == number + 1
            assert count(opened) == 3 * (number + 1)


def test_asking_one_run_opens_no_file_of_another(filled: archive.Archive) -> None:
    others = layout.live(filled.path, RUNS[0])
    for path in (*others.tables("measurements"), *others.tables("attempts"), *others.tables("runs")):
        path.write_bytes(b"")
    assert count(filled.run(RUNS[2])) == 9
    assert filled.sql("SELECT count(*) FROM measurements", run=RUNS[1]).fetchall() == [(9,)]
    assert count(filled, "results", f"run = '{RUNS[2]}'") == 9
    assert filled.problems == []


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("SELECT * FROM runs WHERE run = 'a'", {"a"}),
        ("SELECT * FROM runs WHERE 'a' = run AND stint > 1", {"a"}),
        ("SELECT * FROM runs AS r WHERE r.run IN ('a', 'b') AND (stint = 1 OR stint = 2)", {"a", "b"}),
        ("SELECT * FROM attempts JOIN runs USING (run, stint) WHERE run = 'a'", {"a"}),
        ("SELECT * FROM attempts AS x LEFT JOIN runs AS y USING (run) WHERE x.run = 'a'", {"a"}),
        ("SELECT * FROM attempts NATURAL JOIN runs WHERE run = 'a'", {"a"}),
        ("SELECT * FROM attempts AS x, runs AS y WHERE x.run = 'a' AND y.run = 'b'", {"a", "b"}),
        ("WITH t AS (SELECT * FROM runs WHERE run = 'a') SELECT * FROM t", {"a"}),
        ("SELECT * FROM runs WHERE run = 'a' UNION ALL SELECT * FROM runs WHERE run = 'b'", {"a", "b"}),
        ("SELECT * FROM runs WHERE run = 'a' OR stint = 1", None),
        ("SELECT * FROM runs WHERE NOT run = 'a'", None),
        ("SELECT * FROM runs WHERE run <> 'a'", None),
        ("SELECT * FROM runs WHERE run NOT IN ('a')", None),
        ("SELECT * FROM runs WHERE run LIKE 'a%'", None),
        ("SELECT * FROM runs WHERE name = 'a'", None),
        ("SELECT run = 'a' FROM runs", None),
        ("SELECT * FROM attempts AS x, runs AS y WHERE x.run = 'a'", None),
        ("SELECT * FROM attempts AS x JOIN runs AS y ON x.stint = y.stint WHERE x.run = 'a'", None),
        ("SELECT (SELECT count(*) FROM runs) FROM runs WHERE run = 'a'", None),
        ("SELECT * FROM runs AS x WHERE EXISTS (FROM attempts AS y WHERE x.run = 'a') AND x.run = 'a'", None),
        ("WITH t AS (FROM runs) SELECT * FROM t WHERE run = 'a'", None),
        ("WITH runs AS (SELECT 'b' AS run) SELECT * FROM runs WHERE run = 'a'", None),
        ("SELECT * FROM runs AS r(stint, run) WHERE run = 'a'", None),
        ("SELECT count(*) FROM runs GROUP BY run HAVING run = 'a'", None),
        ("SUMMARIZE runs", None),
        ("SELECT 1", None),
    ],
)
def test_a_statement_is_confined_to_runs_only_where_all_its_tables_are(text: str, runs: set[str] | None) -> None:
    connection = sandbox.connect([], archive.Limits())
    assert accept(sandbox.parse(connection, text), known()).runs == runs


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[archive.Archive, duckdb.DuckDBPyConnection]]:
    """An archive, and its tables in a plain database that knows nothing of files."""
    folder = tmp_path_factory.mktemp("archive")
    for number, run in enumerate(RUNS):
        attempts = [{"run": run, "stint": stint, "attempt": number} for stint in (1, 2)]
        writer = Writer(folder, run, 1)
        writer.append({"runs": [{"run": run, "stint": 1, "name": f"n{number}"}], "attempts": attempts})
        if number:
            writer.seal()
    plain = duckdb.connect()
    for table, columns in COLUMNS.items():
        plain.execute(f"CREATE TABLE {table} ({columns})")
    for number, run in enumerate(RUNS):
        plain.execute("INSERT INTO runs BY NAME SELECT ? AS run, 1 AS stint, ? AS name", [run, f"n{number}"])
        plain.execute(
            "INSERT INTO attempts BY NAME SELECT ? AS run, i AS stint, ? AS attempt FROM range(1, 3) AS r(i)",
            [run, number],
        )
    yield archive.open(folder), plain
    plain.close()


CONDITIONS = st.recursive(
    st.sampled_from(
        [
            *(f"{side}run = '{run}'" for side in ("", "x.", "y.") for run in RUNS[:2]),
            f"x.run IN ('{RUNS[0]}', '{RUNS[2]}')",
            "x.stint = 1",
            "x.run = y.run",
            "true",
        ]
    ),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
    ),
    max_leaves=4,
)
SOURCES = st.sampled_from(
    [
        "attempts AS x JOIN runs AS y USING (run)",
        "attempts AS x LEFT JOIN runs AS y USING (run, stint)",
        "attempts AS x FULL JOIN runs AS y USING (run, stint)",
        "attempts AS x RIGHT JOIN runs AS y ON x.stint = y.stint",
        "attempts AS x, runs AS y",
        "attempts AS x NATURAL JOIN runs AS y",
        "attempts AS x JOIN attempts AS y USING (run)",
        "attempts AS x JOIN (SELECT * FROM runs) AS y USING (run)",
        "attempts AS x, (SELECT 'z' AS run) AS y",
    ]
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=SOURCES, condition=CONDITIONS)
def test_opening_fewer_files_never_changes_an_answer(
    everything: tuple[archive.Archive, duckdb.DuckDBPyConnection], source: str, condition: str
) -> None:
    opened, plain = everything
    text = f"SELECT x.run, x.stint, x.attempt, y.run FROM {source} WHERE {condition} ORDER BY ALL"
    try:
        expected = plain.execute(text).fetchall()
    except duckdb.Error:
        with pytest.raises(InputError):
            opened.sql(text)
        return
    assert opened.sql(text).fetchall() == expected


def test_the_factors_of_chosen_runs_are_columns_with_the_type_of_their_levels(tmp_path: Path) -> None:
    factors: list[dict[str, str]] = [
        {"batch": "32", "lr": "0.5", "mode": "a", "env.X": "1", "Reason": "r"},
        {"batch": "-4", "lr": "1e-5", "mode": "2"},
    ]
    Writer(tmp_path, RUNS[0], 1).append({"attempts": [{"run": RUNS[0], "factors": each} for each in factors]})
    Writer(tmp_path, RUNS[1], 1).append({"attempts": [{"run": RUNS[1], "factors": {"batch": "32x"}}]})
    opened = archive.open(tmp_path)
    relation = opened.sql('SELECT batch, lr, mode, "env.X" FROM attempts ORDER BY batch', run=RUNS[0])
    assert relation.fetchall() == [(-4, 1e-5, "2", None), (32, 0.5, "a", 1)]
    assert opened.sql(f"SELECT lr FROM attempts WHERE batch = 32 AND run = '{RUNS[0]}'").fetchall() == [(0.5,)]
    assert opened.sql("FROM attempts", run=RUNS[1]).columns[-1] == "batch"
    assert "batch" in opened.sql("FROM results", run=RUNS[0]).columns
    assert opened.sql("FROM attempts", run=RUNS[0]).columns.count("reason") == 1
    assert len(opened.sql("FROM attempts WHERE factors['batch'] = '32x'")) == 1
    with pytest.raises(InputError, match="batch"):
        opened.sql("SELECT batch FROM attempts")


def test_a_run_is_found_by_id_prefix_name_or_last(filled: archive.Archive) -> None:
    assert [filled.resolve(run) for run in RUNS] == list(RUNS)
    assert filled.resolve("last") == RUNS[2]
    assert filled.resolve("r20261204") == RUNS[2]
    assert filled.resolve("name of b") == RUNS[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("r20261203", f"{RUNS[0]}, {RUNS[1]}"),
        ("r2027", ", ".join(RUNS)),
        ("", ", ".join(RUNS)),
        ("no such name", ", ".join(RUNS)),
        ("../../etc", ", ".join(RUNS)),
    ],
)
def test_a_run_that_is_unknown_or_ambiguous_is_refused_with_the_candidates(
    filled: archive.Archive, text: str, said: str
) -> None:
    for ask in (filled.resolve, filled.run, lambda run: filled.sql("FROM runs", run=run)):
        with pytest.raises(InputError) as refused:
            ask(text)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_name_that_two_runs_share_is_ambiguous(filled: archive.Archive, fill: Callable[..., None]) -> None:
    fill(filled.path, "r20261205-000000-dddd", seal=True, name="name of b")
    with pytest.raises(InputError, match="may be"):
        filled.resolve("name of b")


def test_a_run_of_an_empty_archive_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty"):
        archive.open(tmp_path).resolve("last")


def test_runs_are_listed_with_how_their_trials_ended(tmp_path: Path, trial: RowsOf) -> None:
    writer = Writer(tmp_path, RUNS[0], 1)
    run = {"run": RUNS[0], "name": "n", "cluster": "lab", "tags": ["a"], "trials": 4}
    writer.append({"runs": [{**run, "stint": 1}, {**run, "stint": 2, "name": "newer", "tags": None}]})
    tries = [(1, 1, "lost"), (1, 2, "ok"), (2, 1, "ok"), (3, 1, "failed")]
    writer.append(
        {
            "attempts": [
                {"run": RUNS[0], "trial_id": UUID(int=which), "attempt": number, "outcome": ended, "phase": "measure"}
                for which, number, ended in tries
            ]
        }
    )
    (record,) = archive.open(tmp_path).runs()
    assert (record.run, record.stints, record.name, record.tags, record.trials) == (RUNS[0], 2, "newer", ("a",), 4)
    assert record.outcomes == {"ok": 2, "failed": 1}


def test_a_resume_gets_every_attempt_and_what_was_measured(filled: archive.Archive, tmp_path: Path) -> None:
    attempts = filled.attempts(RUNS[1])
    assert [row["attempt_id"] for row in attempts] == [UUID(int=number) for number in range(3)]
    assert attempts[0]["sizes"] == [8, 4096, 1]
    assert {"trial_id", "outcome", "final", "missing", "block_try", "position", "setup_id"} <= attempts[0].keys()
    assert filled.measured(RUNS[1]) == {(UUID(int=number), number % 2, 0) for number in range(3)}
    partial = {"run": RUNS[1], "phase": "measure", "repeat": 0, "slot": 0, "metric": "time", "value": 1.0}
    cut = [
        {**partial, "point_id": UUID(int=77), "partial": True},
        {**partial, "point_id": UUID(int=78), "phase": "warmup"},
        {**partial, "point_id": UUID(int=79), "partial": False},
    ]
    Writer(filled.path, RUNS[1], 2).append({"measurements": cut})
    assert (UUID(int=79), 0, 0) in filled.measured(RUNS[1])
    assert len(filled.measured(RUNS[1])) == 4


def test_the_newest_stint_tells_what_a_run_is(filled: archive.Archive) -> None:
    Writer(filled.path, RUNS[1], 2).append({"runs": [{"run": RUNS[1], "stint": 2, "spec": "text", "seed": 0}]})
    row = filled.run_row(RUNS[1])
    assert (row["stint"], row["spec"], row["seed"], row["name"]) == (2, "text", 0, None)
    with pytest.raises(InputError, match="no run"):
        filled.run_row("r20261209-000000-zzzz")


def test_what_an_attempt_printed_is_there_word_for_word(filled: archive.Archive) -> None:
    (stream,) = filled.output(RUNS[2], UUID(int=2))
    assert (stream["role"], stream["stream"]) == ("ranks", "stdout")
    assert stream["text"] == "a line\n" * 20
    assert stream["stamps"] == [0.25, 0.5]
    assert filled.output(RUNS[2], UUID(int=99)) == []


def test_an_archive_of_every_older_version_opens() -> None:
    """Each folder was written once by that version's writer, and is never written again."""
    versions = sorted(path.name for path in GOLDEN.iterdir())
    assert versions == [f"v{version}" for version in range(1, arrow.VERSION + 1)]
    for version in versions:
        opened = archive.open(GOLDEN / version)
        assert opened.sql("SELECT DISTINCT run FROM runs ORDER BY run").fetchall() == [(run,) for run in RUNS[:2]]
        assert [row[0] for row in opened.sql("SELECT time FROM results ORDER BY ALL").fetchall()] == [1.5, 2.5]
        assert opened.sql("SELECT text FROM outputs").fetchall() == [("a line\n",), ("a line\n",)]
        for table in arrow.TABLES:
            assert opened.sql(f"FROM {table}").fetchall() is not None
        assert opened.problems == []


def next_version(part: layout.Part, table: str | None) -> Path:
    """Write a file as the next schema version will: a copy of one of today's with one more column."""
    rows = pq.read_table(part.path, partitioning=None)
    if table is None:
        more = pa.array([[{"flavour": "new"}]] * rows.num_rows, pa.list_(pa.struct([("flavour", pa.string())])))
        rows = rows.set_column(rows.column_names.index("measurements"), "measurements", more)
    else:
        rows = rows.append_column("flavour", pa.array(["new"] * rows.num_rows))
    path = part.path.with_name(part.path.name.replace(".v1.", ".v2."))
    pq.write_table(rows, path)
    part.path.unlink()
    return path


@pytest.mark.parametrize("seal", [True, False])
def test_a_newer_version_with_one_more_column_is_read_beside_the_older(
    tmp_path: Path, fill: Callable[..., None], seal: bool
) -> None:
    fill(tmp_path, RUNS[0], seal=True)
    fill(tmp_path, RUNS[1], seal=seal, trials=1)
    found = layout.live(tmp_path, RUNS[1])
    for record in (*found.sealed, *found.open):
        if record.table is None:
            next_version(record, None)
            continue
        for table in arrow.TABLES:
            path = layout.table_path(tmp_path, table, record)
            next_version(layout.Part(path, table, record.run, 1, 1, 0, 1), table)
    opened = archive.open(tmp_path)
    new, old = (opened.sql(f"SELECT count(*) FROM measurements WHERE flavour {kind} NULL") for kind in ("IS NOT", "IS"))
    assert old.fetchall() == [(9,)]
    assert new.fetchall() == [(3,)] if seal else [(2,)]
    assert opened.problems == []
