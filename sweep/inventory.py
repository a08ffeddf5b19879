"""An inventory as a TOML file: `sweep inventory > cluster.toml` there, `sweep plan --inventory cluster.toml` here.

What the file does not say is unknown here, never unsupported. The programs of a stack stand under
[stacks.<stack>.tools]; the site's own stack, which has no name, is written as "default".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from schemas.errors import InputError
from schemas.plan import Inventory, Nic, Node, Tool
from sweep.document import read
from sweep.table import Table, words

DEFAULT = "default"
FLAVOURS = ("mpich", "intelmpi", "openmpi4", "openmpi5", "mvapich", "unknown")
LINK_LAYERS = ("infiniband", "ethernet")


def to_toml(inventory: Inventory) -> str:
    """Write an inventory as the text that `from_toml` reads back."""
    import tomli_w

    document: dict[str, object] = {"cluster": inventory.cluster}
    if inventory.sharp is not None:
        document["sharp"] = inventory.sharp
    if inventory.nodes is not None:
        document["nodes"] = [_node(node) for node in inventory.nodes]
    stacks: dict[str, dict[str, object]] = {}
    for stack in dict.fromkeys([*inventory.tools, *inventory.flavours]):
        written = stacks[DEFAULT if stack is None else stack] = {}
        if stack in inventory.flavours:
            written["flavour"] = inventory.flavours[stack]
        if stack in inventory.tools:
            written["tools"] = {name: _given(tool, "name") for name, tool in inventory.tools[stack].items()}
    if stacks:
        document["stacks"] = stacks
    return tomli_w.dumps(document)


def from_toml(path: Path) -> Inventory:
    """Read an inventory file; InputError with every problem of it."""
    document = read(path, "inventory", {})
    top = Table(document, (), document.data)
    tools, flavours = _stacks(top.table("stacks"))
    inventory = Inventory(
        cluster=top.text("cluster") or "local",
        nodes=_nodes(top),
        tools=tools,
        flavours=flavours,
        sharp=top.boolean("sharp"),
    )
    top.finish()
    if document.problems:
        raise InputError(document.problems)
    return inventory


def _given(noun: Nic | Tool, *but: str) -> dict[str, object]:
    """Keep a noun's fields that say something: TOML has no null."""
    values = {each.name: getattr(noun, each.name) for each in fields(noun) if each.name not in but}
    return {name: value for name, value in values.items() if value is not None}


def _node(node: Node) -> dict[str, object]:
    written: dict[str, object] = {"name": node.name}
    if node.address:
        written["address"] = node.address
    if node.cpus is not None:
        written["cpus"] = node.cpus
    if node.memory_bytes is not None:
        written["memory_bytes"] = node.memory_bytes
    if node.facts:
        written["facts"] = dict(node.facts)
    if node.nics is not None:
        written["nics"] = [_given(nic) for nic in node.nics]
    return written


def _stacks(
    table: Table | None,
) -> tuple[Mapping[str | None, Mapping[str, Tool]], Mapping[str | None, str]]:
    tools: dict[str | None, dict[str, Tool]] = {}
    flavours: dict[str | None, str] = {}
    for name in table.left() if table is not None else ():
        assert table is not None
        if (stack := table.table(name)) is None:
            continue
        key = None if name == DEFAULT else name
        if (flavour := stack.choice("flavour", FLAVOURS)) is not None:
            flavours[key] = flavour
        if (found := stack.table("tools")) is not None:
            each = {program: _tool(program, found.table(program)) for program in found.left()}
            tools[key] = {program: tool for program, tool in each.items() if tool is not None}
        stack.finish()
    return tools, flavours


def _facts(table: Table | None) -> dict[str, str]:
    if table is None:
        return {}
    return {name: table.text(name, empty=True) or "" for name in table.left()}


def _tool(name: str, table: Table | None) -> Tool | None:
    if table is None:
        return None
    path = table.required("path", "write the program's absolute path")
    version = table.text("version", empty=True) or ""
    table.finish()
    return Tool(name, path, version)


def _nodes(top: Table) -> tuple[Node, ...] | None:
    if (tables := top.tables("nodes")) is None:
        return None
    nodes = tuple(_read_node(table) for table in tables)
    seen: set[str] = set()
    for table, node in zip(tables, nodes, strict=True):
        if node.name and node.name in seen:
            table.wrong("name", f"a second node {words(node.name)}", "names of nodes are unique")
        seen.add(node.name)
    return nodes


def _read_node(table: Table) -> Node:
    nics = table.tables("nics")
    node = Node(
        name=table.required("name", "write the node's host name"),
        address=table.text("address", empty=True) or "",
        cpus=table.integer("cpus", 0),
        memory_bytes=table.integer("memory_bytes", 0, 2**63 - 1),
        nics=None if nics is None else tuple(_read_nic(nic) for nic in nics),
        facts=_facts(table.table("facts")),
    )
    table.finish()
    return node


def _read_nic(table: Table) -> Nic:
    name = table.required("name", 'write its name, such as "mlx5_0:1"')
    if "link_layer" not in table:
        table.wrong("link_layer", "is missing", f"one of: {', '.join(LINK_LAYERS)}")
    nic = Nic(
        name=name,
        link_layer=table.choice("link_layer", LINK_LAYERS) or "",
        rate_gbps=table.number("rate_gbps", 0, 1e6),
        state=table.text("state", empty=True),
        numa=table.integer("numa", -1),
        address=table.text("address", empty=True),
        firmware=table.text("firmware", empty=True),
    )
    table.finish()
    return nic
