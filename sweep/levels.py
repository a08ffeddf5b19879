"""Levels of factors as people write them, in canonical spelling: one reader per kind of factor.

A reader takes a TOML value, a scalar or a list, and gives its levels; InputError where one is wrong, with a problem
that has no place yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schemas.errors import InputError, Problem
from schemas.notation import LARGEST, numbers
from schemas.spec import Level
from sweep.table import not_yet, refused, suggestion
from tasks.benchmarks import Parameter

PLACEMENTS = ("first", "random", "cover", "pairs", "compact", "spread")
COUNTS = ("nodes", "ranks_per_node", "nics")

_MOST = 2**31 - 1  # the archive's columns for counts are 32 bits wide

Parse = Callable[[Any], list[Level]]


def listed(value: Any) -> list[Any]:
    """Take a scalar as a list of one."""
    return value if isinstance(value, list) else [value]


def every(read: Callable[[Any], Sequence[Level]]) -> Parse:
    """Make a reader of lists from one of their elements; every wrong element is a problem of its own."""

    def parse(value: Any) -> list[Level]:
        levels: list[Level] = []
        problems: list[Problem] = []
        for each in listed(value):
            try:
                levels += read(each)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)
        return levels

    return parse


def each_of(read: Callable[[Any], Level]) -> Parse:
    """Make a reader of lists from one of single levels."""
    return every(lambda value: (read(value),))


def once(levels: list[Level]) -> tuple[Level, ...]:
    """Keep each level once; 1, 1.0 and true are three levels, though Python calls them equal."""
    if len(set(map(type, levels))) == 1:  # the usual case, and the quick one for ten million sizes
        return tuple(dict.fromkeys(levels))
    return tuple({(type(level), level): level for level in levels}.values())


def counts(name: str) -> Parse:
    """Make a reader of counts, of nodes, ranks or NICs: from 1 on."""

    def read(value: Any) -> Sequence[Level]:
        if name == "nics" and isinstance(value, str) and value[:1].isalpha():
            raise not_yet("a set of NICs by name", "write how many, such as nics = [1, 2]; the site says which")
        levels = numbers(value)
        if bad := [each for each in levels if not 1 <= each <= _MOST]:
            raise refused(bad[0], f"write a whole number from 1 to {_MOST}")
        return levels

    return every(read)


def _sharp(level: Any) -> Level:
    if level is True or level is False:
        return "on" if level else "off"
    if level in ("on", "off"):
        return str(level)
    raise refused(level, 'write "off" or "on"; false and true mean the same')


def _placement(level: Any) -> Level:
    if level in PLACEMENTS:
        return str(level)
    near = suggestion(str(level), PLACEMENTS)
    raise refused(level, near)


def _stack(level: Any) -> Level:
    if not isinstance(level, str) or not level.strip():
        raise refused(level, "name a stack that the site describes under [levels.stack]")
    if level == "default":
        raise refused(level, "`default` is what no stack is called; describe one under [levels.stack.NAME]")
    return level


WORDS: Mapping[str, Callable[[Any], Level]] = {"sharp": _sharp, "placement": _placement, "stack": _stack}


def own_level(level: Any) -> Level:
    """Check a level of a factor of the user's own: any text, number, true or false."""
    if isinstance(level, str):
        return _text(level)
    if not isinstance(level, (bool, int, float)) or not math.isfinite(level):
        raise refused(level, "write a text, a number, true or false")
    return level


def typed(parameter: Parameter) -> Parse:
    """Make a reader of a benchmark's parameter: levels of its kind, within its bounds."""
    read = _KINDS[parameter.kind]

    def check(value: Any) -> Sequence[Level]:
        levels = read(value)
        for level in levels:
            if parameter.choices and level not in parameter.choices:
                raise refused(level, suggestion(str(level), [str(each) for each in parameter.choices]))
            if parameter.minimum is not None and not isinstance(level, str) and level < parameter.minimum:
                raise refused(level, f"at least {parameter.minimum:g}")
        return levels

    return every(check)


def _truth(value: Any) -> Sequence[Level]:
    if not isinstance(value, bool):
        raise refused(value, "write true or false")
    return (value,)


def _whole(value: Any) -> Sequence[Level]:
    """Read whole numbers; unlike a notation, a plain number may be negative."""
    if isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value < 0:
        return (value,)
    return numbers(value)


def _real(value: Any) -> Sequence[Level]:
    if not isinstance(value, float):
        return [float(each) for each in _whole(value)]
    if not math.isfinite(value):
        raise refused(value, "write a finite number")
    return (value,)


def _text(level: Any) -> Level:
    if not isinstance(level, str) or "\0" in level:
        raise refused(level, "write a text in quotes")
    return level


_KINDS: Mapping[type, Callable[[Any], Sequence[Level]]] = {
    bool: _truth,
    int: _whole,
    float: _real,
    str: lambda value: (_text(value),),
}
