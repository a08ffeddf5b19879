"""The site: how things are run on a cluster. Found, read, and merged with the same tables of a spec."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from schemas.spec import Fabric, Site, Way
from sweep import topology, ways
from sweep.document import Document, read
from sweep.place import site_file
from sweep.table import Table, not_yet, refused
from tasks.nics import selector_problem

REACHES = ("ray", "local", "ssh", "srun")

_RAILS = re.compile(r"rails:[0-9]+(,[0-9]+)*")
_SPEC_KEYS = ("name", "description", "tags", "where", "factors", "include", "run")


@dataclass(frozen=True, slots=True)
class Given:
    """What one file says of a site, and nothing that it does not say: fields of Site, Way and Fabric by name."""

    site: Mapping[str, Any] = field(default_factory=dict)
    way: ways.Given = field(default_factory=dict)
    fabric: Mapping[str, Any] = field(default_factory=dict)
    levels: Mapping[str, Mapping[str, ways.Given]] = field(default_factory=dict)


def load_site(site: Path | None, environ: Mapping[str, str]) -> Site:
    """Load the site alone, for commands that have no spec; InputError with every problem of its file.

    `site` is the file that the user named, else `site_file` looks; without any file everything is at its default.
    """
    found = site_file(site, environ)
    if found is None:
        return Site()
    document = read(found, "site file", environ)
    given = read_file(document, families())
    if document.problems:
        raise InputError(document.problems)
    return build([given], document)


def families(names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Name the first parts of dotted factor names: "env" and the benchmark modules, by default those we have."""
    if names is None:
        from tasks import benchmarks

        names = benchmarks.names()
    return ("env", *names)


def read_file(document: Document, families: Collection[str]) -> Given:
    """Read a whole site file; every problem goes into the document."""
    top = Table(document, (), document.data)
    given = read_tables(top, families)
    top.finish(dict.fromkeys(_SPEC_KEYS, "it belongs into a spec"))
    return given


def read_tables(top: Table, families: Collection[str]) -> Given:
    """Take the site's keys and tables from the top of a site file or of a spec."""
    site = ways.said(
        cluster=top.text("cluster"), archive=top.parsed("archive", lambda value: _archive(value, top.document))
    )
    way: ways.Given = {}
    if (launch := top.table("launch")) is not None:
        site |= ways.said(
            reach=launch.choice("reach", REACHES),
            launcher=launch.choice("launcher", ways.LAUNCHERS, ways.LAUNCHERS_LATER),
        )
        way = ways.read_way(launch)
        launch.finish(ways.SLID)
    levels = top.table("levels")
    return Given(site, way, _fabric(top.table("fabric")), {} if levels is None else ways.read_levels(levels, families))


def build(given: Iterable[Given], document: Document | None) -> Site:
    """Merge what several files say into one site, a later one winning key by key; `document` is the site file."""
    site: dict[str, Any] = {}
    way: ways.Given = {}
    fabric: dict[str, Any] = {}
    levels: dict[str, dict[str, ways.Given]] = {}
    for each in given:
        site |= each.site
        fabric |= each.fabric
        way = ways.merge(way, each.way)
        for factor, more in each.levels.items():
            known = levels.setdefault(factor, {})
            known |= {level: ways.merge(known.get(level, {}), above) for level, above in more.items()}
    return Site(
        **site,
        way=Way(**way),
        fabric=Fabric(**fabric),
        levels={factor: {level: Way(**each) for level, each in known.items()} for factor, known in levels.items()},
        text="" if document is None else document.text,
        source="" if document is None else str(document.path),
    )


def _fabric(table: Table | None) -> dict[str, Any]:
    if table is None:
        return {}
    fabric = ways.said(
        nics=table.parsed("nics", _nics),
        nic_policy=table.parsed("nic_policy", _nic_policy),
        link_gbps=table.number("link_gbps", 0.001, 1e6),
        topology=table.parsed("topology", lambda value: topology.read(value, table.document)),
    )
    table.finish(ways.SLID)
    return fabric


def _archive(value: object, document: Document) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise refused(value, "write the path of a folder in quotes")
    if "://" in value:
        raise not_yet(f'an archive in an object store ("{value}")', "today: a folder")
    return document.absolute(value)


def _nics(value: object) -> tuple[str, ...] | Mapping[str, str]:
    if isinstance(value, list) and value and all(isinstance(each, str) and each for each in value):
        return tuple(value)
    remedy = (
        'write names, such as ["mlx5_0:1"], or a selector: { link_layer = "infiniband", name = "mlx5_*", rail = "0,4" }'
    )
    if isinstance(value, dict) and value and all(isinstance(each, str) for each in value.values()):
        if (problem := selector_problem(value)) is None:
            return dict(value)
        remedy = f"{problem}; {remedy}"
    raise refused(value, remedy)


def _nic_policy(value: object) -> str:
    if isinstance(value, str) and (value in ("spread", "first") or _RAILS.fullmatch(value)):
        return value
    raise refused(value, 'one of: "spread", "first", "rails:0,4"')
