"""Asks the nodes what they have: the live inventory that a plan is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schemas.plan import Inventory, Tool
from schemas.spec import Site, Way
from sweep.topology import with_leaves
from tasks import benchmarks, execute, launchers
from tasks.executor import Executor

VERSION_ARGUMENTS: Mapping[str, tuple[str, ...]] = {"mpiexec": ("--version",), "srun": ()}
SURVEY_S = 120.0


async def survey(executor: Executor, site: Site, names: Iterable[str]) -> Inventory:
    """What the opened executor's nodes have for these benchmark modules, under each of the site's stacks."""
    programs = dict(VERSION_ARGUMENTS)
    for name in names:
        programs |= dict(benchmarks.get(name).programs)
    stacks: dict[str | None, Way] = {None: site.way}
    stacks |= {name: launchers.merge(site.way, way) for name, way in site.levels.get("stack", {}).items()}
    tools: dict[str | None, dict[str, Tool]] = {}
    sharp = True
    for stack, way in stacks.items():
        found: list[dict[str, Tool]] = []
        for node in range(len(executor.nodes)):
            reply = await executor.ask(node, facts_request(way, programs), SURVEY_S)
            found.append(execute.tools(reply))
            sharp = sharp and "sharp_libraries" in execute.node(reply).facts
        tools[stack] = {name: tool for name, tool in found[0].items() if all(name in each for each in found)}
    return Inventory(
        cluster=site.cluster,
        nodes=with_leaves(executor.nodes, site.fabric.topology),
        tools=tools,
        flavours={
            stack: launchers.flavour(each["mpiexec"].version) for stack, each in tools.items() if "mpiexec" in each
        },
        sharp=sharp,
    )


def facts_request(way: Way, programs: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    """The node part's `facts` request for one way of running."""
    return {
        "op": "facts",
        "programs": {name: list(arguments) for name, arguments in programs.items()},
        "path": list(way.path),
        "env": dict(way.env),
        "setup": list(way.setup),
    }
