"""What a cluster cannot provide, and why: decided before anything is launched."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.plan import Combination, Inventory, Tool
from schemas.spec import Site
from sweep.hold import held, starts_ranks
from sweep.placement import refuses
from tasks import benchmarks


def refusal(combination: Combination, site: Site, inventory: Inventory) -> str | None:
    """Why this combination cannot be measured here; None if it can, or if the inventory does not say."""
    for check in (_stack, _nodes, _sharp, _programs):
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
    if inventory.nodes is None:
        return None
    if combination.nodes <= len(inventory.nodes):
        return refuses(str(combination.level("placement")), combination.nodes, inventory.nodes)
    return f"needs {combination.nodes} nodes, {inventory.cluster} has {len(inventory.nodes)}"


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
    tools = inventory.tools[stack]
    module = benchmarks.get(combination.benchmark)
    needed = module.needs(combination.operation, combination.parameters)
    for name in benchmarks.unusable(module, needed, tools):
        found = useless(tools[name]) if name in tools else f"{name} was not found on the PATH{_of(stack)}"
        return f"{found}; {module.install}"
    return None


def useless(tool: Tool) -> str:
    """Why a program that was found is of no use: the last line of what it says instead of its version."""
    said = tool.version.strip().splitlines()
    return f"{tool.path} is of no use here (it says {said[-1][:120] if said else ''!r})"


def without_launcher(combination: Combination, sizes: Sequence[int | None], inventory: Inventory) -> str | None:
    """Why no ranks can be started for a launch of these sizes; None if they can, or if it has none."""
    stack, launcher = combination.setup.stack, combination.setup.launcher
    if (tools := inventory.tools.get(stack)) is None:
        return None
    if launcher == "mpiexec" and "mpiexec" in tools and inventory.flavours.get(stack) != "unknown":
        return None
    if not starts_ranks(combination, sizes):
        return None
    if launcher == "srun":
        missing = (
            f"srun was not found on the PATH{_of(stack)}; install Slurm's client, or name its folder in [launch] path"
        )
        return None if "srun" in tools else missing
    if launcher != "mpiexec":
        return f'launcher "{launcher}" starts no ranks; set launcher = "mpiexec" in [launch]'
    if "mpiexec" not in tools:
        return f"mpiexec was not found on the PATH{_of(stack)}; install an MPI, or name its folder in [launch] path"
    return unknown_flavour(tools["mpiexec"])


def without_ranks(combination: Combination, sizes: Sequence[int | None]) -> str | None:
    """Why a launch would carry the label of more nodes than it runs on; None if its ranks are on all of them."""
    if combination.nodes == 1 or starts_ranks(combination, sizes):
        return None
    remedy = 'start it as ranks (command.launcher = "mpiexec")'
    return f"it starts no ranks, so it would run on one node of {combination.nodes}; {remedy}, or ask for nodes = 1"


def without_nics(combination: Combination, sizes: Sequence[int | None], site: Site, inventory: Inventory) -> str | None:
    """Why a launch cannot be held to the NICs that were asked; None if it can, or if none were asked."""
    if inventory.nodes is None or any(node.nics is None for node in inventory.nodes):
        return None  # unknown here
    found = held(combination, sizes, site, inventory, inventory.nodes)
    return found if isinstance(found, str) else None


def unknown_flavour(mpiexec: Tool) -> str:
    """Why an mpiexec cannot be used, and what can."""
    said = next(iter(mpiexec.version.splitlines()), "")
    remedy = "use that of MPICH, Intel MPI, Open MPI or MVAPICH"
    return f"{mpiexec.path} is of no flavour we know (its --version says {said[:120]!r}); {remedy}"


def _of(stack: str | None) -> str:
    return f" of stack {stack}" if stack is not None else ""
