"""Strict reading of the tables that benchmarks print: every row is whole, asked for, and in its turn, or an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from schemas.attempt import Asked, Line, Measurement, Output
from schemas.errors import ParseError
from tasks.text import peel

_CANDIDATE = re.compile(r"\s*\d+(?:\s|$)")
"""What begins like a row; any other line inside a table is somebody else's."""


def own_lines(output: Output) -> list[Line]:
    """The program's lines on stdout, peeled, without a last one that was cut."""
    lines = peel(output.lines("stdout"))
    if lines and any(stream.truncated for stream in output.streams if stream.stream == "stdout"):
        lines.pop()
    return lines


Cells = tuple[tuple[str, ...], int | None, float, float, int]
"""A row: its cells, its message size, the window in which it was measured, and the number of its line."""


def rows(
    lines: Sequence[Line], first: int, row: re.Pattern[str], question: Asked, *, begin: float, size: int | None
) -> Iterator[Cells]:
    """The rows from index `first` on, each with its window: from the row before it, the first one's from `begin`.

    `size` says which group of `row` is the message size, None for a table without. ParseError for a size that was not
    asked, or comes twice or out of turn, and for a broken row unless nothing of the table follows: then a death cut it
    short, and its size is missing.
    """
    match_row = row.fullmatch
    left, broken = iter(question.sizes), 0
    for number, line in enumerate(lines[first:], first + 1):
        match = match_row(line.text)
        if broken and (match or line.text.startswith("#")):
            raise ParseError("a broken row inside the table", broken, lines[broken - 1].text)
        if match:
            cells = match.groups()
            at = None if size is None else int(cells[size])
            if at not in left:  # consumes the asked sizes up to this one
                raise ParseError(f"size {at} was not asked, or comes twice or out of turn", number, line.text)
            yield cells, at, begin, line.t, number
            begin = line.t
        elif not broken and _CANDIDATE.match(line.text):
            broken = number


def missing(measurements: Iterable[Measurement], question: Asked) -> tuple[int | None, ...]:
    """The asked sizes without a row."""
    seen = {each.message_size for each in measurements}
    return tuple(size for size in question.sizes if size not in seen)


def check_samples(samples: int, question: Asked, number: int) -> None:
    """ParseError where a row rests on other repetitions than the parameter `iterations` asks for."""
    asked = question.parameters.get("iterations", samples)
    if samples != asked:
        raise ParseError(f"{samples} repetitions, where {asked} were asked", number)
