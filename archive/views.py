# ruff: noqa: S608 - every text that SQL is made of here is ours or quoted
"""The views that SQL sees: the seven tables over whatever files count, and the curated ones of archive/sql.

A table's view is one `read_parquet([files])` per schema version, sealed and open apart, joined by UNION ALL BY
NAME: a list of files without `union_by_name` opens one of them to bind, not all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from archive import sandbox, statement
from archive.layout import Live, table_path

if TYPE_CHECKING:
    import duckdb

VERSION = 1
"""The newest schema, whose columns every view has."""

_CORE = (
    "benchmark VARCHAR, operation VARCHAR, nodes INTEGER, ranks_per_node INTEGER, nics INTEGER, sharp VARCHAR, "
    "placement VARCHAR, stack VARCHAR"
)
COLUMNS: Mapping[str, str] = {
    "runs": "run VARCHAR, stint INTEGER, name VARCHAR, description VARCHAR, campaign VARCHAR, tags VARCHAR[], "
    "cluster VARCHAR, spec VARCHAR, spec_path VARCHAR, spec_hash UUID, site VARCHAR, site_path VARCHAR, "
    "site_hash UUID, versions MAP(VARCHAR, VARCHAR), seed BIGINT, trials BIGINT, points BIGINT, user VARCHAR, "
    "driver_host VARCHAR, driver_pid BIGINT, job_id VARCHAR, argv VARCHAR[], start TIMESTAMPTZ",
    "events": "run VARCHAR, stint INTEGER, time TIMESTAMPTZ, scope VARCHAR, subject VARCHAR, kind VARCHAR, "
    "author VARCHAR, text VARCHAR",
    "nodes": "run VARCHAR, stint INTEGER, node VARCHAR, address VARCHAR, cpus INTEGER, memory_bytes BIGINT, "
    "nics STRUCT(name VARCHAR, link_layer VARCHAR, rate_gbps DOUBLE, state VARCHAR, numa INTEGER, "
    "address VARCHAR, firmware VARCHAR)[], facts MAP(VARCHAR, VARCHAR)",
    "attempts": "run VARCHAR, stint INTEGER, trial_id UUID, attempt_id UUID, attempt INTEGER, setup_id UUID, "
    f"block_id UUID, block_try INTEGER, block INTEGER, position INTEGER, repeat INTEGER, slot INTEGER, "
    f"phase VARCHAR, {_CORE}, factors MAP(VARCHAR, VARCHAR), parameters MAP(VARCHAR, VARCHAR), setup VARCHAR, "
    "sizes BIGINT[], missing BIGINT[], outcome VARCHAR, reason VARCHAR, proof VARCHAR[], final BOOLEAN, "
    "exit_code INTEGER, signal INTEGER, node_names VARCHAR[], nic_set VARCHAR[], "
    "argv STRUCT(role VARCHAR, node VARCHAR, argv VARCHAR[])[], environment MAP(VARCHAR, VARCHAR), "
    'start TIMESTAMPTZ, elapsed_s DOUBLE, beside VARCHAR[], killed INTEGER, "left" BIGINT[], notes VARCHAR[], '
    "evidence MAP(VARCHAR, VARCHAR), "
    "traffic STRUCT(node VARCHAR, nic VARCHAR, tx_bytes BIGINT, rx_bytes BIGINT)[], contaminated BOOLEAN, "
    "launch_revision INTEGER, imported BOOLEAN",
    "measurements": "run VARCHAR, start TIMESTAMPTZ, trial_id UUID, attempt_id UUID, point_id UUID, setup_id UUID, "
    f"block_id UUID, {_CORE}, message_size BIGINT, payload_bytes BIGINT, metric VARCHAR, value DOUBLE, "
    "unit VARCHAR, variant VARCHAR, algorithm VARCHAR, protocol VARCHAR, sharp_observed BOOLEAN, "
    "nics_observed INTEGER, evidence VARCHAR, t_begin DOUBLE, t_end DOUBLE, samples BIGINT, partial BOOLEAN, "
    "phase VARCHAR, repeat INTEGER, slot INTEGER, parser_revision INTEGER",
    "counters": "run VARCHAR, attempt_id UUID, node VARCHAR, device VARCHAR, counter VARCHAR, start TIMESTAMPTZ, "
    "elapsed DOUBLE[], delta BIGINT[]",
    "outputs": "run VARCHAR, attempt_id UUID, role VARCHAR, node VARCHAR, stream VARCHAR, text VARCHAR, "
    "stamps DOUBLE[], size BIGINT, truncated BOOLEAN",
}
"""The columns of `schemas.arrow` in DuckDB's words, so that a query need not import pyarrow (tested to agree)."""

_SQL = Path(__file__).parent / "sql"


def curated() -> dict[str, Path]:
    """Find the curated views: name -> the file that defines it."""
    return {path.stem: path for path in sorted(_SQL.glob("*.sql"))}


def documentation() -> dict[str, str]:
    """Tell what each curated view holds: the comment that begins its file, without its dashes."""
    texts = {name: path.read_text(encoding="utf-8").splitlines() for name, path in curated().items()}
    comments = {name: takewhile(lambda line: line.startswith("--"), lines) for name, lines in texts.items()}
    return {name: "\n".join(line.removeprefix("--").strip() for line in lines) for name, lines in comments.items()}


def listing() -> str:
    """Write the SELECT that answers SHOW TABLES: each view's name and, for a curated one, what it holds."""
    rows = {**dict.fromkeys(COLUMNS, ""), **{name: text.partition("\n")[0] for name, text in documentation().items()}}
    values = ", ".join(f"({sandbox.quoted(name)}, {sandbox.quoted(text)})" for name, text in rows.items())
    return f"SELECT * FROM (VALUES {values}) AS views (name, holds)"


def known() -> frozenset[str]:
    """Name every view that a statement may read."""
    return frozenset(COLUMNS) | curated().keys()


class Views:
    """The views of one connection, over the files that count at one moment, each made with all that it reads."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, live: Live, skip: Collection[Path], lift: Collection[str] = ()
    ) -> None:
        """`skip` names files to leave out; views in `lift` get a column for each factor that has none of its own."""
        self.files: set[Path] = set()
        """The files that the views made so far read."""
        self._connection = connection
        self._live = live
        self._skip = skip
        self._lift = lift
        self._made: set[str] = set()

    def make(self, name: str) -> None:
        """Make a view, unless it is there. duckdb.Error where a file cannot be read."""
        if name in self._made:
            return
        self._made.add(name)
        if name in COLUMNS:
            text = self._table(name)
        else:
            text = curated()[name].read_text(encoding="utf-8")
            for other in sorted(statement.accept(sandbox.parse(self._connection, text), known()).tables):
                self.make(other)
        if name in self._lift:
            text = self._lifted(text)
        self._connection.execute(f"CREATE TEMP VIEW {name} AS {text}")

    def _table(self, table: str) -> str:
        """Write the SELECT of a table: a branch per schema version, sealed and open apart."""
        sealed = [(part.version, table_path(self._live.archive, table, part)) for part in self._live.sealed]
        opened = [(part.version, part.path) for part in self._live.open]
        branches = [
            f"SELECT * FROM read_parquet({files}, hive_partitioning = false)" for files in self._by_version(sealed)
        ]
        branches += [
            f"SELECT unnest({table}, max_depth := 2) FROM read_parquet({files})" for files in self._by_version(opened)
        ]
        if all(version < VERSION or path in self._skip for version, path in (*sealed, *opened)):
            self._connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS no_{table} ({COLUMNS[table]})")
            branches.insert(0, f"SELECT * FROM no_{table}")
        return " UNION ALL BY NAME ".join(branches)

    def _by_version(self, files: list[tuple[int, Path]]) -> Iterator[str]:
        """Write one list of files per version, oldest first."""
        read = sorted(each for each in files if each[1] not in self._skip)
        self.files.update(path for _, path in read)
        for _, group in groupby(read, key=lambda each: each[0]):
            yield f"[{', '.join(sandbox.quoted(path) for _, path in group)}]"

    def _lifted(self, text: str) -> str:
        described = self._connection.execute(f"DESCRIBE FROM ({text}\n)").fetchall()
        present = {row[0].lower() for row in described}
        if "factors" not in present:
            return text
        new = [_column(*each) for each in self._factors() if each[0].lower() not in present]
        return f"SELECT {', '.join(['*', *new])} FROM ({text}\n)"

    def _factors(self) -> list[tuple[str, bool, bool]]:
        """Find every factor of the map column, and whether all its levels are whole numbers, or numbers at all."""
        return self._connection.execute(
            "SELECT key, bool_and(regexp_full_match(value, '-?[0-9]{1,18}')), "
            "bool_and(try_cast(value AS DOUBLE) IS NOT NULL) "
            f"FROM (SELECT unnest(map_entries(factors), max_depth := 2) FROM ({self._table('attempts')})) "
            "GROUP BY key ORDER BY key"
        ).fetchall()


def _column(factor: str, whole: bool, number: bool) -> str:  # noqa: FBT001 - they are columns of one row of SQL
    kind = "BIGINT" if whole else "DOUBLE" if number else "VARCHAR"
    name = factor.replace('"', '""')
    return f'CAST(factors[{sandbox.quoted(factor)}] AS {kind}) AS "{name}"'
