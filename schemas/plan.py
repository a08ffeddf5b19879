"""What there is (inventory) and what will be done (plan): frozen nouns, made by pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from schemas.spec import DEFAULTS, Level, Spec


@dataclass(frozen=True, slots=True)
class Nic:
    """One port that carries benchmark traffic: `mlx5_0:1`, `eth1`."""

    name: str
    link_layer: str
    """"infiniband" or "ethernet"."""
    rate_gbps: float | None = None
    state: str | None = None
    numa: int | None = None
    address: str | None = None
    firmware: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A program found on the nodes: its absolute path and what it says of its version."""

    name: str
    path: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A host. `nics` None: unknown here, not none."""

    name: str
    address: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None
    nics: tuple[Nic, ...] | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    """Everything else that was found: kernel, CPU, library versions, hashes of configuration files."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a cluster has. Whatever it does not say is unknown here, never unsupported.

    `tools` maps a stack (None for the site's own) to the programs found for it; a stack that is not a key is
    unknown, a program that is not among a known stack's tools is absent.
    """

    cluster: str = "local"
    nodes: tuple[Node, ...] | None = None
    tools: Mapping[str | None, Mapping[str, Tool]] = field(default_factory=dict)
    flavours: Mapping[str | None, str] = field(default_factory=dict)
    """stack -> MPI flavour of its mpiexec: "mpich", "intelmpi", "openmpi4", "openmpi5", "mvapich", "unknown"."""
    sharp: bool | None = None
    """Whether a SHARP library was found on every node; None: unknown here."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How the question is run, as declared: part of history's grouping, never of the question."""

    setup_id: UUID
    cluster: str
    stack: str | None
    launcher: str
    flavour: str | None
    declared: Mapping[str, object]
    """Exactly what `setup_id` hashes."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One level of every factor but message size: shared by all trials that repeat it.

    `factors` holds the non-default levels of the core factors (without benchmark, operation, message_size) and
    every other factor; `parameters` the benchmark's effective parameters, defaults included.
    """

    benchmark: str
    operation: str
    factors: Mapping[str, Level]
    parameters: Mapping[str, Level]
    setup: Setup

    def level(self, name: str) -> Level | None:
        """The level of a factor, its declared default where the spec says nothing."""
        return self.factors.get(name, DEFAULTS.get(name))

    @property
    def nodes(self) -> int:
        """Node count of a launch."""
        return int(self.level("nodes") or 1)

    @property
    def ranks_per_node(self) -> int:
        """Ranks per node of a launch."""
        return int(self.level("ranks_per_node") or 1)


@dataclass(frozen=True, slots=True)
class Trial:
    """One launch that measures all `sizes` of one combination, for one repeat: the unit of work."""

    trial_id: UUID
    combination: Combination
    sizes: tuple[int | None, ...]
    """Bytes, ascending; (None,) where message size is no factor of this benchmark."""
    repeat: int
    """From 0; -1 and below are warm-up launches."""
    slot: int
    """Placement slot: which pair, which node set."""
    block_id: UUID
    block: int
    """Index of the block in the order of execution."""
    position: int
    """Position inside the block."""
    unsupported: str | None = None
    """Why this cannot run here; such a trial becomes an attempt with that outcome and is never launched."""
    members: tuple[int, ...] = ()
    """Positions of its nodes in the inventory, the leader first; empty where the inventory names no nodes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All trials in the order of execution, and what was saved."""

    spec: Spec
    trials: tuple[Trial, ...]
    seed: int
    points: int
    """Distinct questions, message size included."""
    excluded: int
    """Points that `where` removed."""
    launches_saved: int
    """Launches that coalescing saves: what is launched, had it one launch per point and repeat, minus its trials."""
    estimate_s: float | None
    """Expected wall time, from the cost model."""
