"""The axes of a grid: which factors there are, and their levels in canonical spelling."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from schemas.errors import InputError, Problem
from schemas.notation import numbers
from schemas.spec import CORE_FACTORS, Level, RunPolicy
from sweep import ways
from sweep.document import Document, Key
from sweep.levels import COUNTS, WORDS, Parse, counts, each_of, listed, once, own_level, typed
from sweep.table import Table, refused, suggestion
from tasks.benchmarks import Benchmark

RUN_KEYS = tuple(each.name for each in fields(RunPolicy))
"""The keys of [run]."""

_NAMES = tuple(name for name in CORE_FACTORS if name != "operation")
_TABLES = ("run", "launch", "fabric", "levels", "include")
_PLACEHOLDER = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)\}(?!\})")  # {{name}} is the text itself


class Catalogue(Protocol):
    """All benchmark modules, by name; `tasks.benchmarks` is one."""

    def names(self) -> tuple[str, ...]:
        """Name every module."""

    def get(self, name: str) -> Benchmark:
        """Import one."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The grid and the combinations beside it."""

    levels: Mapping[str, tuple[Level, ...]]
    include: tuple[Mapping[str, tuple[Level, ...]], ...]


def read_factors(top: Table, catalogue: Catalogue, own: Collection[str]) -> Factors:
    """Take [factors] and [[include]] from the top of a spec; every problem goes into its document.

    `own` are the factors of the user's own: those that have [levels.<factor>.<level>].
    """
    if "factors" not in top:
        top.wrong("factors", "is missing", 'write [factors] and at least benchmark = "…" below it')
    table = top.table("factors")
    include = top.tables("include") or []
    reader = _Reader(top.document, catalogue, own)
    tables = [reader.flat(each) for each in ([] if table is None else [table]) + include]
    for flat in tables:
        reader.see(flat)
    read = [reader.read(flat) for flat in tables]
    if table is None:
        return Factors({}, tuple(read))
    if "benchmark" not in tables[0]:
        table.wrong(
            "benchmark", "is missing", f'write benchmark = "MODULE.OPERATION", of: {", ".join(catalogue.names())}'
        )
    for each, flat in zip(include, tables[1:], strict=True):
        if not flat:
            each.document.wrong(each.key, "names no factor", "name at least one, or remove it")
    return Factors(read[0], tuple(read[1:]))


_Flat = dict[str, tuple[Key, Any]]
"""Full name -> where it stands and the value as written."""


class _Reader:
    """Reads tables of factors. What may be named depends on the benchmarks, so those of all tables are seen first."""

    def __init__(self, document: Document, catalogue: Catalogue, own: Collection[str]) -> None:
        self._document = document
        self._catalogue = catalogue
        self._names = catalogue.names()
        self._own = set(own) - set(CORE_FACTORS)
        self._modules: dict[str, Benchmark] = {}

    def flat(self, table: Table) -> _Flat:
        """Name every factor of a table in full, whether its dots were quoted or not."""
        flat: _Flat = {}
        for name in table.left():
            value = table.take(name)
            if name in (*_TABLES, *ways.SLID):
                table.wrong(name, f"`{name}` stands {table.place}", ways.SLID["where"])
                continue
            for full, key, each in _leaves(name, (*table.key, name), value):
                if full in flat:
                    self._document.wrong(key, f"`{full}` is given twice", "once dotted, once quoted: remove one")
                flat[full] = (key, each)
        return flat

    def see(self, flat: _Flat) -> None:
        """Learn which modules take part and which factors their parameters' texts mention."""
        for level in listed(flat["benchmark"][1]) if "benchmark" in flat else ():
            module = level.partition(".")[0] if isinstance(level, str) else ""
            if module in self._names:
                self._modules[module] = self._catalogue.get(module)
        for name, (_, value) in flat.items():
            if name.partition(".")[0] in self._names:
                texts = (each for each in listed(value) if isinstance(each, str))
                self._own.update(found for text in texts for found in _PLACEHOLDER.findall(text))

    def read(self, flat: _Flat) -> dict[str, tuple[Level, ...]]:
        """Read the levels of every factor, each level once, in the order given."""
        read: dict[str, tuple[Level, ...]] = {}
        for name, (key, value) in flat.items():
            if value == []:
                self._document.wrong(key, "has no levels, so the grid is empty", "give at least one level")
                continue
            try:
                read[name] = once(self._parser(name)(value))
            except InputError as error:
                for problem in error.problems:
                    self._document.wrong(key, problem.what, problem.remedy)
        return read

    def _parser(self, name: str) -> Parse:
        """Find out what a factor is; InputError for one that nobody knows."""
        if name == "benchmark":
            return each_of(self._benchmark)
        if name == "message_size":
            return lambda value: list(numbers(value))
        if name in COUNTS:
            return counts(name)
        if name in WORDS:
            return each_of(WORDS[name])
        family, dot, rest = name.partition(".")
        if family == "env" and dot:
            ways.variable(rest)
            return each_of(lambda value: ways.value_of(name, value))
        if dot and family in self._names:
            return self._parameter(family, rest)
        if name in self._own and not dot:
            return each_of(own_level)
        raise self._unknown(name)

    def _benchmark(self, level: object) -> Level:
        if not isinstance(level, str):
            raise refused(level, 'write "module.operation", such as "imb.allreduce"')
        module, _, operation = level.partition(".")
        if module not in self._modules:
            what = f"unknown benchmark `{module}`"
            raise InputError(Problem("", what, suggestion(module, self._catalogue.names())))
        operations = self._modules[module].operations
        if not operation and len(operations) == 1:
            return f"{module}.{next(iter(operations))}"
        if operation in operations:
            return level
        for name, each in operations.items():
            if each.tool == operation:
                return f"{module}.{name}"
        what = f"unknown operation `{operation}` of `{module}`" if operation else f"`{module}` has several operations"
        raise InputError(Problem("", what, suggestion(level, [f"{module}.{name}" for name in operations])))

    def _parameter(self, module: str, name: str) -> Parse:
        if module not in self._modules:
            what = f"no benchmark of this spec is of `{module}`"
            raise InputError(Problem("", what, "add one to factors.benchmark, or remove this parameter"))
        parameters = self._modules[module].parameters
        for each in parameters:
            if name == each.name or (each.family and name.startswith(f"{each.name}.")):
                return typed(each)
        what = f"unknown parameter `{name}` of `{module}`"
        raise InputError(
            Problem("", what, suggestion(f"{module}.{name}", [f"{module}.{each.name}" for each in parameters]))
        )

    def _unknown(self, name: str) -> InputError:
        """Say that a factor is unknown, and where it may belong."""
        takers = [module for module, each in self._modules.items() if any(name == its.name for its in each.parameters)]
        if name == "operation":
            remedy = 'name it with its benchmark, such as benchmark = "imb.allreduce"'
        elif takers:
            remedy = f"write {' or '.join(f'`{module}.{name}`' for module in takers)}"
        elif name in RUN_KEYS:
            remedy = "it belongs under [run]"
        elif name.isupper():
            remedy = f"an environment variable is written `env.{name}`"
        else:
            near = suggestion(name, [*_NAMES, *sorted(self._own), *(f"{family}." for family in ("env", *self._names))])
            remedy = f"{near}; a factor of your own needs a table [levels.{name}.LEVEL]" if "known:" in near else near
        return InputError(Problem("", f"unknown factor `{name}`", remedy))


def _leaves(name: str, key: Key, value: Any) -> Iterator[tuple[str, Key, Any]]:
    """Yield what nested tables hold, under dotted names."""
    if not isinstance(value, dict):
        yield name, key, value
        return
    for part, each in value.items():
        yield from _leaves(f"{name}.{part}", (*key, part), each)
