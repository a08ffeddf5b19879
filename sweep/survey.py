"""Asks the nodes what they have: the live inventory that a plan is checked against."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from schemas.plan import Inventory, Tool
from schemas.spec import Site, Way
from sweep.topology import with_leaves
from tasks import benchmarks, execute, launchers
from tasks.executor import Executor

VERSION_ARGUMENTS: Mapping[str, tuple[str, ...]] = {"mpiexec": ("--version",), "srun": ()}
SURVEY_S = 120.0
_LIBRARY = re.compile(r"lib\w+\.so\.\d+")
"""How the fact is called that tells a library's version."""


async def survey(executor: Executor, site: Site, names: Iterable[str]) -> Inventory:
    """What the opened executor's nodes have for these benchmark modules, under each of the site's stacks."""
    programs = dict(VERSION_ARGUMENTS)
    for name in names:
        programs |= dict(benchmarks.get(name).programs)
    stacks: dict[str | None, Way] = {None: site.way}
    stacks |= {name: launchers.merge(site.way, way) for name, way in site.levels.get("stack", {}).items()}
    tools: dict[str | None, dict[str, Tool]] = {}
    sharp = True
    versions: list[dict[str, str]] = [{} for _ in executor.nodes]
    for stack, way in stacks.items():
        request = facts_request(way, programs)
        asked = (executor.ask(node, request, SURVEY_S) for node in range(len(executor.nodes)))
        found: list[dict[str, Tool]] = []
        for reply, more in zip(await asyncio.gather(*asked), versions, strict=True):
            found.append(execute.tools(reply))
            more.update(_versions(reply, stack, more))
            sharp = sharp and "sharp_libraries" in execute.node(reply).facts
        tools[stack] = {name: tool for name, tool in found[0].items() if all(name in each for each in found)}
    return Inventory(
        cluster=site.cluster,
        nodes=with_leaves(
            [replace(node, facts={**node.facts, **more}) for node, more in zip(executor.nodes, versions, strict=True)],
            site.fabric.topology,
        ),
        tools=tools,
        flavours={
            stack: launchers.flavour(each["mpiexec"].version) for stack, each in tools.items() if "mpiexec" in each
        },
        sharp=sharp,
    )


def _versions(reply: Mapping[str, Any], stack: str | None, known: Mapping[str, str]) -> dict[str, str]:
    """Versions of the libraries that a stack's programs find; of a named stack those that the site's own has not."""
    found = {name: str(text) for name, text in reply["facts"].items() if _LIBRARY.fullmatch(name)}
    if stack is None:
        return found
    return {f"{name} of stack {stack}": text for name, text in found.items() if known.get(name) != text}


def facts_request(way: Way, programs: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    """The node part's `facts` request for one way of running."""
    return {
        "op": "facts",
        "programs": {name: list(arguments) for name, arguments in programs.items()},
        "path": list(way.path),
        "env": dict(way.env),
        "setup": list(way.setup),
        "versions": True,
    }
