"""What a lab is to be: its hosts, devices, addresses and rates, checked, and nothing done yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from schemas.errors import InputError, Problem

MANAGEMENT = "mgmt"
"""The device of the network that Ray and launchers use, so that their traffic never disturbs a rail."""
LEAST_MANAGEMENT_RATE = 100_000_000
"""What Ray needs to start in good time. Above it the management network is as fast as a NIC and no way around one."""
HEAD, SWITCH = "head", "switch"
"""The host of Ray's head and of drivers, without NICs; and the place where the bridges are."""
HEAD_NUMBER, SWITCH_NUMBER = 250, 254
SITE_FILE = "/run/lab/site.toml"
"""Where each host of a lab has the lab's site file."""

MOST_NODES, MOST_NICS = 200, 16
LEAST_RATE, MOST_RATE = 1_000_000, 10_000_000_000
UNITS: Mapping[str, int] = {"kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape of a lab: `nodes` hosts with `nics` NICs each, every NIC with `rate` bit/s in either direction."""

    name: str
    nodes: int
    nics: int
    rate: int
    ray: bool

    @property
    def hosts(self) -> dict[str, int]:
        """Name and number of every host with a view of its own, the head first."""
        return {HEAD: HEAD_NUMBER} | {f"node{number}": number for number in range(1, self.nodes + 1)}

    def nics_of(self, host: str) -> int:
        """How many NICs a host has: the head has none, for it takes no part in benchmarks."""
        return 0 if host == HEAD else self.nics

    def rate_of(self, device: str) -> int:
        """Rate of a device in bit/s."""
        return max(self.rate, LEAST_MANAGEMENT_RATE) if device == MANAGEMENT else self.rate

    def addresses(self, host: str) -> dict[str, str]:
        """IPv4 address of each device of a host, the management one first; of each bridge for the switch."""
        if host == SWITCH:
            return {f"br-{device}": address(device, SWITCH_NUMBER) for device in devices(self.nics)}
        return {device: address(device, self.hosts[host]) for device in devices(self.nics_of(host))}

    def __str__(self) -> str:
        ray = "with Ray" if self.ray else "without Ray"
        return f"{self.nodes} nodes with {self.nics} NICs at {show_rate(self.rate)}, {ray}"


def check(name: str, nodes: int, nics: int, rate: str, *, ray: bool) -> Plan:
    """Check what a user asked for; raises InputError with everything that is wrong."""
    problems = list(_problems(name, nodes, nics))
    try:
        bits = parse_rate(rate)
    except InputError as error:
        problems += error.problems
        bits = 0
    if problems:
        raise InputError(problems)
    return Plan(name, nodes, nics, bits, ray)


def check_name(name: str) -> str:
    """Check the name of a lab, which becomes a file's; raises InputError."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise InputError(Problem("--name", f"{name!r} is no name for a lab", "use up to 31 of a-z, 0-9 and -"))
    return name


def name_option(name: str) -> str:
    """What a command line needs after `sweep lab down` and the like to mean this lab."""
    return "" if name == "lab" else f" --name {name}"


def _problems(name: str, nodes: int, nics: int) -> Iterator[Problem]:
    try:
        check_name(name)
    except InputError as error:
        yield from error.problems
    for option, value, most in (("--nodes", nodes, MOST_NODES), ("--nics", nics, MOST_NICS)):
        if not 1 <= value <= most:
            yield Problem(option, f"{value} cannot be had", f"a lab has 1 to {most}")


def parse_rate(text: str) -> int:
    """Read a rate such as `400mbit` or `2.5gbit` as bit/s; raises InputError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", text.strip().lower())
    if not found or found[2] not in UNITS:
        hint = "write a number and kbit, mbit or gbit (bits per second), such as 400mbit"
        raise InputError(Problem("--rate", f"{text!r} is no rate", hint))
    rate = round(float(found[1]) * UNITS[found[2]])
    if not LEAST_RATE <= rate <= MOST_RATE:
        hint = f"a NIC of a lab has {show_rate(LEAST_RATE)} to {show_rate(MOST_RATE)}"
        raise InputError(Problem("--rate", f"{text} cannot be had", hint))
    return rate


def show_rate(rate: int) -> str:
    """Write bit/s as people do: 400mbit, 2.5gbit."""
    unit = "gbit" if rate >= UNITS["gbit"] else "mbit" if rate >= UNITS["mbit"] else "kbit"
    return f"{rate / UNITS[unit]:g}{unit}"


def devices(nics: int) -> tuple[str, ...]:
    """Names of a host's network devices: the management one, then its NICs."""
    return (MANAGEMENT, *(f"nic{rail}" for rail in range(nics)))


def network(device: str) -> int:
    """Number of the network that a device is on: 0 for management, rail + 1 for a NIC."""
    return 0 if device == MANAGEMENT else int(device.removeprefix("nic")) + 1


def address(device: str, number: int) -> str:
    """IPv4 address of a device on the host with this number: 10.77.<network>.<number>."""
    return f"10.77.{network(device)}.{number}"


def host_table(plan: Plan) -> str:
    """Contents of /etc/hosts: a host's name is its management address, `node1-nic0` the one of a NIC."""
    lines = ["127.0.0.1 localhost"]
    for host in plan.hosts:
        for device, ip in plan.addresses(host).items():
            lines.append(f"{ip} {host}" if device == MANAGEMENT else f"{ip} {host}-{device}")
    return "\n".join([*lines, f"{address(MANAGEMENT, SWITCH_NUMBER)} {SWITCH}", ""])


def site_text(plan: Plan) -> str:
    """The lab's site file. The rate is in the cluster's name: two rates are two clusters in an archive's history."""
    nics = ", ".join(f'"{device}"' for device in devices(plan.nics) if device != MANAGEMENT)
    return f"""cluster = "{plan.name}-{show_rate(plan.rate)}"

[launch]
reach = "ray"

[fabric]
nics = [{nics}]
link_gbps = {plan.rate / UNITS["gbit"]!r}
"""
