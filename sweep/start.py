"""First contact: `sweep init` and `sweep benchmarks`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from schemas.errors import InputError, Problem
from schemas.spec import Site, Spec
from sweep.listing import emit
from tasks import benchmarks

_HEAD = """\
# A sweep: which factors, which levels. `sweep plan {path}` shows what it would do, `sweep run {path}` does it.
name = "first"
description = "{question}"
tags = ["first-contact"]
# where = "ranks_per_node = 2 OR message_size <= 1024"   # SQL over the factors: combinations to keep

[factors]                       # a list is an axis of the grid, a scalar is one level
"""
_TAIL = """
[run]
repeats = 3                     # separate launches of every combination
# timeout = 120                 # seconds per launch; "auto" comes from a cost model
# retry = { attempts = 4, wait = "2s..60s" }
"""
_FACTORS = {
    "imb": (
        "How do latency and bandwidth between two ranks grow with the message size?",
        """\
benchmark      = ["imb.pingpong", "imb.allreduce"]   # `sweep benchmarks imb` lists all operations
message_size   = "4:1M"         # 4, 8, 16 … 1 MiB, measured in one launch; also "8:1G:x4", "0,64:1K:+64", [8, 4096]
ranks_per_node = 2
imb.iterations = 200            # any parameter of the benchmark may be a factor
""",
    ),
    "mpi4py": (
        "How do latency and bandwidth between two ranks grow with the message size?",
        """\
benchmark         = "mpi4py.pingpong"   # `sweep benchmarks mpi4py` lists all operations
message_size      = "1:1M"      # 1, 2, 4 … 1 MiB, measured in one launch
ranks_per_node    = 2
""",
    ),
    "command": (
        "How long does a program of mine take, and what does it print?",
        """\
benchmark      = "command.run"  # any program; no MPI was found here (`sweep doctor` says what to type)
message_size   = [1024, 4096]
command.argv   = "/bin/echo bandwidth={message_size}"    # {factor} is replaced by its level
command.match.bandwidth = 'bandwidth=(?P<value>[0-9.]+)' # metrics by regular expression
command.unit.bandwidth  = "MB/s"
""",
    ),
}


def write_spec(path: Path, *, force: bool) -> str:
    """Write a spec for the best benchmark that is installed here; returns what to type next."""
    from sweep.look import take
    from tasks.executor import InlineExecutor

    if path.exists() and not force:
        raise InputError(Problem(str(path), "is there already", "name another file, or add --force"))
    have = asyncio.run(take(InlineExecutor(), Spec(name="init", factors={}, site=Site()), benchmarks.names()))
    tools = have.tools.get(None, {})
    best = next(name for name in _FACTORS if all(each in tools for each in _needs(name)))
    question, factors = _FACTORS[best]
    try:
        path.write_text(_HEAD.format(path=path, question=question) + factors + _TAIL)
    except OSError as error:
        raise InputError(Problem(str(path), f"cannot be written: {error.strerror}", "name another file")) from error
    return f"wrote {path} (benchmark {best}); next: sweep plan {path}, sweep run {path}"


def _needs(name: str) -> tuple[str, ...]:
    module = benchmarks.get(name)
    return tuple(module.needs(next(iter(module.operations)), {each.name: each.default for each in module.parameters}))


def list_benchmarks(name: str | None, style: str) -> None:
    """All benchmarks, or one's operations and parameters."""
    if name is None:
        modules = [(each, benchmarks.get(each)) for each in benchmarks.names()]
        rows = [[each, module.summary, ", ".join(module.operations)] for each, module in modules]
        emit(("benchmark", "what it measures", "operations"), rows, style)
        return
    module = benchmarks.get(name)
    operations = [[f"{name}.{key}", each.tool, each.summary, each.min_ranks] for key, each in module.operations.items()]
    emit(("benchmark", "the tool's name", "what it measures", "ranks from"), operations, style)
    if style == "table":
        print()
    parameters = [[f"{name}.{each.name}", each.kind.__name__, each.default, each.help] for each in module.parameters]
    emit(("parameter", "type", "default", "meaning"), parameters, style)
