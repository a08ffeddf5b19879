"""Levels of factors as people write them, in canonical spelling: one reader per kind of factor.

A reader takes a TOML value, a scalar or a list, and gives its levels; InputError where one is wrong, with a problem
that has no place yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from schemas.errors import InputError, Problem
from schemas.notation import LARGEST, numbers
from schemas.spec import Level
from sweep.table import not_yet, refused, suggestion
from tasks.benchmarks import Parameter

PLACEMENTS = ("first",)
PLACEMENTS_LATER = ("random", "cover", "pairs", "compact", "spread")
COUNTS = ("nodes", "ranks_per_node", "nics")

_MOST = 2**31 - 1  # the archive's columns for counts are 32 bits wide

Parse = Callable[[Any], list[Level]]


def listed(value: Any) -> list[Any]:
    """Take a scalar as a list of one."""
    return value if isinstance(value, list) else [value]


def each_of(read: Callable[[Any], Level]) -> Parse:
    """Make a reader of lists from one of single levels; every wrong level is a problem of its own."""

    def parse(value: Any) -> list[Level]:
        levels: list[Level] = []
        problems: list[Problem] = []
        for each in listed(value):
            try:
                levels.append(read(each))
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)
        return levels

    return parse


def once(levels: list[Level]) -> tuple[Level, ...]:
    """Keep each level once; 1, 1.0 and true are three levels, though Python calls them equal."""
    return tuple({(type(level), level): level for level in levels}.values())


def counts(name: str, value: Any) -> list[Level]:
    """Read counts of nodes, ranks or NICs: from 1 on."""
    if name == "nics" and any(isinstance(each, str) and each[:1].isalpha() for each in listed(value)):
        raise not_yet("a set of NICs by name", "write how many, such as nics = [1, 2]; the site says which")
    levels = numbers(value)
    if bad := [each for each in levels if not 1 <= each <= _MOST]:
        raise refused(bad[0], f"write a whole number from 1 to {_MOST}")
    return list(levels)


def _sharp(level: Any) -> Level:
    if level is True or level is False:
        return "on" if level else "off"
    if level in ("on", "off"):
        return str(level)
    raise refused(level, 'write "off" or "on"; false and true mean the same')


def _placement(level: Any) -> Level:
    if level in PLACEMENTS:
        return str(level)
    if level in PLACEMENTS_LATER:
        raise not_yet(f'placement "{level}"', f"today: {', '.join(PLACEMENTS)}")
    near = suggestion(str(level), [*PLACEMENTS, *PLACEMENTS_LATER])
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
    """Read the levels of a benchmark's parameter as its kind, within its bounds."""
    read = {bool: each_of(_truth), str: each_of(_text), int: _whole, float: _real}[parameter.kind]

    def parse(value: Any) -> list[Level]:
        levels = read(value)
        for level in levels:
            if parameter.choices and level not in parameter.choices:
                choices = [str(each) for each in parameter.choices]
                raise refused(level, suggestion(str(level), choices))
            if parameter.minimum is not None and not isinstance(level, str) and level < parameter.minimum:
                raise refused(level, f"at least {parameter.minimum:g}")
        return levels

    return parse


def _truth(level: Any) -> Level:
    if not isinstance(level, bool):
        raise refused(level, "write true or false")
    return level


def _text(level: Any) -> Level:
    if not isinstance(level, str) or "\0" in level:
        raise refused(level, "write a text in quotes")
    return level


def _whole(value: Any) -> list[Level]:
    """Read whole numbers; unlike a notation, a plain number may be negative."""
    levels: list[Level] = []
    for each in listed(value):
        plain = isinstance(each, int) and not isinstance(each, bool) and -LARGEST <= each < 0
        levels += [each] if plain else numbers(each)
    return levels


def _real(value: Any) -> list[Level]:
    levels: list[Level] = []
    for each in listed(value):
        if isinstance(each, float) and not math.isfinite(each):
            raise refused(each, "write a finite number")
        levels += [each] if isinstance(each, float) else map(float, _whole(each))
    return levels
