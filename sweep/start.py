"""First contact: `sweep init` and `sweep benchmarks`."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import typer

from schemas.errors import InputError, Problem
from schemas.spec import Site, Spec
from sweep.listing import emit
from tasks import benchmarks
from tasks.benchmarks import Benchmark, Operation, Parameter

_HEAD = """\
# A sweep: which factors, which levels.
#   sweep plan {path}           shows what it would do
#   sweep run {path}            does it, and prints where the archive is
#   sweep sql "FROM results"    asks the archive
name = "first"
description = "{question}"
tags = ["first-contact"]
# where = "ranks_per_node = 2 OR message_size <= 1024"   # SQL over the factors: which combinations to keep

[factors]                       # a list is an axis of the grid, a scalar is one level
"""
_TAIL = """\
# env.OMP_NUM_THREADS = [1, 2]  # any environment variable may be a factor
# sharp = ["off", "on"]         # what this machine cannot provide becomes a row that says `unsupported`, and why

[run]
repeats = 3                     # separate launches of every combination, each round in another order
# timeout = 120                 # seconds per launch; without it a cost model decides
# retry = {{ attempts = 4, wait = "2s..60s" }}   # of what may pass by itself: time-outs, lost nodes
# seed = 7                      # of the order; without it each run draws one, and records it
"""
_FACTORS = {
    "imb": (
        "How do latency and bandwidth between two ranks grow with the message size?",
        """\
benchmark      = ["imb.pingpong", "imb.allreduce"]   # `sweep benchmarks imb` lists all operations
message_size   = "4:1M"         # 4, 8, 16 … 1 MiB, measured in one launch; also "8:1M:x4", "64:1K:+64", [8, 4096]
ranks_per_node = 2
imb.iterations = 200            # any parameter of the benchmark may be a factor
""",
    ),
    "mpi4py": (
        "How do latency and bandwidth between two ranks grow with the message size?",
        """\
benchmark         = "mpi4py.pingpong"   # `sweep benchmarks mpi4py` lists all operations
message_size      = "1:1M"      # 1, 2, 4 … 1 MiB, measured in one launch; also "8:1M:x4", [8, 4096]
ranks_per_node    = 2
mpi4py.iterations = 200         # any parameter of the benchmark may be a factor
""",
    ),
    "command": (
        "How long does a program of mine take, and what does it print?",
        """\
benchmark      = "command.run"  # any program; neither IMB nor mpi4py runs here (`sweep doctor` says what to type)
message_size   = [1024, 4096]
command.argv   = "/bin/echo bandwidth={message_size}"     # {factor} is replaced by its level
command.match.bandwidth = 'bandwidth=(?P<value>[0-9.]+)'  # metrics by regular expression, or as JSON lines
command.unit.bandwidth  = "MB/s"
""",
    ),
}


def write_spec(path: Path, *, force: bool) -> str:
    """Write a spec for the best benchmark that runs here; returns what to type next."""
    if path.exists() and not force:
        raise InputError(Problem(str(path), "is there already", "name another file, or add --force"))
    best, text = _best(path)
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(Problem(str(path), f"cannot be written: {error.strerror}", "name another file")) from error
    name = shlex.quote(str(path))
    return f"wrote {path} (benchmark {best}); next: sweep plan {name}, sweep run {name}"


def _best(path: Path) -> tuple[str, str]:
    """The first benchmark whose spec has nothing unsupported here, and that spec."""
    from archive.where import keep
    from sweep.expand import expand
    from sweep.load import reload
    from sweep.look import take
    from sweep.site import load_site
    from tasks.executor import InlineExecutor

    site: Site = load_site(None, os.environ)
    have = asyncio.run(take(InlineExecutor(), Spec(name="init", factors={}, site=site), benchmarks.names()))
    for name, (question, factors) in _FACTORS.items():
        text = _HEAD.format(path=shlex.quote(str(path)), question=question) + factors + _TAIL.format()
        spec = replace(reload((str(path), text), None, os.environ), site=site)
        if all(trial.unsupported is None for trial in expand(spec, have, keep, 0).trials):
            return name, text
    raise AssertionError("a command runs everywhere")


def list_benchmarks(name: str | None, style: str) -> None:
    """All benchmarks, or one's operations and parameters."""
    if name is not None:
        (_describe if style == "table" else _list)(name, benchmarks.get(name), style)
    elif style == "table":
        for each in benchmarks.names():
            _outline(each, benchmarks.get(each))
    else:
        modules = [(each, benchmarks.get(each)) for each in benchmarks.names()]
        rows = [[each, module.summary, list(module.operations), _names(module)] for each, module in modules]
        emit(("benchmark", "summary", "operations", "parameters"), rows, style)


def _outline(name: str, module: Benchmark) -> None:
    """A benchmark in a few lines, as wide as the terminal."""
    typer.echo(f"{name}: {module.summary}")
    settings = [
        _spelled(each) if _default(each) is None else f"{each.name} = {_default(each)}" for each in module.parameters
    ]
    for what, words in (("operations", list(module.operations)), ("parameters", settings)):
        width = max(40, shutil.get_terminal_size().columns)
        typer.echo(textwrap.fill(", ".join(words), width, initial_indent=f"  {what}  ", subsequent_indent=" " * 14))


def _describe(name: str, module: Benchmark, style: str) -> None:
    operations = [[f"{name}.{key}", each.tool, _ranks(each), each.summary] for key, each in module.operations.items()]
    emit(("operation", "the tool's name", "ranks", "what it measures"), operations, style)
    typer.echo("")
    parameters = [
        [f"{name}.{_spelled(each)}", each.kind.__name__, _default(each), _bounds(each), each.help]
        for each in module.parameters
    ]
    emit(("parameter", "type", "default", "levels", "meaning"), parameters, style)


def _list(name: str, module: Benchmark, style: str) -> None:
    """Operations and parameters as one listing, for programs."""
    rows: list[list[object]] = [
        ["operation", f"{name}.{key}", each.tool, _ranks(each), None, None, None, each.summary]
        for key, each in module.operations.items()
    ]
    rows += [
        [
            "parameter",
            f"{name}.{_spelled(each)}",
            None,
            None,
            each.kind.__name__,
            _default(each),
            _bounds(each),
            each.help,
        ]
        for each in module.parameters
    ]
    emit(("kind", "name", "tool", "ranks", "type", "default", "levels", "meaning"), rows, style)


def _names(module: Benchmark) -> list[str]:
    return [_spelled(each) for each in module.parameters]


def _spelled(parameter: Parameter) -> str:
    return f"{parameter.name}.METRIC" if parameter.family else parameter.name


def _default(parameter: Parameter) -> str | None:
    """The default as TOML has it; None where the user has to say something, or nothing is."""
    default = parameter.default
    if parameter.family or default == "":
        return None
    return str(default).lower() if isinstance(default, bool) else str(default)


def _bounds(parameter: Parameter) -> str:
    if parameter.choices:
        return ", ".join(map(str, parameter.choices))
    return "" if parameter.minimum is None else f"from {parameter.minimum:g}"


def _ranks(operation: Operation) -> str:
    low, high = operation.min_ranks, operation.max_ranks
    return f"{low} or more" if high is None else str(low) if low == high else f"{low} to {high}"
