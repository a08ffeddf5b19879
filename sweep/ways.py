"""Ways of running, as a file gives them: setup lines, search paths, environment, arguments, per level or for all."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

from schemas.errors import InputError, Problem
from schemas.notation import parse_number
from schemas.spec import CORE_FACTORS
from sweep.document import Document
from sweep.table import Table, refused, words

LAUNCHERS = ("mpiexec", "srun", "none")
LAUNCHERS_LATER = ("torchrun",)

SLID = dict.fromkeys(
    ("name", "description", "tags", "where", "cluster", "archive"), "move it above that line, before the first table"
)
"""Top-level keys that are found inside a table when they stand below its header, and the remedy."""

Given = dict[str, Any]
"""The fields of `Way` that a file gives, and no others: what it does not say must not win over what another says."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MARKER = "SWEEP_ATTEMPT"  # by which the node part finds the processes of an attempt


def read_way(table: Table) -> Given:
    """Take setup, path, env and args from a table."""
    document = table.document
    return said(
        setup=table.texts("setup"),
        path=table.parsed("path", lambda value: _paths(value, document)),
        env=table.parsed("env", lambda value: _environment(value, document)),
        args=table.texts("args"),
    )


def read_levels(table: Table, families: Collection[str]) -> dict[str, dict[str, Given]]:
    """Read [levels.<factor>.<level>]; a dotted factor may be quoted or nested, as under [factors].

    `families` are the first parts of dotted names: "env" and the names of the benchmark modules.
    """
    levels: dict[str, dict[str, Given]] = {}
    for name in table.left():
        if (factor := table.table(name)) is None:
            continue
        inner = (
            [(f"{name}.{key}", factor.table(key)) for key in factor.left()] if name in families else [(name, factor)]
        )
        for full, each in inner:
            if each is not None and _known(full, each):
                levels.setdefault(full, {}).update(_read_factor(full, each))
    return levels


def merge(below: Given, above: Given) -> Given:
    """Merge two ways key by key, `above` winning; environments variable by variable."""
    merged = {**below, **above}
    if "env" in merged:
        merged["env"] = {**below.get("env", {}), **above.get("env", {})}
    return merged


def variable(name: str) -> str:
    """Check the name of an environment variable."""
    if not _VARIABLE.fullmatch(name):
        raise InputError(Problem("", f"`{name}` is no name of an environment variable", "letters, digits and _ only"))
    if name == _MARKER:
        raise InputError(Problem("", f"{_MARKER} is ours: it marks the processes of an attempt", "choose another name"))
    return name


def value_of(name: str, value: object) -> str:
    """Check the value of an environment variable; numbers become text."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or "\0" in str(value):
        what = f"{words(value)} is no value of an environment variable"
        raise InputError(Problem("", what, f'write a text, such as {name} = "1"'))
    return str(value)


def said(**values: object) -> Given:
    """Keep what a file says: None is what it does not."""
    return {name: value for name, value in values.items() if value is not None}


def _known(factor: str, table: Table) -> bool:
    """Whether a factor may have levels here: any of the user's own, but none that looks misspelt."""
    if factor in CORE_FACTORS:
        return True
    near = difflib.get_close_matches(factor, CORE_FACTORS, n=1, cutoff=0.8)
    if near:
        table.document.wrong(table.key, f"unknown factor `{factor}`", f"did you mean `{near[0]}`?")
    return not near


def _read_factor(factor: str, table: Table) -> dict[str, Given]:
    if factor in ("message_size", "benchmark", "operation"):
        what = f"a level of `{factor}` cannot bring its own way of running"
        table.document.wrong(table.key, what, "describe it as a level of `stack`, or for all under [launch]")
        return {}
    ways: dict[str, Given] = {}
    for level in table.left():
        if factor == "stack" and level == "default":
            table.wrong(level, "`default` is what no stack is called", "use [launch] for it, or choose another name")
        if (each := table.table(level)) is not None:
            ways[_level(factor, level)] = _read_level(factor, each)
    return ways


def _read_level(factor: str, table: Table) -> Given:
    way = read_way(table) | said(launcher=table.choice("launcher", LAUNCHERS, LAUNCHERS_LATER))
    if "launcher" in way and factor != "stack":
        remedy = "today only a level of `stack` may have one"
        table.wrong("launcher", f"a launcher for a level of `{factor}` is not yet supported", remedy)
    if (container := table.table("container")) is not None:
        container.text("engine")
        container.text("image")
        container.texts("mounts")
        container.finish(SLID)
        table.wrong(
            "container", "running in a container is not yet supported", "run on the host, with `setup` and `path`"
        )
    table.finish(SLID)
    return way


def _level(factor: str, level: str) -> str:
    """Spell a level as loaded factors do: sharp is "off" or "on", counts are plain numbers."""
    if factor == "sharp":
        return {"true": "on", "false": "off"}.get(level, level)
    if factor in ("nodes", "ranks_per_node", "nics"):
        try:
            return str(parse_number(level))
        except InputError:
            return level
    return level


def _paths(value: object, document: Document) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each and "\0" not in each for each in value):
        raise refused(value, 'write a list of folders, such as ["/opt/nccl-tests/build"]')
    return tuple(document.absolute(each) for each in value)


def _environment(value: object, document: Document) -> Mapping[str, str]:
    """Read a table of variables; a value beginning with ./ or ../ is a path that starts at the file's folder."""
    if not isinstance(value, dict):
        raise refused(value, 'write a table of variables, such as { UCX_TLS = "tcp,self" }')
    read = {variable(name): value_of(name, each) for name, each in value.items()}
    return {name: document.absolute(text) if text.startswith(("./", "../")) else text for name, text in read.items()}
