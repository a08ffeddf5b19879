"""`sweep lab`: a fabric in a box on the command line."""

from __future__ import annotations

import datetime as dt
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sweep.lab import LabStatus

app = typer.Typer(
    help="A fabric in a box: hosts with NICs of a chosen rate and a Ray node each, on this one Linux machine.",
    epilog="A first lab: `sweep lab up`, `sweep lab run examples/lab.toml`, `sweep lab down`. No root is needed.",
    no_args_is_help=True,
)


class LabFormat(StrEnum):
    """How `status` is printed."""

    TABLE = "table"
    JSON = "json"


Name = Annotated[str, typer.Option("--name", help="The lab's name: labs of different names live side by side.")]
Node = Annotated[
    str, typer.Argument(help="`node1` and so on; `head`, where drivers run; or `switch`, where the bridges are.")
]


@app.callback()
def callback() -> None:
    """Refuse machines that cannot hold a lab before anything is imported that they do not have."""
    from sweep.lab_trouble import refuse_other_systems

    refuse_other_systems()


@app.command()
def up(
    nodes: Annotated[int, typer.Option("--nodes", help="Hosts that take part in benchmarks: node1, node2 …")] = 3,
    nics: Annotated[int, typer.Option("--nics", help="NICs per node, each on a rail of its own: nic0, nic1 …")] = 2,
    rate: Annotated[
        str, typer.Option("--rate", help="Rate of every NIC, in bits per second and in each direction: 400mbit, 1gbit.")
    ] = "400mbit",
    name: Name = "lab",
    ray: Annotated[
        bool, typer.Option("--ray/--no-ray", help="Start a Ray node on every host, or only the net.")
    ] = True,
) -> None:
    """Build a lab, or find the one that is up.

    Every host gets its own hostname, addresses, /proc and /sys; the head has
    no NICs and runs the drivers. Without Ray it takes less than a second, with
    Ray about two more per host, and 170 MB of memory each. Nothing of the
    machine's own network is touched, and nothing of a lab outlives its
    supervisor, the process that `sweep lab status` names.
    """
    from sweep import lab

    built = lab.up(nodes, nics, rate, name, ray=ray, tell=_tell)
    what_next = f"see `sweep lab status`, end it with `sweep lab down{lab.name_option(name)}`"
    _tell(f"lab {name!r} is up, held by process {built.hosts[0].pid}; {what_next}")


@app.command()
def down(name: Name = "lab") -> None:
    """End a lab: every process, interface and namespace of it goes away at once. Twice does no harm."""
    from sweep import lab

    _tell(f"lab {name!r} has ended" if lab.down(name) else f"there was no lab {name!r}")


@app.command()
def status(
    name: Annotated[str | None, typer.Option("--name", help="One lab. Default: all of yours.")] = None,
    format: Annotated[LabFormat, typer.Option("--format", "-f", help="How to print.")] = LabFormat.TABLE,  # noqa: A002 - the option's name
) -> None:
    """Show what labs there are: their shape, their hosts with addresses, and how many processes run on each."""
    from sweep import lab

    found = [lab.status(each) for each in ([name] if name is not None else lab.labs())]
    typer.echo(_as_json(found) if format is LabFormat.JSON else _as_text(found))


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    spec: Annotated[str, typer.Argument(help="The spec: a TOML file that names the factors.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Options of `sweep run`, such as --archive.", show_default=False)
    ] = None,
    name: Name = "lab",
) -> None:
    """Run a spec in a lab: `sweep run` on its head, with its Ray cluster and its site file.

    The current directory and the archive are the machine's own. What stands
    after SPEC goes to `sweep run`; --name stands before it.
    """
    from sweep import lab

    lab.enter(name, lab.HEAD, lab.sweep_command(name, spec, arguments if arguments is not None else []))


@app.command()
def shell(node: Node = "node1", name: Name = "lab") -> None:
    """Open your shell on a host of a lab: look at its NICs, try an MPI launch, start a server."""
    from sweep import lab

    lab.enter(name, node)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _as_text(found: list[LabStatus]) -> str:
    lines = [line for each in found for line in _lines(each)]
    return "\n".join(lines) if lines else "no lab is up"


def _lines(found: LabStatus) -> list[str]:
    if found.lab is None:
        return [f"lab {found.name!r} is down"]
    since = dt.datetime.fromtimestamp(found.lab.since).astimezone().isoformat(" ", "seconds")
    ray = f", Ray at {found.lab.address}" if found.lab.address is not None else ""
    head = f"lab {found.name!r} is {found.state} since {since}: {found.lab.plan}{ray}; supervisor {found.hosts[0].pid}"
    lines = [head, "  host     processes  addresses"]
    for host in found.hosts:
        addresses = "  ".join(f"{device} {ip}" for device, ip in host.addresses.items())
        lines.append(f"  {host.name:<8} {host.processes if host.alive else 'ended':>9}  {addresses}")
    if not all(host.own_sys for host in found.lab.hosts):
        lines.append(
            "  /sys shows the machine's devices here, for parts of it are hidden; /proc/net/dev shows the hosts' own"
        )
    return lines


def _as_json(found: list[LabStatus]) -> str:
    """What `_as_text` shows, without the Ray token, for programs."""
    return json.dumps([_document(each) for each in found], indent=2)


def _document(found: LabStatus) -> dict[str, object]:
    if found.lab is None:
        return {"name": found.name, "state": found.state}
    plan = found.lab.plan
    hosts = [
        {"name": host.name, "alive": host.alive, "pid": host.pid, "processes": host.processes}
        | {"addresses": host.addresses}
        for host in found.hosts
    ]
    shape = {"nodes": plan.nodes, "nics": plan.nics, "rate_bits_per_second": plan.rate, "ray": found.lab.address}
    return {"name": found.name, "state": found.state, "since": found.lab.since, **shape, "hosts": hosts}
