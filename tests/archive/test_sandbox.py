"""Foreign SQL can neither write, nor read outside the archive, nor change a setting: by its tree, by its database's
configuration, and by the kernel."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import archive
from archive import sandbox
from archive.statement import accept
from archive.store import Writer
from archive.views import known
from schemas.errors import InputError

HOSTILE = """
COPY (SELECT 1) TO '{inside}/new.csv'
COPY (SELECT 1) TO '{inside}/new.parquet' (FORMAT parquet)
COPY (SELECT 1) TO '{secret}'
COPY runs TO '{outside}/new.csv'
COPY runs FROM '{secret}'
WITH t AS (COPY (SELECT 1) TO '{inside}/new.csv') SELECT * FROM t
WITH t AS (COPY (SELECT 1) TO '{secret}') SELECT * FROM t
WITH t AS (WITH u AS (COPY (SELECT 1) TO '{secret}') SELECT * FROM u) SELECT * FROM t
SELECT * FROM (WITH t AS (COPY (SELECT 1) TO '{secret}') SELECT * FROM t)
SELECT (WITH t AS (COPY (SELECT 1) TO '{secret}') SELECT count(*) FROM t)
SELECT 1 UNION ALL (WITH t AS (COPY (SELECT 1) TO '{secret}') SELECT 1 FROM t)
SELECT 1 WHERE EXISTS (WITH t AS (COPY (SELECT 1) TO '{secret}') FROM t)
WITH t AS (INSERT INTO runs SELECT * FROM runs RETURNING *) SELECT * FROM t
WITH t AS (DELETE FROM runs RETURNING *) SELECT * FROM t
WITH t AS (UPDATE runs SET name = 'x' RETURNING *) SELECT * FROM t
EXPLAIN ANALYZE COPY (SELECT 1) TO '{secret}'
EXPLAIN SELECT 1
EXPORT DATABASE '{outside}/dump'
IMPORT DATABASE '{outside}'
ATTACH '{outside}/new.db'
ATTACH '{outside}/new.db' AS d; CREATE TABLE d.t AS SELECT 1
DETACH memory
CREATE TABLE t AS SELECT 1
CREATE VIEW runs AS SELECT 1
CREATE MACRO m() AS TABLE SELECT * FROM read_text('{secret}')
CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')
DROP VIEW runs
ALTER VIEW runs RENAME TO r
INSERT INTO runs VALUES (1)
DELETE FROM runs
UPDATE runs SET name = 'x'
TRUNCATE runs
INSTALL httpfs
LOAD httpfs
LOAD '{secret}'
FORCE INSTALL httpfs
SET memory_limit = '100GB'
SET GLOBAL enable_external_access = true
SET VARIABLE a = 1
SET enable_profiling = 'json'
RESET lock_configuration
PRAGMA enable_profiling
PRAGMA profile_output = '{outside}/profile.json'
PRAGMA database_list
CALL enable_logging('QueryLog')
CALL pragma_version()
CHECKPOINT
VACUUM
BEGIN
USE main
PREPARE p AS SELECT 1
EXECUTE p
SELECT 1; SELECT 2
SELECT 1; COPY (SELECT 1) TO '{secret}'
SELECT * FROM '{secret}'
SELECT * FROM "{secret}"
FROM '{outside}/*.csv'
FROM '{inside}/runs/*.parquet'
SELECT * FROM read_csv('{secret}')
SELECT * FROM read_csv_auto('{secret}')
SELECT * FROM read_text('{secret}')
SELECT * FROM main.read_text('{secret}')
SELECT * FROM system.main.read_text('{secret}')
SELECT * FROM "READ_TEXT"('{secret}')
SELECT * FROM read_blob('{secret}')
SELECT * FROM read_json('{secret}')
SELECT * FROM read_ndjson_objects('{secret}')
SELECT * FROM read_parquet('{inside}/runs/*.parquet')
SELECT * FROM parquet_scan('{secret}')
SELECT * FROM parquet_metadata('{inside}/runs/*.parquet')
SELECT * FROM parquet_schema('{secret}')
SELECT * FROM sniff_csv('{secret}')
SELECT * FROM glob('/etc/*')
SELECT * FROM glob('{outside}/**')
SELECT (SELECT content FROM read_text('{secret}'))
SELECT * FROM runs, LATERAL read_text(runs.name)
SELECT * FROM runs WHERE name IN (SELECT content FROM read_text('{secret}'))
WITH RECURSIVE t AS (SELECT content FROM read_text('{secret}') UNION ALL SELECT content FROM t) FROM t
DESCRIBE SELECT * FROM read_text('{secret}')
SUMMARIZE '{secret}'
DESCRIBE '{secret}'
FROM query('SELECT 1')
FROM query('COPY (SELECT 1) TO ''{secret}''')
FROM query_table('{secret}')
FROM query_table(['runs'])
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))
PRAGMA json_execute_serialized_sql('{{}}')
SELECT * FROM histogram('{secret}', a)
SELECT getenv('HOME')
SELECT current_setting('temp_directory')
SELECT getvariable('a')
SELECT nextval('s')
SELECT write_log('x', scope := 'connection')
SELECT sleep_ms(100000)
FROM duckdb_settings()
FROM duckdb_secrets()
FROM enable_logging()
FROM checkpoint()
FROM arrow_scan(1, 2, 3)
FROM pandas_scan(1)
FROM add_grammar_extension('x')
FROM read_duckdb('{secret}')
SELECT * FROM information_schema.tables
SELECT * FROM pg_catalog.pg_settings
SELECT * FROM memory.main.runs
SELECT * FROM hidden_variable
SHOW DATABASES
SHOW ALL TABLES
FROM (SHOW TABLES)
SELECT $1
SELECT ?
PIVOT runs ON name USING count(*)
SELECT * INTO t FROM runs
LOCK TABLE runs
""".strip().splitlines()


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """An archive with a run, a folder outside it, and a file there that must stay secret and as it is."""
    inside, outside = tmp_path / "archive", tmp_path / "outside"
    outside.mkdir()
    secret = outside / "secret.csv"
    secret.write_text("a\nTOPSECRET\n")
    run = "r20261203-101112-ab3d"
    writer = Writer(inside, run, 1)
    writer.append({"runs": [{"run": run, "stint": 1, "name": str(secret)}]})
    writer.seal()
    return {"inside": str(inside), "outside": str(outside), "secret": str(secret)}


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_there_are_enough_hostile_statements() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 60


def test_every_hostile_statement_is_refused_in_one_clear_line(place: dict[str, str], tmp_path: Path) -> None:
    opened = archive.open(place["inside"])
    before = contents(tmp_path)
    for text in HOSTILE:
        with pytest.raises(InputError) as refused:
            opened.sql(text.format(**place))
        assert "\n" not in str(refused.value), text
        assert "TOPSECRET" not in str(refused.value), text
        assert contents(tmp_path) == before, text
    assert opened.problems == []


def test_the_configuration_alone_reads_and_writes_nothing_outside_and_stays_as_it_is(
    place: dict[str, str], tmp_path: Path
) -> None:
    """What would be left if the first fence fell: every hostile statement straight into the locked database."""
    before = {path: data for path, data in contents(tmp_path).items() if not path.startswith(place["inside"])}
    limits = archive.Limits(seconds=1)
    for text in HOSTILE:
        connection = sandbox.connect([Path(place["inside"])], limits)
        fixed = settings_of(connection)
        try:
            answer = str(run_limited(connection, text.format(**place), limits))
        except (duckdb.Error, InputError) as error:
            answer = str(error)
        assert "TOPSECRET" not in answer, text
        assert settings_of(connection) == fixed, text
    after = {path: data for path, data in contents(tmp_path).items() if not path.startswith(place["inside"])}
    assert after == before


def run_limited(connection: duckdb.DuckDBPyConnection, text: str, limits: archive.Limits) -> object:
    return sandbox.limited(connection, limits, lambda: connection.execute(text).fetchall())


def settings_of(connection: duckdb.DuckDBPyConnection) -> list[tuple[object, ...]]:
    """All but the search path, which leads nowhere else in a database that cannot attach another."""
    return connection.execute("SELECT name, value FROM duckdb_settings() WHERE name <> 'search_path'").fetchall()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "select 1;",
        "-- a comment\nSELECT 1 -- another",
        "VALUES (1), (2)",
        "TABLE runs",
        "FROM runs",
        "WITH t AS (SELECT * FROM runs) SELECT * FROM t",
        "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t WHERE i < 5) FROM t",
        "SELECT * FROM runs UNION ALL BY NAME SELECT * FROM runs EXCEPT SELECT * FROM runs",
        "DESCRIBE results",
        "SUMMARIZE runs",
        "SHOW TABLES",
        "SELECT unnest(tags) FROM runs",
        "SELECT * FROM runs, unnest(tags) AS t(tag)",
        "SELECT * FROM range(3), generate_series(1, 2)",
        "SELECT list_filter([1, 2], lambda x: x > 1), row_number() OVER (ORDER BY run) FROM RUNS",
        "PIVOT runs ON name IN ('a', 'b') USING count(*)",
        "UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b",
        "SELECT 'COPY t TO x; read_text(1)' AS harmless",
        "WITH runs AS (SELECT 1 AS a) SELECT a FROM runs",
        "SELECT a, a FROM (SELECT 1 AS a)",
    ],
)
def test_what_only_reads_is_answered(place: dict[str, str], text: str) -> None:
    assert archive.open(place["inside"]).sql(text).fetchall() is not None


@pytest.mark.parametrize("text", ["", ";", "-- nothing", "SELEC 1", "SELECT (", "SELECT 'open", "\0", "SELECT 1 \0 x"])
def test_what_is_no_statement_is_refused_in_one_line(place: dict[str, str], text: str) -> None:
    with pytest.raises(InputError) as refused:
        archive.open(place["inside"]).sql(text)
    assert len(refused.value.problems) == 1
    assert "\n" not in str(refused.value)


def test_a_statement_nested_too_deep_is_refused(place: dict[str, str]) -> None:
    with pytest.raises(InputError, match="deep"):
        archive.open(place["inside"]).sql("SELECT " + "abs(" * 400 + "1" + ")" * 400)


WORDS = "SELECT FROM WITH AS ( ) , ; * t runs 1 'x' COPY TO UNION ALL WHERE EXISTS read_text query INSERT INTO"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.sampled_from(WORDS.split()), max_size=14),
)
def test_whatever_is_accepted_has_only_query_nodes_and_known_tables(words: list[str]) -> None:
    text = " ".join(words)
    connection = sandbox.connect([], archive.Limits())
    tree = sandbox.parse(connection, text)
    try:
        statement = accept(tree, known())
    except InputError:
        return
    assert statement.tables <= {"runs"}
    assert "COPY_QUERY_NODE" not in str(tree)
    assert "INSERT_QUERY_NODE" not in str(tree)


def test_a_python_variable_is_no_table(place: dict[str, str]) -> None:
    frame = pa.table({"a": [1]})
    assert frame.num_rows == 1
    with pytest.raises(InputError, match="there is no table frame"):
        archive.open(place["inside"]).sql("SELECT * FROM frame")


def test_a_statement_that_takes_too_long_is_interrupted(place: dict[str, str]) -> None:
    begin = time.monotonic()
    with pytest.raises(InputError, match=r"longer than 0\.3 s"):
        archive.open(place["inside"]).sql(
            "SELECT count(*) FROM range(10_000_000_000) AS a(i), range(1000) AS b(j) WHERE i % 7 = j % 3",
            limits=archive.Limits(seconds=0.3),
        )
    assert time.monotonic() - begin < 60


def test_a_statement_that_ends_in_time_leaves_no_thread_behind(place: dict[str, str]) -> None:
    archive.open(place["inside"]).sql("SELECT 1", limits=archive.Limits(seconds=600))
    assert "sql-time-limit" not in {thread.name for thread in threading.enumerate()}


def test_a_query_that_ignores_its_interruption_is_reported_as_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_GRACE", 0.05)
    connection = sandbox.connect([], archive.Limits())
    stuck = threading.Event()
    limits = archive.Limits(seconds=0.05, stuck=stuck.set)
    assert sandbox.limited(connection, limits, lambda: stuck.wait(30))


def test_a_statement_that_needs_too_much_memory_fails_in_one_line(place: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"(?i)memory") as refused:
        archive.open(place["inside"]).sql(
            "SELECT list(i) FROM range(100_000_000) AS t(i)", limits=archive.Limits(memory="100MB")
        )
    assert "\n" not in str(refused.value)


def test_a_memory_limit_that_is_none_is_refused(place: dict[str, str]) -> None:
    with pytest.raises(InputError, match="limits"):
        archive.open(place["inside"]).sql("SELECT 1", limits=archive.Limits(memory="much"))


FENCED = """
import sys
from pathlib import Path
from archive.landlock import restrict
import archive, duckdb
inside, outside, temporary = map(Path, sys.argv[1:])
missing = restrict(inside, temporary)
if missing:
    print("none:", missing)
    sys.exit(0)
def refused(work):
    try:
        work()
    except (PermissionError, duckdb.Error):
        return True
    return False
open_database = duckdb.connect()  # as free as it can be: only the kernel is left
checks = {
    "answers": archive.open(inside).sql("FROM runs", limits=archive.Limits(temporary=temporary)).fetchall() != [],
    "spills": temporary.joinpath("spill").write_text("x") == 1,
    "reads nothing outside": refused(lambda: (outside / "secret.csv").read_text()),
    "lists nothing outside": refused(lambda: list(outside.iterdir())),
    "writes nothing outside": refused(lambda: (outside / "new").write_text("x")),
    "writes nothing inside": refused(lambda: (inside / "new").write_text("x")),
    "deletes nothing": refused(lambda: next((inside / "runs").iterdir()).unlink()),
    "SQL reads nothing": refused(lambda: open_database.execute(f"FROM '{outside}/secret.csv'").fetchall()),
    "SQL writes nothing": refused(lambda: open_database.execute(f"COPY (SELECT 1) TO '{inside}/new.csv'")),
}
import subprocess
checks["executes nothing"] = refused(lambda: subprocess.run(["/bin/true"]))
print([name for name, holds in checks.items() if not holds])
"""


def test_the_kernel_fences_a_restricted_process(place: dict[str, str], tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    arguments = [place["inside"], place["outside"], str(temporary)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FENCED), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert done.stderr == ""
    if done.stdout.startswith("none:"):
        pytest.skip(done.stdout)
    assert done.stdout == "[]\n"


def test_a_fence_around_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from archive.landlock import restrict;"
        "print(restrict(*map(Path, sys.argv[1:])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "none"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert done.stdout.strip() not in {"", "None"}
    assert done.stderr == ""
