"""Which leaf switch each node hangs on: from a table of the site, or from Slurm's `topology.conf`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from schemas.errors import InputError, Problem
from schemas.plan import Node
from sweep.document import Document
from sweep.table import refused, words

MOST = 100_000
"""Nodes that one list may name."""

_HOSTS = re.compile(r"[A-Za-z0-9._\-\[\],]+")
"""A host list without the operators that other tools know: groups, differences, steps."""
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})(?=[,\]])")
_HELP = 'write leaf = ["n[1-4]", "n7"] for each leaf switch, or the path of a Slurm topology.conf in quotes'


def read(value: object, document: Document) -> Mapping[str, str]:
    """A node's name -> its leaf switch, from what stands at `fabric.topology`; InputError with every problem."""
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return from_slurm(Path(document.absolute(value)))
    if not isinstance(value, dict) or not value:
        raise refused(value, _HELP)
    for lists in value.values():
        if not isinstance(lists, list) or not all(isinstance(each, str) for each in lists):
            raise refused(lists, _HELP)
    return _leaves((leaf, each, f"leaf `{leaf}`") for leaf, lists in value.items() for each in lists)


def from_slurm(path: Path) -> Mapping[str, str]:
    """A node's name -> its leaf switch, from a `topology.conf` of Slurm's plugin topology/tree (topology.conf(5))."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(Problem("", f"{path} cannot be read: {why}", "name a Slurm topology.conf")) from error
    found = _leaves(
        (keys["switchname"], keys["nodes"], f"{path}:{number}")
        for number, keys in _slurm_lines(text)
        if "switchname" in keys and "nodes" in keys
    )
    if not found:
        raise InputError(Problem("", f"{path} names no node", "a leaf switch is a line `SwitchName=s1 Nodes=n[1-4]`"))
    return found


def with_leaves(nodes: Sequence[Node], leaves: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes with their fact `leaf`, by full or by short name; a node that `leaves` does not name is as it was."""

    def known(node: Node) -> Node:
        leaf = leaves.get(node.name) or leaves.get(node.name.partition(".")[0])
        return node if leaf is None else replace(node, facts={**node.facts, "leaf": leaf})

    return tuple(map(known, nodes))


def hosts(text: str) -> tuple[str, ...]:
    """The names of a host list as Slurm writes them: `n[1-4,7]`, `r[1-2]n[01-16]`; InputError for anything else."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    wrong = InputError(Problem("", f"{words(text)} is no list of hosts", 'write names such as "n[1-4,7]" or "n1,n2"'))
    many = InputError(Problem("", f"{words(text)} names too many hosts", f"at most {MOST:,}"))
    if not _HOSTS.fullmatch(text):
        raise wrong
    if any(int(last) - int(first) >= MOST for first, last in _RANGE.findall(text)):
        raise many  # before it fills the memory
    try:
        named = NodeSet(text, resolver=RESOLVER_NOGROUP)
        if len(named) > MOST:
            raise many
    except NodeSetException as error:
        raise wrong from error
    return tuple(map(str, named))


def _leaves(lists: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Node -> leaf, from (leaf, its hosts, where that stands)."""
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for leaf, text, where in lists:
        try:
            names = hosts(text)
        except InputError as error:
            problems += [Problem("", f"{where}: {each.what}", each.remedy) for each in error.problems]
            continue
        for name in names:
            if found.setdefault(name, leaf) != leaf:
                what = f"{where}: {name} hangs on `{found[name]}` already"
                problems.append(Problem("", what, "a node has one leaf switch"))
    if problems:
        raise InputError(problems)
    return found


def _slurm_lines(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Each line's number and its `Key=value` pairs, keys in lower case; a backslash at the end joins two lines."""
    number, held = 0, ""
    for index, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].rstrip()
        number = number if held else index
        held += content.removesuffix("\\") + " "
        if not content.endswith("\\"):
            pairs = (each.partition("=") for each in held.split())
            yield number, {key.lower(): value for key, _, value in pairs}
            held = ""
