"""Benchmarks: a module of this folder is one benchmark program, and the file's name is its registration.

A module offers two pure functions, `launch` and `parse`, and a little data; `Benchmark` says which. It starts nothing,
reads no file and no clock, and knows nothing of Ray: `docs/architecture.md` and CONTRIBUTING show how to add one.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, cast

from schemas.attempt import Asked, Launch, Output, Parsed
from schemas.errors import InputError, Problem
from schemas.plan import Node, Tool, Trial
from schemas.spec import Level


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a benchmark program measures: `imb.allreduce`."""

    tool: str
    """As the tool spells it: "Allreduce"."""
    summary: str
    min_ranks: int = 2
    max_ranks: int | None = None
    """More ranks than this would stand idle, and the node count would be a lie."""
    sized: bool = True
    """Whether message size is a factor of it (a barrier has none)."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A knob of a benchmark that a spec may name as a factor: `imb.iterations`.

    A family stands for as many factors as the user likes: a parameter `match` with `family` makes
    `command.match.bandwidth`, `command.match.loss`, … factors. Its members have no default: the parameters of a
    launch hold exactly the members that were asked, under their names without the benchmark's ("match.loss").
    """

    name: str
    kind: type
    default: Level
    help: str
    choices: tuple[Level, ...] = ()
    minimum: float | None = None
    family: bool = False


class Benchmark(Protocol):
    """What a module of this folder offers. Parameters come under their own names, defaults included.

    A module may leave out `proofs` (none), `check` (nothing to say), `needs` (all its programs), `refuses` (what its
    operations say of ranks and sizes) and `batches` (all sizes in one launch).
    """

    @property
    def summary(self) -> str:
        """One line for the list of benchmarks."""

    @property
    def revision(self) -> int:
        """Counts changes of `launch` that change what is measured; part of the setup's identity."""

    @property
    def parser_revision(self) -> int:
        """Counts changes of `parse` that change its answers; a column of each measurement, no part of any identity."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """Canonical lower-case name -> operation."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a spec may set."""

    @property
    def programs(self) -> Mapping[str, tuple[str, ...]]:
        """Program -> the arguments that make it say its version; empty where it cannot say it by itself."""

    @property
    def proofs(self) -> Mapping[str, str]:
        """Program -> a regular expression that its version text has to hold, else it is there and of no use to us."""

    @property
    def install(self) -> str:
        """What to type when a program is missing."""

    def check(self, operation: str, parameters: Mapping[str, Level], factors: Collection[str]) -> tuple[Problem, ...]:
        """What is wrong with the parameters themselves, given the names of all factors asked: no level mends it."""

    def needs(self, operation: str, parameters: Mapping[str, Level]) -> tuple[str, ...]:
        """The programs that a launch of this operation needs, of those in `programs`."""

    def refuses(self, operation: str, size: int | None, ranks: int, parameters: Mapping[str, Level]) -> str | None:
        """Why this can never be measured, whatever the cluster; None if it can."""

    def batches(
        self, operation: str, sizes: tuple[int | None, ...], parameters: Mapping[str, Level]
    ) -> tuple[tuple[int | None, ...], ...]:
        """The fewest launches whose union holds exactly the asked sizes; sizes ascend, in and out."""

    def launch(self, trial: Trial, nodes: Sequence[Node]) -> Launch:
        """What to start for a trial. Pure: the same trial, the same launch."""

    def parse(self, output: Output) -> Parsed:
        """What the output says. Pure and strict: ParseError where it is not what we know, never a row dropped."""


def names() -> tuple[str, ...]:
    """Every benchmark there is, sorted."""
    return tuple(sorted(each.name for each in pkgutil.iter_modules(__path__) if not each.name.startswith("_")))


@functools.cache
def get(name: str) -> Benchmark:
    """The benchmark of that name; imports its module and no other. InputError for what is none."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, 1)
        remedy = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"
        raise InputError(Problem("benchmark", f"there is no benchmark `{name}`", remedy))
    module = importlib.import_module(f"{__name__}.{name}")
    for left_out, default in _defaults(module).items():
        if not hasattr(module, left_out):
            setattr(module, left_out, default)
    return cast("Benchmark", module)


def _defaults(module: ModuleType) -> dict[str, object]:
    def needs(operation: str, parameters: Mapping[str, Level]) -> tuple[str, ...]:
        return tuple(module.programs)

    def refuses(operation: str, size: int | None, ranks: int, parameters: Mapping[str, Level]) -> str | None:
        each: Operation = module.operations[operation]
        lacking = f"{each.tool} needs a message_size" if each.sized and size is None else None
        return refuses_ranks(each, ranks) or lacking

    def batches(
        operation: str, sizes: tuple[int | None, ...], parameters: Mapping[str, Level]
    ) -> tuple[tuple[int | None, ...], ...]:
        return (sizes,) if sizes else ()

    return {"proofs": {}, "check": unchecked, "needs": needs, "refuses": refuses, "batches": batches}


def unusable(benchmark: Benchmark, needed: Collection[str], tools: Mapping[str, Tool]) -> tuple[str, ...]:
    """Of the programs needed, those that were not found, or whose version text shows that they are of no use."""
    return tuple(
        name
        for name in needed
        if name not in tools
        or (name in benchmark.proofs and not re.search(benchmark.proofs[name], tools[name].version, re.MULTILINE))
    )


def asked(trial: Trial) -> Asked:
    """The question of a trial, as its parser will need it."""
    combination = trial.combination
    return Asked(
        combination.benchmark,
        combination.operation,
        trial.sizes,
        combination.nodes,
        combination.nodes * combination.ranks_per_node,
        combination.parameters,
    )


def unchecked(operation: str, parameters: Mapping[str, Level], factors: Collection[str]) -> tuple[Problem, ...]:
    """A `check` for modules that ask nothing beyond what the parameters' own declarations say."""
    return ()


def refuses_ranks(operation: Operation, ranks: int) -> str | None:
    """Why an operation cannot be measured with so many ranks; None if it can."""
    if ranks < operation.min_ranks:
        return f"{operation.tool} needs at least {operation.min_ranks} ranks, and gets {ranks}"
    if operation.max_ranks is not None and ranks > operation.max_ranks:
        return f"{operation.tool} uses {operation.max_ranks} ranks, and would leave {ranks - operation.max_ranks} idle"
    return None
