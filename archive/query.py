"""The reading half of the archive: one object that answers SQL, and the few questions that `sweep` itself asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from archive import layout, sandbox
from archive.damage import damage
from archive.statement import Statement, accept, refusal
from archive.views import Views, known, listing
from schemas.errors import InputError, Problem

if TYPE_CHECKING:
    import duckdb

_SHOWN = 5
"""How many candidates a message names."""
_ANSWER = "answer"

_RESUME = (
    "trial_id, attempt_id, attempt, phase, outcome, final, sizes, missing, repeat, slot, block_id, block_try, block, "
    "position, setup_id, reason, node_names, start, elapsed_s"
)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run in a listing, by its newest stint."""

    run: str
    stints: int
    name: str | None
    description: str | None
    campaign: str | None
    cluster: str | None
    tags: tuple[str, ...]
    user: str | None
    start: datetime | None
    """When its first stint began."""
    trials: int | None
    """Planned."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """outcome -> trials of phase `measure` whose last attempt ended so."""


class Archive:
    """An archive, or what one run has in it. Every question is answered from what counts at that moment."""

    def __init__(self, path: Path, run: str | None = None) -> None:
        """`path` is an absolute folder; `run` restricts everything to that run."""
        self.path = path
        self.problems: list[Problem] = []
        """Corrupt or missing files that answers had to do without, each once."""
        self._run = run
        self._skip: set[Path] = set()

    def sql(
        self, text: str, *, run: str | None = None, limits: sandbox.Limits | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Answer one SQL statement: a relation over the rows, with `.df()`, `.pl()`, `.arrow()`, `.fetchall()`.

        The whole answer is computed before this returns; files that went away meanwhile make it start over, and
        corrupt ones are left out and named in `problems`. With `run` (as in `resolve`), or where the statement
        confines itself to runs (`run = '…'`), only their files are opened, and their other factors are columns too.
        InputError for a statement that is wrong, does more than read, or needs more than `limits`.
        """
        limits = limits or sandbox.Limits()
        connection = sandbox.connect([self.path], limits)
        statement = accept(sandbox.parse(connection, text), known())
        runs = self._restricted(statement, None if run is None else self.resolve(run))
        gone: set[Path] = set()
        while True:
            answer = self._try(connection, text, statement, runs, limits, gone)
            if answer is not None:
                return answer
            connection = sandbox.connect([self.path], limits)

    def run(self, run: str) -> Archive:
        """Restrict the archive to one run, named as in `resolve`."""
        return Archive(self.path, self.resolve(run))

    def runs(self) -> list[RunRecord]:
        """List the runs, oldest first."""
        stints = self.sql(
            "SELECT run, count(DISTINCT stint) AS stints, max_by(name, stint) AS name, "
            "max_by(description, stint) AS description, max_by(campaign, stint) AS campaign, "
            "max_by(cluster, stint) AS cluster, max_by(tags, stint) AS tags, max_by(user, stint) AS user, "
            "min(start) AS start, max_by(trials, stint) AS trials FROM runs GROUP BY run ORDER BY run"
        )
        outcomes: dict[str, dict[str, int]] = {}
        for run, outcome, trials in self.sql(
            "SELECT run, outcome, count(*) FROM attempts_last WHERE phase = 'measure' GROUP BY ALL ORDER BY ALL"
        ).fetchall():
            outcomes.setdefault(run, {})[outcome] = trials
        return [
            RunRecord(**{**row, "tags": tuple(row["tags"] or ()), "outcomes": outcomes.get(row["run"], {})})
            for row in _dicts(stints)
        ]

    def resolve(self, text: str) -> str:
        """Find the one run that a text means: its id, the unique beginning of one, a run's unique name, or "last".

        InputError, naming the candidates, where there is none or more than one.
        """
        if layout.is_run(text) and self._run in {None, text} and self._live([text]) != layout.Live(self.path):
            return text
        live = layout.live(self.path, self._run)
        ids = sorted({part.run for part in (*live.open, *live.sealed)})
        if text == "last" and ids:
            return ids[-1]
        begun = [run for run in ids if text and run.startswith(text)]
        if len(begun) == 1:
            return begun[0]
        named = [run for run, name in self._names() if name == text]
        if len(named) == 1:
            return named[0]
        if candidates := begun or named:
            raise InputError(Problem("run", f"{text!r} may be {_some(candidates)}", "give more of its id"))
        there = f"there are {_some(ids)}" if ids else "the archive is empty"
        raise InputError(Problem("run", f"there is no run {text!r}", there))

    def run_row(self, run: str) -> dict[str, Any]:
        """Give the `runs` row of a run's newest stint: spec, site and seed among it. InputError if there is none."""
        rows = _dicts(self._of(run).sql("SELECT * FROM runs ORDER BY stint DESC LIMIT 1"))
        if not rows:
            raise InputError(Problem("run", f"there is no run {run!r}"))
        return rows[0]

    def attempts(self, run: str) -> list[dict[str, Any]]:
        """Give what a resume needs of every attempt of a run, in order of start."""
        return _dicts(self._of(run).sql(f"SELECT {_RESUME} FROM attempts ORDER BY start, attempt"))  # noqa: S608 - ours

    def measured(self, run: str) -> set[tuple[UUID, int, int]]:
        """Give the (point, repeat, slot) of a run that have whole measurements: they need not be launched again."""
        text = (
            "SELECT DISTINCT point_id, repeat, slot FROM measurements "
            "WHERE phase = 'measure' AND partial IS DISTINCT FROM true"
        )
        return set(self._of(run).sql(text).fetchall())

    def output(self, run: str, attempt_id: UUID) -> list[dict[str, Any]]:
        """Give what an attempt printed, a row per role, node and stream: text, stamps, size, truncated."""
        text = "SELECT role, node, stream, text, stamps, size, truncated FROM outputs"
        wanted = f"{text} WHERE attempt_id = '{UUID(str(attempt_id))}' ORDER BY role, node, stream"
        return _dicts(self._of(run).sql(wanted))

    def _of(self, run: str) -> Archive:
        """Restrict to a run that may have no rows yet."""
        restricted = Archive(self.path, run)
        restricted.problems, restricted._skip = self.problems, self._skip
        return restricted

    def _names(self) -> list[tuple[str, str | None]]:
        return self.sql("SELECT run, max_by(name, stint) FROM runs GROUP BY run ORDER BY run").fetchall()

    def _restricted(self, statement: Statement, run: str | None) -> frozenset[str] | None:
        chosen = [frozenset({each}) for each in (self._run, run) if each is not None]
        if statement.runs is not None:
            chosen.append(statement.runs)
        return frozenset.intersection(*chosen) if chosen else None

    def _live(self, runs: Collection[str] | None) -> layout.Live:
        if runs is None:
            return layout.live(self.path)
        found = [layout.live(self.path, run) for run in sorted(runs)]
        return layout.Live(
            self.path,
            open=tuple(part for each in found for part in each.open),
            sealed=tuple(part for each in found for part in each.sealed),
        )

    def _try(
        self,
        connection: duckdb.DuckDBPyConnection,
        text: str,
        statement: Statement,
        runs: Collection[str] | None,
        limits: sandbox.Limits,
        gone: set[Path],
    ) -> duckdb.DuckDBPyRelation | None:
        """Answer from one listing; None where files of it turned out to be gone or damaged: then start over."""
        import duckdb

        live = self._live(runs) if statement.tables else layout.Live(self.path)
        views = Views(connection, live, self._skip, statement.tables if runs is not None else ())
        query = listing() if statement.lists else f"FROM ({text}\n)" if statement.describes else text

        def work() -> None:
            for name in sorted(statement.tables):
                views.make(name)
            connection.execute(f"CREATE TEMP TABLE {_ANSWER} AS {query}")

        try:
            sandbox.limited(connection, limits, work)
        except (duckdb.Error, UnicodeDecodeError) as error:
            found = damage(error, views.files)
            if found is None:
                raise refusal(sandbox.one_line(error), "") from error
            missing = dict.fromkeys(found.gone & gone, "is missing: a fresh listing names it, and it is not there")
            gone |= found.gone
            self._leave_out({**found.faults, **missing})
            return None
        return connection.table(_ANSWER)

    def _leave_out(self, faults: Mapping[Path, str]) -> None:
        self._skip.update(faults)
        remedy = "answered without it; `sweep verify` lists all such files"
        self.problems.extend(Problem(str(path), what, remedy) for path, what in sorted(faults.items()))


def _dicts(relation: duckdb.DuckDBPyRelation) -> list[dict[str, Any]]:
    columns = relation.columns
    return [dict(zip(columns, row, strict=True)) for row in relation.fetchall()]


def _some(runs: list[str]) -> str:
    shown = ", ".join(runs[-_SHOWN:])
    return f"{shown} and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else shown
