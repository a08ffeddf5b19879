"""The lab's wires: bridges, veth pairs, addresses and token-bucket rates, made through netlink."""

from __future__ import annotations

from pathlib import Path

from pyroute2 import IPRoute  # type: ignore[import-untyped]  # it ships no types

from sweep.lab_plan import SWITCH_NUMBER, Plan, address, devices, network

QUEUE_SECONDS = 0.05
"""How long a full queue takes to drain: more is dropped, and TCP slows down."""
QUEUE_BYTES = 128 * 1024
"""The least a queue holds: two of the 64 KiB packets that a kernel hands to a NIC, or slow links lose whole ones."""


def hardware_address(device: str, number: int) -> str:
    """Locally administered Ethernet address, the same whenever a lab of this shape is built."""
    return f"02:4d:00:00:{network(device):02x}:{number:02x}"


def burst(rate: int) -> int:
    """Bytes that may leave at once at a rate in bit/s: what flows in 1 ms, at least two full Ethernet frames."""
    return max(3028, rate // 8 // 1000)


def build_switch(nics: int) -> None:
    """Make one bridge per network in this network namespace, the switch being reachable on each of them."""
    _silence_ipv6()
    with IPRoute() as netlink:
        netlink.link("set", index=1, state="up")
        for device in devices(nics):
            netlink.link(
                "add",
                ifname=f"br-{device}",
                kind="bridge",
                br_mcast_snooping=0,
                address=hardware_address(device, SWITCH_NUMBER),
            )
            index = _index(netlink, f"br-{device}")
            netlink.addr("add", index=index, address=address(device, SWITCH_NUMBER), prefixlen=24)
            netlink.link("set", index=index, state="up")


def plug_in(plan: Plan, host: str, switch_pid: int) -> None:
    """Give the host of this network namespace its devices; the far end of each lands in the switch's namespace."""
    _silence_ipv6()
    with IPRoute() as netlink:
        netlink.link("set", index=1, state="up")
        for device, ip in plan.addresses(host).items():
            far_end = {"ifname": port(host, device), "net_ns_pid": switch_pid}
            mac = hardware_address(device, plan.hosts[host])
            netlink.link("add", ifname=device, kind="veth", address=mac, peer=far_end)
            index = _index(netlink, device)
            netlink.addr("add", index=index, address=ip, prefixlen=24)
            netlink.link("set", index=index, state="up")
            _shape(netlink, index, plan.rate_of(device))


def connect(plan: Plan, host: str) -> None:
    """Attach a host's far ends to the bridges of this network namespace, with the rate of the way to the host."""
    with IPRoute() as netlink:
        for device in plan.addresses(host):
            index = _index(netlink, port(host, device))
            netlink.link("set", index=index, master=_index(netlink, f"br-{device}"), state="up")
            _shape(netlink, index, plan.rate_of(device))


def port(host: str, device: str) -> str:
    """Name of the far end of a host's device, in the switch's namespace."""
    return f"{host}-{device}"


def main(what: str, device: str, value: str) -> None:
    """Change a device of this network namespace: its `state` to up or down, or its `rate` to bit/s."""
    if what == "state":
        set_state(device, up=value == "up")
    else:
        shape(device, int(value))


def set_state(device: str, *, up: bool) -> None:
    """Switch a device of this network namespace on or off; the other end of a veth pair gains or loses its carrier."""
    with IPRoute() as netlink:
        netlink.link("set", index=_index(netlink, device), state="up" if up else "down")


def shape(device: str, rate: int) -> None:
    """Give a device of this network namespace another rate in bit/s."""
    with IPRoute() as netlink:
        _shape(netlink, _index(netlink, device), rate)


def _shape(netlink: IPRoute, index: int, rate: int) -> None:
    limit = burst(rate) + max(QUEUE_BYTES, int(rate / 8 * QUEUE_SECONDS))
    netlink.tc("replace", "tbf", index=index, handle="1:", rate=f"{rate}bit", burst=burst(rate), limit=limit)


def _index(netlink: IPRoute, device: str) -> int:
    found: list[int] = netlink.link_lookup(ifname=device)
    return found[0]


def _silence_ipv6() -> None:
    """Keep neighbour discovery off the wires: what the counters see is what the benchmarks send."""
    for scope in ("all", "default"):
        knob = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if knob.exists():
            knob.write_text("1")
