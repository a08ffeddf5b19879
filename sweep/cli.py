"""The command line: parse, call, render. Heavy imports happen inside the commands that need them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sweep.lab_cli import app as lab_app

app = typer.Typer(
    name="sweep",
    help="Sweep fabric benchmarks over a cluster with Ray, and keep what was observed in an archive that answers SQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="A first run: `sweep init`, `sweep plan sweep.toml`, `sweep run sweep.toml`, `sweep sql 'FROM results'`.",
)

app.add_typer(lab_app, name="lab", rich_help_panel="First contact")

START, DO, WATCH, ASK, KEEP = "First contact", "Doing", "Watching", "Asking", "Keeping"


class Format(StrEnum):
    """How a listing is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


class AnswerFormat(StrEnum):
    """How an answer in SQL is printed or written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    PARQUET = "parquet"


class ExecutorKind(StrEnum):
    """What carries the attempts."""

    RAY = "ray"
    INLINE = "inline"


Spec = Annotated[Path, typer.Argument(help="The spec: a TOML file that names the factors.", show_default=False)]
_RUN = "A run: its id, the start of it, its name, or `last`."
Run = Annotated[str, typer.Argument(help=_RUN, show_default=False)]
NewestRun = Annotated[str, typer.Argument(help=_RUN)]
Archive = Annotated[
    Path | None,
    typer.Option(
        "--archive", "-a", envvar="SWEEP_ARCHIVE", help="The archive. Default: the site's, else ./sweep-archive."
    ),
]
SiteFile = Annotated[
    Path | None,
    typer.Option("--site", help="The site file. Default: $SWEEP_SITE, ./site.toml, ~/.config/fabric-sweep/site.toml."),
]
Formats = Annotated[Format, typer.Option("--format", "-f", help="How to print.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="RAY_ADDRESS",
        help="A Ray cluster to join, `auto` or HOST:PORT. Default: a private Ray on this machine.",
    ),
]
Kind = Annotated[
    ExecutorKind | None,
    typer.Option(
        "--executor", help="`inline` runs on this machine, without Ray. Default: as the site's `reach` says, else Ray."
    ),
]

Hosts = Annotated[
    Path | None,
    typer.Option(
        "--hosts",
        help='A file with one host a line, for `reach = "ssh"` and "srun". Default: those of the Slurm allocation.',
    ),
]


def _version(asked: bool) -> None:
    if asked:
        import importlib.metadata

        typer.echo(f"fabric-sweep {importlib.metadata.version('fabric-sweep')}")
        raise typer.Exit


@app.callback()
def callback(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Every command explains itself: `sweep COMMAND --help`."""


@app.command(rich_help_panel=START)
def init(
    path: Annotated[Path, typer.Argument(help="Where to write the spec.")] = Path("sweep.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a commented spec that runs on this machine."""
    from sweep.start import write_spec

    typer.echo(write_spec(path, force=force), err=True)


@app.command(rich_help_panel=START)
def doctor(site: SiteFile = None, archive: Archive = None, format: Formats = Format.TABLE) -> None:  # noqa: A002
    """Say what is found on this machine, what is missing, and what to type for it.

    What is `missing` keeps some runs from being had; what is `broken` is there
    and will not work: exit code 3.
    """
    from sweep.doctor import examine

    raise typer.Exit(examine(site, archive, format.value))


@app.command(rich_help_panel=START)
def benchmarks(
    name: Annotated[
        str | None,
        typer.Argument(help="One of them, to see its operations and parameters. Default: all, a line each."),
    ] = None,
    format: Formats = Format.TABLE,  # noqa: A002 - the option's name
) -> None:
    """List the benchmarks, or one benchmark's operations, parameters and defaults."""
    from sweep.start import list_benchmarks

    list_benchmarks(name, format.value)


@app.command(rich_help_panel=DO)
def inventory(
    site: SiteFile = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            envvar="RAY_ADDRESS",
            help="The Ray cluster to look at, `auto` or HOST:PORT. Default: this machine, without Ray.",
        ),
    ] = None,
    executor: Annotated[
        ExecutorKind | None,
        typer.Option("--executor", help="Default: `ray` with an address, else `inline`, this machine without Ray."),
    ] = None,
    hosts: Hosts = None,
) -> None:
    """Print what the nodes have, as TOML.

    `sweep inventory > cluster.toml` on the cluster, and then anywhere:
    `sweep plan --inventory cluster.toml SPEC`.
    """
    from sweep.look import print_inventory

    print_inventory(site, address, executor.value if executor else None, hosts)


@app.command(rich_help_panel=DO)
def plan(
    spec: Spec,
    site: SiteFile = None,
    inventory: Annotated[
        Path | None,
        typer.Option("--inventory", help="What the cluster has, from `sweep inventory`. Default: this machine."),
    ] = None,
    format: Formats = Format.TABLE,  # noqa: A002 - the option's name
) -> None:
    """Show what a run would do: trials, points, launches saved, time, and what is unsupported here and why.

    Nothing is measured, and Ray is not needed. `--format json` prints the whole
    plan, with the identity of every point and trial; csv and markdown a line
    per trial.
    """
    from sweep.look import print_plan

    print_plan(spec, site, inventory, format.value)


@app.command(rich_help_panel=DO)
def run(
    spec: Spec,
    archive: Archive = None,
    site: SiteFile = None,
    address: Address = None,
    executor: Kind = None,
    hosts: Hosts = None,
) -> None:
    """Run a spec. Ctrl-C finishes what runs and stops; twice kills it; `sweep resume` goes on.

    Exit codes: 0 done, all ok; 1 done, some trials not ok; 2 the input is wrong;
    3 the environment is; 4 stopped at the deadline; 130 interrupted.
    """
    from sweep.run import start_run

    raise typer.Exit(start_run(spec, archive, site, address, executor.value if executor else None, hosts))


@app.command(rich_help_panel=DO)
def resume(
    run: NewestRun = "last",
    archive: Archive = None,
    address: Address = None,
    executor: Kind = None,
    hosts: Hosts = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Also try again what failed for good.")] = False,
) -> None:
    """Go on with a run that was interrupted, killed, or stopped at its deadline.

    Only what the archive does not have yet is measured. Exit codes as of
    `sweep run`.
    """
    from sweep.run import resume_run

    raise typer.Exit(resume_run(run, archive, address, executor.value if executor else None, hosts, again=retry_failed))


@app.command(rich_help_panel=WATCH)
def status(run: NewestRun = "last", archive: Archive = None, format: Formats = Format.TABLE) -> None:  # noqa: A002
    """Show how far a run is, also from another terminal while it runs."""
    from sweep.ask import print_status

    print_status(run, archive, format.value)


@app.command("list", rich_help_panel=WATCH)
def list_(archive: Archive = None, format: Formats = Format.TABLE) -> None:  # noqa: A002
    """List the runs of an archive, newest first."""
    from sweep.ask import print_runs

    print_runs(archive, format.value)


@app.command(rich_help_panel=WATCH)
def show(
    run: Run,
    trial: Annotated[
        str | None, typer.Argument(help="A trial: the start of its id. Default: all of them, a line each.")
    ] = None,
    archive: Archive = None,
    format: Formats = Format.TABLE,  # noqa: A002
) -> None:
    """Show a run's trials, or one trial down to its command, environment and raw output.

    `sweep show last` lists the trials of the newest run, `sweep show last 3f2a`
    shows the one whose id begins so. One trial is printed as table or json.
    """
    from sweep.ask import print_trial, print_trials

    if trial is None:
        print_trials(run, archive, format.value)
    else:
        print_trial(run, trial, archive, format.value)


@app.command(rich_help_panel=ASK)
def sql(
    statement: Annotated[
        str | None, typer.Argument(help="SQL, `@FILE` to read it from a file, or `-` for stdin. Default: stdin.")
    ] = None,
    archive: Archive = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Only this run's rows: quick in a large archive. Default: all runs.")
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        AnswerFormat, typer.Option("--format", "-f", help="How to print or write the rows.")
    ] = AnswerFormat.TABLE,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file to write the rows to. Default: stdout.")
    ] = None,
    limit: Annotated[float, typer.Option("--limit", min=0.1, help="Seconds that the answer may take.")] = 600.0,
) -> None:
    """Ask the archive in SQL, read only.

    Tables: runs, events, nodes, attempts, measurements, counters, outputs.
    Views: results (a row per launch and message size), results_all,
    attempts_last, failures, progress. `SHOW TABLES` says what each holds,
    `DESCRIBE results` names its columns. The dialect is DuckDB's:
    `FROM results WHERE nodes = 1` is a query. A long table is paged on a
    terminal.
    """
    from sweep.ask import answer

    answer(statement, archive, run, format.value, output, limit)


@app.command(rich_help_panel=KEEP)
def verify(archive: Archive = None) -> None:
    """Read every file of the archive and name what is corrupt, orphaned or doubled.

    A problem per line on stdout; exit code 3 if there is one.
    """
    from sweep.ask import print_verdict

    raise typer.Exit(print_verdict(archive))
