"""Prints rows: an aligned table for humans, JSON, CSV or Markdown for everything else. Results go to stdout."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TextIO

import typer


def emit(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    style: str,
    file: TextIO | None = None,
    *,
    footer: bool = True,
) -> None:
    """Print rows under their column names, or write them to `file`; a long table is paged on a terminal."""
    whole = [list(row) for row in rows]
    text = _STYLES[style](columns, whole)
    if style == "table" and footer:
        text += f"({len(whole)} row{'' if len(whole) == 1 else 's'})\n"
    long = text.count("\n") > shutil.get_terminal_size().lines
    if style == "table" and file is None and long and sys.stdout.isatty():
        import pydoc  # only a long answer on a terminal pays for it

        os.environ.setdefault("LESS", "-RS")  # wide rows are scrolled, not wrapped
        pydoc.pager(text)
    else:
        typer.echo(text, file=file, nl=False)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [all(_is_number(row[i]) or row[i] is None for row in rows) for i in range(len(columns))]
    lines = [columns, ["─" * width for width in widths], *cells]
    return "".join(f"{_line(line, widths, right)}\n" for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    aligned = zip(cells, widths, right, strict=True)
    return "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in aligned).rstrip()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _cell(value: object) -> str:
    """One value, in one line, without control characters: log lines stay text on a terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dt.datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, dict):
        return " ".join(f"{name}={_cell(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(each) for each in value)
    return "".join(char if char.isprintable() else " " for char in str(value))


def _json(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    records = [{name: _plain(value) for name, value in zip(columns, row, strict=True)} for row in rows]
    return json.dumps(records, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: object) -> object:
    """A value as JSON has it; what JSON has no word for (inf, a UUID, an interval) becomes text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            [json.dumps(value) if isinstance(value, (bool, dict, list)) else value for value in map(_plain, row)]
        )
    return text.getvalue()


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [
        list(columns),
        ["---"] * len(columns),
        *([_cell(value).replace("|", "\\|") for value in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_STYLES = {"table": _table, "json": _json, "csv": _csv, "markdown": _markdown}
