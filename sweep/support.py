"""What a cluster cannot provide, and why: decided before anything is launched."""

from __future__ import annotations

from schemas.plan import Combination, Inventory
from schemas.spec import Site
from tasks import benchmarks


def refusal(combination: Combination, site: Site, inventory: Inventory) -> str | None:
    """Why this combination cannot be measured here; None if it can, or if the inventory does not say."""
    for check in (_stack, _nodes, _nics, _sharp, _programs):
        if (reason := check(combination, site, inventory)) is not None:
            return reason
    return None


def _stack(combination: Combination, site: Site, inventory: Inventory) -> str | None:
    stack = combination.setup.stack
    known = site.levels.get("stack", {})
    if stack is None or stack in known:
        return None
    have = ", ".join(sorted(known)) if known else "none"
    return f"the site file describes no stack {stack!r} (it has: {have})"


def _nodes(combination: Combination, site: Site, inventory: Inventory) -> str | None:
    if inventory.nodes is None or combination.nodes <= len(inventory.nodes):
        return "launches over several nodes are not yet built" if combination.nodes > 1 else None
    return f"needs {combination.nodes} nodes, {inventory.cluster} has {len(inventory.nodes)}"


def _nics(combination: Combination, site: Site, inventory: Inventory) -> str | None:
    asked = combination.level("nics")
    if asked is None:
        return None
    counts = [len(node.nics) for node in inventory.nodes or () if node.nics is not None]
    if counts and int(asked) > min(counts):
        return f"needs {asked} NICs per node, a node of {inventory.cluster} has {min(counts)}"
    return "choosing NICs is not yet built"


def _sharp(combination: Combination, site: Site, inventory: Inventory) -> str | None:
    asked = combination.level("sharp")
    if asked is None or (asked == "off" and inventory.sharp is False):
        return None
    if inventory.sharp is False:
        return "no SHARP library was found on the nodes"
    return "switching SHARP is not yet built"


def _programs(combination: Combination, site: Site, inventory: Inventory) -> str | None:
    stack = combination.setup.stack
    if stack not in inventory.tools:
        return None
    module = benchmarks.get(combination.benchmark)
    needed = module.needs(combination.operation, combination.parameters)
    missing = benchmarks.unusable(module, needed, inventory.tools[stack])
    if missing:
        where = f" of stack {stack}" if stack is not None else ""
        return f"{', '.join(missing)} was not found on the PATH{where}, or is of no use; {module.install}"
    return None
