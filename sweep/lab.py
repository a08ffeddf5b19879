"""A fabric in a box: hosts of namespaces on one Linux machine, with NICs of a chosen rate and a Ray node each.

lab = up(nodes=3, nics=2, rate="400mbit")
subprocess.run(command("lab", "node1", ["ip", "address"]))
down("lab")
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from schemas.errors import InputError, Problem, SiteError
from sweep import lab_state
from sweep.lab_build import build
from sweep.lab_plan import HEAD, SWITCH, Plan, check, check_name, name_option, parse_rate
from sweep.lab_start import Tell, in_host, ourselves, program
from sweep.lab_state import Host, Lab
from sweep.lab_trouble import refuse_other_systems

__all__ = [
    "HEAD",
    "SWITCH",
    "Host",
    "HostStatus",
    "Lab",
    "LabStatus",
    "command",
    "down",
    "enter",
    "labs",
    "link",
    "name_option",
    "pids",
    "run",
    "set_rate",
    "status",
    "sweep_command",
    "up",
]


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host as it is now: its process 1 as the machine numbers it, and how many are in it, that one included."""

    name: str
    pid: int
    alive: bool
    addresses: Mapping[str, str]
    processes: int


@dataclass(frozen=True, slots=True)
class LabStatus:
    """A lab as it is now: `up`, `starting`, or `down`, which one that died is too."""

    name: str
    state: str
    lab: Lab | None = None
    hosts: tuple[HostStatus, ...] = ()


def _silent(_: str) -> None:
    """Say nothing."""


def up(nodes: int, nics: int, rate: str, name: str = "lab", *, ray: bool = True, tell: Tell = _silent) -> Lab:
    """Build a lab, or find the one of this shape that is up; returns when every Ray node has joined.

    Raises InputError for a shape that cannot be had or differs from the one that is up, SiteError for a machine that
    cannot do it. Whatever goes wrong, nothing is left behind.
    """
    refuse_other_systems()
    plan = check(name, nodes, nics, rate, ray=ray)
    with lab_state.locked(name, lambda: tell(f"waiting for another command on lab {name!r} to end")) as folder:
        found = lab_state.read(name)
        if found is not None and found.alive and found.ready:
            _require_same(found.plan, plan)
            tell(f"already up: {plan}")
            return found
        if found is not None:  # it died, or whoever was starting it did
            lab_state.end(found.hosts[0])
        return build(plan, folder, tell)


def down(name: str = "lab") -> bool:
    """End a lab and forget it; False where there was none. When it returns, no process of the lab is left."""
    check_name(name)
    if not lab_state.folder(name).exists():
        return False
    with lab_state.locked(name, lambda: None):
        found = lab_state.read(name)
        was_up = found is not None and found.alive
        if found is not None:
            lab_state.end(found.hosts[0])
        lab_state.remove(name)
    return was_up


def status(name: str = "lab") -> LabStatus:
    """Say what there is of a lab."""
    lab = lab_state.read(check_name(name))
    if lab is None or not lab.alive:
        return LabStatus(name, "down")
    counts = _processes(lab.hosts)
    hosts = tuple(
        HostStatus(host.name, host.pid, host.alive, host.addresses, len(counts[host.name])) for host in lab.hosts
    )
    return LabStatus(name, "up" if lab.ready else "starting", lab, hosts)


def labs() -> list[str]:
    """Names of the labs of this user that are up or starting."""
    return [name for name in lab_state.names() if status(name).state != "down"]


def command(name: str, node: str, argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` on a host of a lab, for whatever starts programs.

    It sees the current directory, gets the signals that its starter sends, ends when its starter does, and exits as
    `argv` does. `node` is `node1` and so on, `head` (where drivers run), or `switch` (where the bridges are).
    """
    _require_host(_require(name), node)
    return in_host(name, node, argv)


def enter(name: str, node: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Become a command on a host of a lab: the user's shell, or `argv`."""
    line = command(name, node, argv if argv is not None else [os.environ.get("SHELL", "/bin/sh")])
    os.execv(line[0], line)  # noqa: S606 - a command line of ours, without a shell


def run(name: str, argv: Sequence[str], node: str = HEAD) -> int:
    """Run a command in a lab, on the host where drivers run, and return its exit code (128 + n after signal n)."""
    line = command(name, node, argv)
    pid = os.posix_spawn(line[0], line, os.environ)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sweep_command(name: str, spec: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs a spec on the Ray cluster of a lab, to be given to `enter` or `run`."""
    address = _require(name).address
    if address is None:
        raise SiteError(
            f"lab {name!r} has no Ray; build it anew with `sweep lab down` and `sweep lab up`, without --no-ray"
        )
    return ourselves("run", spec, "--address", address, *arguments)


def link(name: str, node: str, nic: str | None = None, *, up: bool) -> None:
    """Pull the cable of a NIC (`nic0`, or `mgmt`), or plug it in again; None is every cable of the host.

    The host's NIC keeps its addresses and loses its carrier: what is sent is lost.
    """
    for device in _require_devices(name, node, nic):
        _on_network(name, SWITCH, "state", f"{node}-{device}", "up" if up else "down")


def set_rate(name: str, node: str, nic: str, rate: str) -> None:
    """Give a NIC another rate, in both directions."""
    bits = str(parse_rate(rate))
    for device in _require_devices(name, node, nic):
        _on_network(name, SWITCH, "rate", f"{node}-{device}", bits)
        _on_network(name, node, "rate", device, bits)


def pids(name: str, node: str) -> tuple[int, ...]:
    """Processes on a host, as the machine numbers them, the host's own process 1 first."""
    host = _require_host(_require(name), node)
    return tuple(_processes([host])[node])


def _require(name: str) -> Lab:
    lab = lab_state.read(check_name(name))
    if lab is None or not lab.alive:
        raise SiteError(f"no lab {name!r} is up; start one with `sweep lab up{name_option(name)}`")
    return lab


def _require_host(lab: Lab, node: str) -> Host:
    host = lab.host(node)
    if host is None:
        there = ", ".join(host.name for host in lab.hosts)
        raise InputError(Problem(f"lab {lab.name!r}", f"it has no host {node!r}", f"it has {there}"))
    if not host.alive:
        raise SiteError(
            f"host {node!r} of lab {lab.name!r} has ended; build the lab anew with `sweep lab down` and `up`"
        )
    return host


def _require_devices(name: str, node: str, nic: str | None) -> Iterable[str]:
    host = _require_host(_require(name), node)
    have = () if node == SWITCH else tuple(host.addresses)
    if nic is not None and nic not in have:
        remedy = f"it has {', '.join(have)}" if have else "name a node"
        raise InputError(Problem(f"host {node!r}", f"it has no NIC {nic!r}", remedy))
    return have if nic is None else [nic]


def _require_same(there: Plan, asked: Plan) -> None:
    if there != asked:
        what = f"it is up in another shape, {there}; asked for was {asked}"
        remedy = f"end it with `sweep lab down{name_option(there.name)}`, or build another beside it with `--name`"
        raise InputError(Problem(f"lab {there.name!r}", what, remedy))


def _on_network(name: str, host: str, what: str, device: str, value: str) -> None:
    """Change a device from inside its network namespace, in a fresh process: this one stays where it is."""
    if run(name, program("sweep.lab_network", what, device, value), host) != 0:
        raise SiteError(f"{device} on host {host!r} of lab {name!r} could not be changed")


def _processes(hosts: Iterable[Host]) -> dict[str, list[int]]:
    """Processes per host, told apart by their PID namespace; what another user runs is not ours to look at."""
    spaces = {_pid_namespace(host.pid): host.name for host in hosts if host.alive}
    found: dict[str, list[int]] = {host.name: [] for host in hosts}
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        if (host := spaces.get(_pid_namespace(pid))) is not None:
            found[host].append(pid)
    return found


def _pid_namespace(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
