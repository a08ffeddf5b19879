"""The spec (the question) and the site (how things are run), frozen, as `sweep.load` hands them on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = bool | int | float | str
"""One value of a factor."""


def text(level: Level) -> str:
    """A level as tables and map columns hold it: JSON's spelling, so that 1, 1.0 and true stay apart."""
    return level if isinstance(level, str) else json.dumps(level)


CORE_FACTORS = (
    "benchmark",
    "operation",
    "message_size",
    "nodes",
    "ranks_per_node",
    "nics",
    "sharp",
    "placement",
    "stack",
)
"""Factors with a typed column of their own, for ever. All others share one map column."""

DEFAULTS: Mapping[str, Level | None] = {
    "message_size": None,
    "nodes": 1,
    "ranks_per_node": 1,
    "nics": None,
    "sharp": None,
    "placement": "first",
    "stack": None,
}
"""Declared defaults of the core factors; None means: not asked, as the stack or the site has it."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """How many separate launches: exactly `min` where `max == min`, else until the interval is below `until`."""

    min: int = 1
    max: int = 1
    until: float | None = None
    """Half width of the confidence interval as a fraction of the median (0.03 for "3%")."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Attempts in all per trial, and the exponential wait between them in seconds."""

    attempts: int = 4
    wait_min: float = 2.0
    wait_max: float = 60.0


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A node with `failures` blamed failures within its last `window` attempts is taken out."""

    failures: int = 3
    window: int = 10


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The `[run]` table."""

    repeats: Repeats = Repeats()
    pair: tuple[str, ...] = ("sharp", "nics")
    order: Literal["shuffled", "sorted"] = "shuffled"
    seed: int | None = None
    concurrency: Literal["exclusive", "disjoint"] = "exclusive"
    warmup: int = 0
    timeout: float | None = None
    """Seconds per attempt; None is "auto", from the cost model."""
    retry: Retry = Retry()
    quarantine: Quarantine = Quarantine()
    deadline: str = "auto"
    counters: float | None = None
    """Sampling period in seconds; None is "edges": before and after only."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container that an attempt runs in."""

    engine: str
    image: str
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Way:
    """How a level is run: bash lines before the benchmark, search paths, environment, arguments, container."""

    setup: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    container: Container | None = None
    launcher: str | None = None


@dataclass(frozen=True, slots=True)
class Fabric:
    """Which NICs carry benchmark traffic, and how fast they are."""

    nics: tuple[str, ...] | Mapping[str, str] | None = None
    """Exact names, or a selector such as {"link_layer": "infiniband"}; None: all that discovery finds."""
    nic_policy: str = "spread"
    link_gbps: float | None = None
    topology: Mapping[str, str] = field(default_factory=dict)
    """A node's name -> its leaf switch; empty: the site does not say."""


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster's own file: how things are run there. Paths in it are absolute once loaded."""

    cluster: str = "local"
    archive: str | None = None
    reach: Literal["ray", "local", "ssh", "srun"] = "ray"
    launcher: str = "mpiexec"
    way: Way = Way()
    """From `[launch]`: `args`, `env`, `path`, `setup`, for every launch."""
    fabric: Fabric = Fabric()
    levels: Mapping[str, Mapping[str, Way]] = field(default_factory=dict)
    """factor -> level (as text) -> its way of running."""
    text: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """The user's question, parsed and checked; it names no cluster.

    `factors` maps canonical factor names to their levels in the order given. `benchmark` levels are
    "module.operation" in canonical spelling; `message_size` levels are bytes; `sharp` is "off" or "on";
    `env.NAME` and `<benchmark>.<parameter>` are dotted names.
    """

    name: str
    factors: Mapping[str, tuple[Level, ...]]
    description: str = ""
    tags: tuple[str, ...] = ()
    where: str | None = None
    include: tuple[Mapping[str, tuple[Level, ...]], ...] = ()
    run: RunPolicy = RunPolicy()
    site: Site = Site()
    text: str = ""
    source: str = ""
