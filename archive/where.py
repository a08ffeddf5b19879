"""The spec's `where`: a SQL condition over the factors, evaluated by DuckDB, which lets it touch nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archive import sandbox
from archive.statement import Tree, accept, function_name, walk
from schemas.errors import InputError, Problem
from schemas.spec import Level

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_GRID = "grid"
_QUERY = "SELECT ({}\n) AS keep FROM grid"
"""Its parse tree is checked before it runs."""
_ROW_BY_ROW = "FROM grid WHERE ({}\n)"
"""Only bound: a WHERE holds no aggregate, no window, no unnest."""
_LIMITS = sandbox.Limits(seconds=60.0)
_UNSTEADY = frozenset(
    {
        "random",
        "setseed",
        "uuid",
        "uuidv4",
        "uuidv7",
        "gen_random_uuid",
        "now",
        "today",
        "get_current_time",
        "get_current_timestamp",
        "transaction_timestamp",
        "current_date",
        "current_time",
        "current_timestamp",
        "current_localtime",
        "current_localtimestamp",
        "localtime",
        "localtimestamp",
    }
)


def keep(where: str, columns: Mapping[str, Sequence[Level | None]]) -> list[bool]:
    """Tell for each row of the factor columns, all of one length, whether `where` is true there.

    NULL counts as false. A dotted name may be quoted as a whole or written as it is: "env.NCCL_ALGO" and
    env.NCCL_ALGO. A column whose levels are of several types is text. InputError for what is no condition over
    these factors, reads anything, or would answer differently another day.
    """
    if len({name.lower() for name in columns}) < len(columns):
        raise _refusal("two factors differ only in case, which SQL cannot tell apart", columns)
    if not where.strip():
        raise _refusal("it is empty", columns)
    table = _table(columns)
    connection = sandbox.connect([], _LIMITS)
    try:
        _check(sandbox.parse(connection, _QUERY.format(where)))
        kept = sandbox.limited(connection, _LIMITS, lambda: _evaluate(connection, where, table))
    except InputError as error:
        raise _refusal(error.problems[0].what, columns) from error
    if isinstance(kept, str):
        raise _refusal(kept, columns)
    return kept


def _evaluate(connection: duckdb.DuckDBPyConnection, where: str, table: pa.Table) -> list[bool] | str:
    """Evaluate a checked condition, or say in one line what is wrong with it."""
    import duckdb

    connection.register("factors", table)
    try:
        connection.execute(f"CREATE TEMP VIEW {_GRID} AS {_select(table.column_names)}")
        connection.sql(_ROW_BY_ROW.format(where))
        answer = connection.sql(_QUERY.format(where))
        kinds = [str(kind) for kind in answer.types]
        if kinds not in (["BOOLEAN"], ['"NULL"']):
            return f"it is no condition but a value of type {', '.join(kinds).lower()}"
        kept = answer.to_arrow_table()[0].to_pylist()
    except duckdb.Error as error:
        return sandbox.one_line(error)
    return [each is True for each in kept]


def _check(tree: Tree) -> None:
    """Make sure that a parsed query is one condition over the grid alone. InputError if it is not."""
    accept(tree, {_GRID})
    node = tree["statements"][0]["node"]
    plain = {"type", "cte_map", "select_list", "from_table", "aggregate_handling"}
    if node["type"] != "SELECT_NODE" or node.keys() - plain or node["cte_map"] or len(node["select_list"]) != 1:
        raise InputError("it is not one condition")
    if any(part.get("class") == "SUBQUERY" for part in walk(node)):
        raise InputError("it has a query inside")
    for part in walk(node):
        name = function_name(part) or _bare_name(part)
        if name in _UNSTEADY:
            raise InputError(f"{name} gives another answer each time, and a plan must not")


def _bare_name(part: Tree) -> str | None:
    """Tell the name of a column that stands alone: the parser takes current_date for one."""
    names = part.get("column_names", ())
    return names[0].lower() if len(names) == 1 else None


def _refusal(what: str, columns: Mapping[str, object]) -> InputError:
    return InputError(Problem("where", what, f"the factors are {', '.join(columns)}"))


def _select(names: Sequence[str]) -> str:
    """Write the grid: the columns, and for dotted names a struct per prefix, so that they need no quotes."""
    structs: dict[str, dict[str, str]] = {}
    taken = {name.lower() for name in names}
    for name in names:
        prefix, dot, rest = name.partition(".")
        if dot and prefix.lower() not in taken:
            structs.setdefault(prefix.lower(), {}).setdefault(rest.lower(), name)
    packed = (
        f"{{{', '.join(f'{sandbox.quoted(rest)}: {_identifier(name)}' for rest, name in fields.items())}}} "
        f"AS {_identifier(prefix)}"
        for prefix, fields in structs.items()
    )
    return f"SELECT {', '.join(['*', *packed])} FROM factors"  # noqa: S608 - names are quoted


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _table(columns: Mapping[str, Sequence[Level | None]]) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: _column(levels) for name, levels in columns.items()})


def _column(levels: Sequence[Level | None]) -> Any:
    import pyarrow as pa

    kinds = set(map(type, levels)) - {type(None)}
    if kinds <= {int}:
        return _integers(levels)
    if kinds <= {int, float}:
        return pa.array([None if level is None else float(level) for level in levels], pa.float64())
    if kinds == {bool}:
        return pa.array(levels, pa.bool_())
    return pa.array([None if level is None else _text(level) for level in levels], pa.string())


def _integers(levels: Sequence[Level | None]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(levels, pa.int64())
    except OverflowError:
        return pa.array([None if level is None else float(level) for level in levels], pa.float64())


def _text(level: Level) -> str:
    return str(level).lower() if isinstance(level, bool) else str(level)
