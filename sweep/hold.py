"""How a combination is held to its NICs here: which ones, by which variables; or why it cannot be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from schemas.attempt import Output, Parsed
from schemas.plan import Combination, Inventory, Node, Trial
from schemas.spec import Site, Way, text
from tasks import benchmarks, launchers, nics, transports
from tasks.transports import Gang

_NOBODY = UUID(int=0)


def way_of(combination: Combination, site: Site) -> Way:
    """The site's way of running with those of all levels of a combination, and the variables that are factors."""
    ways = [site.way]
    for name, levels in site.levels.items():
        level = combination.level(name)
        if level is not None and (way := levels.get(text(level))) is not None:
            ways.append(way)
    env = {
        name.removeprefix("env."): text(level) for name, level in combination.factors.items() if name.startswith("env.")
    }
    return launchers.merge(*ways, Way(env=env))


def starts_ranks(combination: Combination, sizes: Sequence[int | None]) -> bool:
    """Whether a launch of it has ranks that an MPI launcher starts."""
    trial = Trial(_NOBODY, combination, tuple(sizes), 0, 0, _NOBODY, 0, 0)
    nodes = [Node(str(index)) for index in range(combination.nodes)]
    roles = benchmarks.get(combination.benchmark).launch(trial, nodes).roles
    return any(role.ranks is not None and (combination.setup.launcher != "none" or role.ranks > 1) for role in roles)


def held(
    combination: Combination, sizes: Sequence[int | None], site: Site, inventory: Inventory, nodes: Sequence[Node]
) -> Gang | str | None:
    """What holds a launch on these nodes to the NICs that were asked; a reason where it cannot be; None: not asked.

    Where the site itself says how a level of `nics` is run, that holds, and only the NICs' names are worked out.
    """
    asked = combination.level("nics")
    if asked is None:
        return None
    picked = nics.chosen(nodes, site.fabric, int(asked))
    if isinstance(picked, str):
        return picked
    if text(asked) in site.levels.get("nics", {}):
        return Gang({name: tuple(nic.name for nic in each) for name, each in picked.items()})
    if not starts_ranks(combination, sizes):
        return f"{combination.benchmark} starts no MPI ranks here: say by [levels.nics.{asked}] how it takes its NICs"
    stack = combination.setup.stack
    flavour = inventory.flavours.get(stack)
    mpiexec = inventory.tools.get(stack, {}).get("mpiexec")
    way = way_of(combination, site)
    ports = any(nics.is_port(nic) for each in picked.values() for nic in each)
    row = transports.transport(
        "mpi", flavour, way.env, way.args, ports=ports, built="" if mpiexec is None else mpiexec.version
    )
    if row is None:
        return f"nothing is known of how {flavour} takes NICs in this environment: say by [levels.nics.{asked}]"
    gang = transports.hold(nodes, picked, row, combination.ranks_per_node)
    if isinstance(gang, str):
        return gang
    told = {name for env in (gang.env, *(env for envs in gang.ranks.values() for env in envs)) for name in env}
    for name in sorted(told):
        if f"env.{name}" in combination.factors:
            return f"`env.{name}` is a factor, and `nics` sets the same variable: one row cannot carry both labels"
    return gang


def carried(output: Output, parsed: Parsed, names: Sequence[str]) -> dict[int | None, int]:
    """Message size -> how many of the leader's NICs carried traffic while it was measured, where that can be told."""
    looks = output.looks.get(0)
    windows = {
        each.message_size: (each.t_begin, each.t_end)
        for each in parsed.measurements
        if each.t_begin is not None and each.t_end is not None
    }
    if looks is None or not windows:
        return {}
    found = nics.observed(looks.taken, windows, names)
    return {size: count for size, count in found.items() if count is not None}
