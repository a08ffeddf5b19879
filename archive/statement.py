"""What one SQL statement is made of, told from DuckDB's own parse tree: whether it only reads, what it names. Pure.

`statement.type` is no proof: `WITH t AS (COPY … TO …) SELECT` is typed SELECT and writes. So the tree decides:
every query node is a SELECT, a set operation or a CTE, every table is a view of ours or a CTE of the statement's
own, every table function is one that reads nothing, and no function reaches beyond its arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.errors import InputError, Problem

Tree = Mapping[str, Any]
"""A part of what `json_serialize_sql` gives."""

_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_TABLE_FUNCTIONS = frozenset(
    {"unnest", "generate_series", "range", "repeat", "repeat_row", "json_each", "json_tree"},
)
_FORBIDDEN = frozenset(
    {
        "query",
        "query_table",
        "json_execute_serialized_sql",
        "getenv",
        "getvariable",
        "current_setting",
        "write_log",
        "nextval",
        "currval",
        "setval",
        "sleep_ms",
        "pg_sleep",
    }
)
_ONLY_READS = "an archive is only read: SELECT, FROM, VALUES, DESCRIBE, SUMMARIZE, PIVOT … IN (…), SHOW TABLES"


@dataclass(frozen=True, slots=True)
class Statement:
    """One accepted statement."""

    tables: frozenset[str]
    """The known views that it names, in lower case."""
    runs: frozenset[str] | None
    """The only runs whose rows can play a part in the answer; None where the statement does not say."""
    describes: bool = False
    """Whether it is a DESCRIBE or SUMMARIZE, which a query holds only in parentheses."""
    lists: bool = False
    """Whether it is SHOW TABLES."""


def accept(tree: Tree, known: Collection[str]) -> Statement:
    """Accept a parsed text, or say in one line why not.

    `tree` is the answer of `json_serialize_sql` with nulls and empty values skipped; `known` names the views that
    may be read, in lower case. InputError for all but one statement that only reads.
    """
    if tree["error"]:
        raise refusal(_parser_says(str(tree.get("error_message", "it cannot be parsed"))))
    statements = tree["statements"]
    if len(statements) != 1:
        what = "there is no statement" if not statements else f"there are {len(statements)} statements"
        raise refusal(what, "give exactly one")
    parts = list(walk(statements[0]))
    source = statements[0]["node"].get("from_table", {})
    if _shown(source) == "tables":
        return Statement(frozenset(), None, lists=True)
    for part in parts:
        _check_kind(part)
        _check_function(part)
    own = {entry["key"].lower() for part in parts if "cte_map" in part for entry in part["cte_map"].get("map", ())}
    tables = _tables(parts, own, known)
    return Statement(tables, _runs(parts, tables, own), describes=source.get("type") == "SHOW_REF")


def walk(tree: object) -> Iterator[Tree]:
    """Visit every object of a tree, itself included, without recursion."""
    todo = [tree]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            yield each
            todo.extend(each.values())
        elif isinstance(each, list):
            todo.extend(each)


def refusal(what: str, remedy: str = _ONLY_READS) -> InputError:
    """Say why a statement is not run."""
    return InputError(Problem("sql", what, remedy))


def function_name(part: Tree) -> str | None:
    """Tell which function a part of a tree calls, in lower case; None where it calls none."""
    name = part.get("function_name")
    return name.lower() if isinstance(name, str) else None


def _parser_says(message: str) -> str:
    return "this statement does more than read" if message.startswith("Only SELECT") else message.splitlines()[0]


def _check_kind(part: Tree) -> None:
    kind = part.get("type")
    is_query = "cte_map" in part or (isinstance(kind, str) and kind.endswith("_NODE"))
    if is_query and kind not in _QUERY_NODES:
        raise refusal(f"{str(kind).removesuffix('_NODE').removesuffix('_QUERY')} inside a query")
    if shown := _shown(part):
        raise refusal(f"SHOW {shown} is not allowed here")


def _check_function(part: Tree) -> None:
    if part.get("type") == "TABLE_FUNCTION":
        name = function_name(part.get("function", {}))
        if name not in _TABLE_FUNCTIONS:
            raise refusal(f"the table function {name} is not allowed", "the archive's views are the tables")
    elif function_name(part) in _FORBIDDEN:
        raise refusal(f"the function {function_name(part)} is not allowed", "it reaches beyond the archive")


def _shown(part: Tree) -> str | None:
    special = part.get("type") == "SHOW_REF" and part.get("show_type") == "SHOW_SPECIAL"
    return str(part.get("table_name", "something")).strip('"').lower() if special else None


def _tables(parts: list[Tree], own: set[str], known: Collection[str]) -> frozenset[str]:
    found: set[str] = set()
    for part in parts:
        if part.get("type") != "BASE_TABLE":
            continue
        path = part["qualified_name"]["path"]
        name = path[-1].lower()
        if len(path) > 1 or not (name in known or name in own):
            raise refusal(f"there is no table {'.'.join(path)}", f"there are {', '.join(sorted(known))}")
        if name in known:
            found.add(name)
    return frozenset(found)


def _runs(parts: list[Tree], tables: frozenset[str], own: set[str]) -> frozenset[str] | None:
    """Find the runs to which every SELECT over our views confines all of its tables; None if one does not.

    Wrong in one direction only: what is not understood is not confined.
    """
    if not tables or tables & own:
        return None
    found: set[str] = set()
    read = 0
    for part in parts:
        if part.get("type") == "SELECT_NODE":
            names, linked = _sources(part.get("from_table", {}))
            runs = _confined(part.get("where_clause"), [name for name in names if name[0] in tables], linked=linked)
            if runs is None:
                return None
            found |= runs
            read += len(names)
    total = sum(part.get("type") == "BASE_TABLE" for part in parts)
    return frozenset(found) if found and read == total else None


def _sources(source: Tree) -> tuple[list[tuple[str, str]], bool]:
    """Find the (table, alias) pairs joined in a FROM, and whether all its joins go over the column `run`."""
    kind = source.get("type")
    if kind == "BASE_TABLE" and "column_name_alias" not in source:
        name = source["table_name"].lower()
        return [(name, source.get("alias", name).lower())], True
    if kind != "JOIN":
        return [], True
    left, left_linked = _sources(source["left"])
    right, right_linked = _sources(source["right"])
    using = {column.lower() for column in source.get("using_columns", ())}
    linked = source.get("ref_type") == "NATURAL" or "run" in using
    return left + right, linked and left_linked and right_linked


def _confined(where: Tree | None, names: list[tuple[str, str]], *, linked: bool) -> set[str] | None:
    """Tell to which runs a WHERE confines the tables of its SELECT; None if it leaves one of them free."""
    aliases = {alias for _, alias in names}
    said = {alias: runs for alias, runs in _equalities(where) if alias in aliases or not alias}
    free = aliases - said.keys()
    if free and not (said and (linked or len(aliases) == 1)):
        return None
    return set().union(*said.values()) if aliases else set()


def _equalities(condition: Tree | None) -> Iterator[tuple[str, set[str]]]:
    """Find `run = '…'` and `run IN ('…', …)` among the terms of an AND: (alias or "", runs)."""
    if condition is None:
        return
    kind = condition.get("type")
    if kind == "CONJUNCTION_AND":
        for child in condition["children"]:
            yield from _equalities(child)
        return
    if kind == "COMPARE_EQUAL":
        sides = [condition["left"], condition["right"]]
        sides.sort(key=lambda side: side.get("class") != "COLUMN_REF")
    elif kind == "COMPARE_IN":
        sides = condition["children"]
    else:
        return
    column = [name.lower() for name in sides[0].get("column_names", ())]
    texts = [side.get("literal", {}) for side in sides[1:]]
    if column[-1:] == ["run"] and len(column) <= 2 and all(text.get("kind") == "STRING" for text in texts):
        yield column[0] if len(column) == 2 else "", {text["text"] for text in texts}
