"""Any program: arguments made from the factors, metrics found by regular expressions or printed as JSON lines.

docs/benchmarks/command.md is its manual.
"""

from __future__ import annotations

import functools
import heapq
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from schemas.attempt import Asked, Launch, Line, Measurement, Output, Parsed, Role, Stream
from schemas.errors import InputError, ParseError, Problem
from schemas.plan import Node, Trial
from schemas.spec import DEFAULTS, Level
from tasks.benchmarks import Operation, Parameter, asked
from tasks.printed import Declared, Row, declared, read
from tasks.printed import check as check_metrics
from tasks.text import peel

summary = "any program of yours: what it takes, and the metrics that it prints"
revision = 1
parser_revision = 1
programs: Mapping[str, tuple[str, ...]] = {}
proofs: Mapping[str, str] = {}
install = "write the program's absolute path in command.argv, or name its folder in [launch] path"

operations: Mapping[str, Operation] = {"run": Operation("run", "wall time, and whatever the program prints", 1)}

parameters = (
    Parameter("argv", str, "", 'what to run, split as a shell would: "train.py --batch {batch} --size {message_size}"'),
    Parameter("launcher", str, "none", "none: one process on the first node; mpiexec: all ranks", ("none", "mpiexec")),
    Parameter(
        "match",
        str,
        "",
        "match.METRIC: a regular expression whose group is the value; groups named value, size, unit",
        family=True,
    ),
    Parameter("unit", str, "", "unit.METRIC: the unit in which the program prints it", family=True),
)

_HOLE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.]*)\}|[{}]")
_GIVEN = ("message_size", "ranks", "repeat", "slot", "files")
"""Names that every template knows beside the factors; `files` is the attempt's own folder."""


def check(operation: str, parameters: Mapping[str, Level], factors: Collection[str]) -> tuple[Problem, ...]:
    """What is wrong with the template, the expressions or the units."""
    problems = (*_check_template(str(parameters["argv"]), factors), *check_metrics(parameters))
    return tuple(Problem(f"command.{each.where}", each.what, each.remedy) for each in problems)


def needs(operation: str, parameters: Mapping[str, Level]) -> tuple[str, ...]:
    """Nothing that could be looked for before the template is filled in."""
    return ()


def refuses(operation: str, size: int | None, ranks: int, parameters: Mapping[str, Level]) -> str | None:
    """Why the template cannot be filled in."""
    if size is None and "message_size" in _holes(str(parameters["argv"])):
        return "command.argv names {message_size}, and message_size is no factor"
    return None


def batches(
    operation: str, sizes: tuple[int | None, ...], parameters: Mapping[str, Level]
) -> tuple[tuple[int | None, ...], ...]:
    """One launch per size if the template names it; otherwise the program sweeps and prints the sizes itself."""
    if "message_size" in _holes(str(parameters["argv"])):
        return tuple((size,) for size in sizes)
    return (sizes,) if sizes else ()


def launch(trial: Trial, nodes: Sequence[Node]) -> Launch:
    """The filled-in command. InputError for a template that `check` refuses."""
    question = asked(trial)
    levels = {
        **DEFAULTS,
        **trial.combination.factors,
        "message_size": trial.sizes[0] if len(trial.sizes) == 1 else None,
        "ranks": question.ranks,
        "repeat": trial.repeat,
        "slot": trial.slot,
        "files": "{files}",
    }
    template = str(question.parameters["argv"])
    if problems := check(question.operation, question.parameters, levels):
        raise InputError(problems)
    argv = tuple(_filled(word, levels) for word in shlex.split(template))
    if question.parameters["launcher"] == "none":
        return Launch((Role("command", argv),), question)
    return Launch((Role("ranks", argv, ranks=question.ranks, nodes=tuple(range(question.nodes))),), question)


def _filled(word: str, levels: Mapping[str, Level | None]) -> str:
    def fill(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        level = levels[match[1]]
        return level if isinstance(level, str) else "" if level is None else json.dumps(level)

    return _HOLE.sub(fill, word)


@functools.lru_cache(maxsize=256)
def _holes(template: str) -> frozenset[str]:
    return frozenset(match[1] for match in _HOLE.finditer(template) if match[1] is not None)


def _check_template(template: str, factors: Collection[str]) -> Iterator[Problem]:
    where = "argv"
    try:
        if not shlex.split(template):
            yield Problem(where, "is missing", 'write what to run, such as "/bin/echo {message_size}"')
    except ValueError as error:
        yield Problem(where, f"cannot be split: {str(error).lower()}", "quote as for a shell")
    known = {name for name in (*factors, *_GIVEN) if not name.startswith("command.") and name != "benchmark"}
    for match in _HOLE.finditer(template):
        if match[0] in ("{", "}"):
            yield Problem(where, f"a lone {match[0]}", f"write {match[0] * 2} for the character itself")
        elif match[1] is not None and match[1] not in known:
            remedy = f"known: {', '.join(sorted(known))}; write {{{{{match[1]}}}}} for the text itself"
            yield Problem(where, f"{match[0]} names no factor", remedy)


def parse(output: Output) -> Parsed:
    """Every match and every JSON line as a row, in the order printed; the wall time if the program ended well."""
    question = output.asked
    metrics = declared(question.parameters)
    units = {key.removeprefix("unit."): str(level) for key, level in question.parameters.items() if key[:5] == "unit."}
    streams = [_whole_lines(stream) for stream in output.streams]
    lines = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=_stamp)
    found: list[Measurement] = []
    begins: dict[str, float] = {}
    for row in read(lines, metrics, units):
        size, begin = _size(row, question), begins.get(row.metric, 0.0)
        found.append(Measurement(row.metric, row.value, row.unit, size, None, row.variant, begin, row.t))
        begins[row.metric] = row.t
    well = output.ended == "exited" and bool(output.exits) and all(each.exit_code == 0 for each in output.exits)
    if well:
        only = question.sizes[0] if len(question.sizes) == 1 else None
        found.insert(0, Measurement("duration", output.elapsed, "s", only, t_begin=0.0, t_end=output.elapsed))
    return _parsed(found, metrics, question, well=well)


def _parsed(found: Sequence[Measurement], metrics: Sequence[Declared], question: Asked, *, well: bool) -> Parsed:
    """The rows, the sizes for which a declared metric is missing, and which metric never appeared at all."""
    seen: dict[str, set[int | None]] = {}
    for each in found:
        seen.setdefault(each.metric, {None}).add(each.message_size)
    wanted = [seen.get(each.metric, set()) for each in metrics] if metrics else [set().union(*seen.values())]
    missing = tuple(size for size in question.sizes if not all(size in sizes for sizes in wanted))
    never = [each for each in metrics if each.metric not in seen]
    failure = (
        f"{never[0].metric} never appeared: no line matches {never[0].expression.pattern}" if never and well else ""
    )
    return Parsed(tuple(found), missing=missing, failure=failure)


def _whole_lines(stream: Stream) -> list[tuple[int, Line]]:
    """The peeled lines of a stream with their numbers, without one that was cut."""
    lines = peel(stream.lines)
    return list(enumerate(lines[:-1] if stream.truncated else lines, 1))


def _stamp(numbered: tuple[int, Line]) -> float:
    return numbered[1].t


def _size(row: Row, question: Asked) -> int | None:
    """The message size of a row: as printed, else the only one that was asked for."""
    if row.size is None:
        if len(question.sizes) == 1:
            return question.sizes[0]
        raise ParseError(f"{row.metric} comes without a size, and {len(question.sizes)} sizes were asked", row.line)
    if question.sizes != (None,) and row.size not in question.sizes:
        raise ParseError(f"{row.metric} comes for {row.size} bytes, which were not asked", row.line)
    return row.size
