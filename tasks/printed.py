"""Metrics that any program prints: found by regular expressions, or as JSON lines of their own.

A JSON line is an object with "metric" and "value", and perhaps "unit", "message_size" and "variant".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from schemas.attempt import Line
from schemas.errors import ParseError, Problem
from schemas.metrics import METRICS
from schemas.spec import Level
from tasks.units import factor

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OBJECT = re.compile(r'\s*\{(?=.*"metric")(?=.*"value")')


@dataclass(frozen=True, slots=True)
class Declared:
    """A metric that a spec declares: the expression that finds it, and the unit in which it is printed."""

    metric: str
    expression: re.Pattern[str]
    unit: str


@dataclass(frozen=True, slots=True)
class Row:
    """One number as it was printed, in the unit that we archive."""

    metric: str
    value: float
    unit: str
    size: int | None
    variant: str
    t: float
    line: int


def declared(parameters: Mapping[str, Level]) -> tuple[Declared, ...]:
    """The metrics of the families `match` and `unit`, in the order given."""
    return tuple(
        Declared(name, re.compile(str(level)), str(parameters.get(f"unit.{name}", "")))
        for kind, _, name in (key.partition(".") for key in parameters)
        if kind == "match" and name
        for level in (parameters[f"match.{name}"],)
    )


def check(parameters: Mapping[str, Level]) -> Iterator[Problem]:
    """What is wrong with the members of the families `match` and `unit`; `where` is the parameter's name."""
    for key, level in parameters.items():
        kind, dot, name = key.partition(".")
        if not dot:
            continue
        if not _NAME.fullmatch(name):
            yield Problem(key, f"`{name}` is no name of a metric", "write lower-case letters, digits and _")
        elif name == "duration":
            yield Problem(key, "`duration` is the wall time that we measure", "choose another name")
        elif kind == "unit":
            try:
                scale(name, str(level))
            except ValueError as error:
                what, _, remedy = str(error).partition("; ")
                yield Problem(key, what, remedy)
        else:
            yield from _check_expression(key, str(level))


def _check_expression(key: str, text: str) -> Iterator[Problem]:
    try:
        expression = re.compile(text)
    except re.error as error:
        yield Problem(key, f"is no regular expression: {error}", "quote it with '…', so that TOML leaves \\ alone")
        return
    if "value" not in expression.groupindex and expression.groups != 1:
        remedy = "put the number into one group: ([0-9.]+), or name it: (?P<value>[0-9.]+)"
        yield Problem(key, f"has {expression.groups} groups", remedy)


def scale(metric: str, unit: str) -> tuple[float, str]:
    """What one `unit` of a metric is in the unit that we archive, and that unit; an empty `unit` is that very unit.

    ValueError if it cannot be converted. A metric that is not of our vocabulary keeps its unit.
    """
    if metric not in METRICS:
        return 1.0, unit or "1"
    canonical = METRICS[metric].unit
    return (factor(unit, canonical) if unit else 1.0), canonical


def read(lines: Iterable[tuple[int, Line]], metrics: Iterable[Declared], units: Mapping[str, str]) -> Iterator[Row]:
    """Every number that the numbered lines hold, in order. ParseError for one that is none, or in a wrong unit."""
    searches = [(each, each.expression.finditer) for each in metrics]
    for number, line in lines:
        text = line.text
        for metric, search in searches:
            for match in search(text):
                yield _matched(metric, match, number, line)
        if '"metric"' in text and _OBJECT.match(text) and (row := _object(text, units, number, line)):
            yield row


def _matched(metric: Declared, match: re.Match[str], number: int, line: Line) -> Row:
    named = match.groupdict()
    value = _number(named["value"] if "value" in named else match[1], number, line)
    size = named.get("size")
    unit = named.get("unit")
    times, canonical = _scale(metric.metric, metric.unit if unit is None else unit, number, line)
    return Row(
        metric.metric,
        value * times,
        canonical,
        None if size is None else _size(size.replace(",", ""), number, line),
        named.get("variant") or "",
        line.t,
        number,
    )


def _object(text: str, units: Mapping[str, str], number: int, line: Line) -> Row | None:
    """A JSON line's number; None for an object that has no metric and value of its own."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ParseError(f"a metric in broken JSON ({error})", number, text) from None
    if not {"metric", "value"} <= found.keys():
        return None
    metric, value = str(found["metric"]), found["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ParseError(f"the value of {metric} is no number", number, text)
    size = found.get("message_size")
    times, canonical = _scale(metric, str(found.get("unit", units.get(metric, ""))), number, line)
    return Row(
        metric,
        float(value) * times,
        canonical,
        None if size is None else _size(str(size), number, line),
        str(found.get("variant", "")),
        line.t,
        number,
    )


def _number(text: str | None, number: int, line: Line) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        raise ParseError(f"{text!r} is no number", number, line.text) from None


def _size(text: str, number: int, line: Line) -> int:
    if not text.isdecimal():
        raise ParseError(f"{text!r} is no message size in bytes", number, line.text)
    return int(text)


def _scale(metric: str, unit: str, number: int, line: Line) -> tuple[float, str]:
    try:
        return scale(metric, unit)
    except ValueError as error:
        raise ParseError(str(error), number, line.text) from None
