"""One spec file and its site in, a checked Spec out; or every problem of both files at once."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping
from pathlib import Path

from schemas.errors import InputError, Problem
from schemas.notation import LARGEST, parse_duration, parse_duration_range, parse_percentage
from schemas.spec import CORE_FACTORS, DEFAULTS, Repeats, Retry, RunPolicy, Spec
from sweep import site as sites
from sweep import ways
from sweep.document import Document, parse, read
from sweep.factors import RUN_KEYS, Catalogue, Factors, read_factors
from sweep.place import site_file
from sweep.table import Table, refused, suggestion
from tasks import benchmarks

_MOST = 10_000
SHORTEST_PERIOD_S = 0.01
"""InfiniBand's counters are refreshed every 10 ms; a look costs 0.1 ms."""


def load(
    path: Path, *, site: Path | None = None, environ: Mapping[str, str], catalogue: Catalogue | None = None
) -> Spec:
    """Load a spec with the site that is in force; InputError with every problem of both files.

    `site` is the file that the user named; without it SWEEP_SITE, ./site.toml and
    ~/.config/fabric-sweep/site.toml are looked at. The site's tables in the spec win, key by key. `catalogue` is
    what there is of benchmarks, by default `tasks.benchmarks`.
    """
    document = read(path, "spec", environ)
    problems: list[Problem] = []
    other: Document | None = None
    try:
        if (found := site_file(site, environ)) is not None:
            other = read(found, "site file", environ)
    except InputError as error:
        problems += error.problems  # told together with those of the spec
    return _spec(document, other, problems, benchmarks if catalogue is None else catalogue)


def reload(spec: tuple[str, str], site: tuple[str, str] | None, environ: Mapping[str, str]) -> Spec:
    """Load a spec again from what an archive holds of it and its site: (path, text) of each.

    InputError with every problem, as when a newer version of ours does not know a key any more.
    """
    document = parse(Path(spec[0]), spec[1], environ)
    other = parse(Path(site[0]), site[1], environ) if site is not None else None
    return _spec(document, other, [], benchmarks)


def _spec(document: Document, other: Document | None, problems: list[Problem], catalogue: Catalogue) -> Spec:
    families = sites.families(catalogue.names())
    top = Table(document, (), document.data)
    below = sites.Given() if other is None else sites.read_file(other, families)
    merged = sites.build([below, sites.read_tables(top, families)], other)
    factors = read_factors(top, catalogue, merged.levels)
    spec = Spec(
        name=top.text("name") or document.path.stem,
        description=top.text("description", empty=True) or "",
        tags=top.texts("tags") or (),
        where=top.text("where"),
        factors=factors.levels,
        include=factors.include,
        run=_run(top.table("run"), factors),
        site=merged,
        text=document.text,
        source=str(document.path),
    )
    top.finish(_homes(factors))
    if problems := [*document.problems, *problems, *(other.problems if other is not None else ())]:
        raise InputError(problems)
    return spec


def _homes(factors: Factors) -> dict[str, str]:
    """Say where keys belong that were found at the top, outside any table."""
    tables = {
        "factors": ["env", *CORE_FACTORS, *factors.levels],
        "run": RUN_KEYS,
        "launch": ("reach", "launcher", "args", "path", "setup"),
        "fabric": ("nic_policy", "link_gbps"),
    }
    return {key: f"it belongs under [{table}]" for table, keys in tables.items() for key in keys}


def _run(table: Table | None, factors: Factors) -> RunPolicy:
    """Read [run]; what is absent keeps the default that RunPolicy declares."""
    if table is None:
        return RunPolicy()
    given = ways.said(
        repeats=_repeats(table),
        pair=_pair(table, factors),
        order=table.choice("order", ("shuffled", "sorted")),
        seed=table.integer("seed", 0, LARGEST),
        concurrency=table.choice("concurrency", ("exclusive", "disjoint")),
        warmup=table.integer("warmup", 0, _MOST),
        timeout=table.parsed("timeout", _timeout),
        retry=_retry(table),
        deadline=table.parsed("deadline", _deadline),
        counters=table.parsed("counters", _counters),
    )
    _refuse_quarantine(table)
    table.finish(dict.fromkeys([*CORE_FACTORS, *factors.levels], "it belongs under [factors]") | ways.SLID)
    return RunPolicy(**given)


def _repeats(table: Table) -> Repeats | None:
    if not table.holds_table("repeats"):
        count = table.integer("repeats", 1, _MOST)
        return None if count is None else Repeats(count, count)
    inner = table.table("repeats")
    assert inner is not None
    low, high = inner.integer("min", 1, _MOST), inner.integer("max", 1, _MOST)
    until = inner.parsed("until", parse_percentage)
    inner.finish()
    if low is None:
        inner.wrong("min", "is missing or wrong", "write the number of launches")
        return None
    if high is not None and high < low:
        inner.wrong("max", f"{high} is less than min = {low}", f"at least {low}")
    elif until is not None or (high is not None and high > low):
        what = "repeating until an interval is narrow is not yet supported"
        table.wrong("repeats", what, f"write how many launches, such as repeats = {low}")
    return Repeats(low, low)


def _pair(table: Table, factors: Factors) -> tuple[str, ...] | None:
    names = table.texts("pair")
    known = [name for name in dict.fromkeys([*DEFAULTS, "benchmark", *factors.levels]) if name != "message_size"]
    for index, name in enumerate(names if names is not None else ()):
        if name == "message_size":
            what = "message_size cannot be paired: one launch measures all sizes"
            table.document.wrong((*table.key, "pair", index), what, "remove it")
        elif name not in known:
            table.document.wrong(
                (*table.key, "pair", index), f"`{name}` is no factor of this spec", suggestion(name, known)
            )
    return names


def _retry(table: Table) -> Retry | None:
    if (inner := table.table("retry")) is None:
        return None
    attempts = inner.integer("attempts", 1, 100)
    wait = inner.parsed("wait", parse_duration_range)
    inner.finish()
    given = ways.said(attempts=attempts)
    return Retry(**given) if wait is None else Retry(**given, wait_min=wait[0], wait_max=wait[1])


def _refuse_quarantine(table: Table) -> None:
    """Check its shape like everything else, and say that nothing honours it today."""
    if (inner := table.table("quarantine")) is None:
        return
    failures, window = inner.integer("failures", 1, _MOST), inner.integer("window", 1, _MOST)
    inner.finish()
    if failures is not None and window is not None and window < failures:
        inner.wrong("window", f"{window} attempts cannot hold {failures} failures", f"at least {failures}")
    table.wrong("quarantine", "taking bad nodes out is not yet supported", "remove it")


def _timeout(value: object) -> float | None:
    if value == "auto":
        return None
    if (seconds := parse_duration(value)) == 0:
        raise refused(value, 'write seconds, a duration such as "15m", or "auto"')
    return seconds


def _counters(value: object) -> float | None:
    """A sampling period in seconds; None for "edges": before, after, and at lines of output."""
    if value == "edges":
        return None
    if (period := parse_duration(value)) < SHORTEST_PERIOD_S:
        raise refused(value, f'write "edges", or a period from {SHORTEST_PERIOD_S * 1000:.0f} ms on, such as "100ms"')
    return period


def _deadline(value: object) -> str:
    """Check a deadline; it stays a text, for only the start of a run makes a moment of it."""
    if isinstance(value, dt.datetime):
        return value.isoformat()
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str):
        if text in ("auto", "none"):
            return text
        with contextlib.suppress(ValueError):  # then it is a duration, or wrong
            return dt.datetime.fromisoformat(text).isoformat()
    try:
        return f"{parse_duration(text):g}s"
    except InputError:
        remedy = 'write "auto", "none", a duration such as "8h", or a time such as "2026-12-24T06:00"'
        raise refused(value, remedy) from None
