"""How a stack is held to the chosen NICs: one table of transports, in each stack's own variables and flags. Pure.

Always by exact names, so that what was not chosen stays unused. Where a stack cannot be held to them the answer is a
reason, never a guess. docs/nics.md has the table in words, what was measured, and the sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.plan import Nic, Node
from tasks.nics import device, is_port

Env = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Switches:
    """What a launch sets on one node so that its ranks use the chosen NICs; `reason`: why they cannot be held to them.

    `per_rank` is the environment of each local rank, where they differ, and `env` is empty then.
    """

    env: Env = field(default_factory=dict)
    args: tuple[str, ...] = ()
    per_rank: tuple[Env, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Gang:
    """What a launch over several nodes sets. `nics`: node -> names, as archived.

    `env` is for all ranks. `ranks`, empty where `env` says it all, has for each node the environment of each local
    rank, or a single one for all of them: what `tasks.wrap` hands to the rank wrapper. `args` has the flags of a
    process per node.
    """

    nics: Mapping[str, tuple[str, ...]]
    env: Env = field(default_factory=dict)
    ranks: Mapping[str, tuple[Env, ...]] = field(default_factory=dict)
    args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Row:
    """One transport: which kind of NIC it takes, and how it is told."""

    title: str
    env: Callable[[Sequence[Nic]], Env] = lambda _: {}
    args: Callable[[Sequence[Nic]], tuple[str, ...]] = lambda _: ()
    ports: bool = True
    devices: bool = True
    most: int | None = None
    """NICs that one process can be told to use; None: any number."""
    divides_ports: bool = False
    divides_devices: bool = False
    """Whether each local rank gets its own part of the NICs."""
    whole: Callable[[Sequence[Nic]], Env] | None = None
    """For more than `most`, where these are all that the node has, so that none needs a name."""
    prefixes: bool = False
    """Takes a name for a prefix of names."""


def _names(nics: Sequence[Nic]) -> str:
    return ",".join(nic.name for nic in nics)


def _ucx(nics: Sequence[Nic]) -> Env:
    """Rails beside names: by default two for large messages and one for all others, however many devices are named.

    One device needs no word about rails; UCX_MAX_RNDV_RAILS=1 makes UCX 1.18 hang (openucx/ucx#10568).
    """
    rails = {"UCX_MAX_RNDV_RAILS": str(len(nics)), "UCX_MAX_EAGER_RAILS": str(len(nics))} if len(nics) > 1 else {}
    return {"UCX_NET_DEVICES": _names(nics), **rails}


def _libfabric_interface(nics: Sequence[Nic]) -> Env:
    """One name for whichever provider is picked; a list of several is taken for one name that nothing has."""
    return dict.fromkeys(("FI_TCP_IFACE", "FI_SOCKETS_IFACE", "FI_UDP_IFACE"), nics[0].name)


def _libfabric_verbs(nics: Sequence[Nic]) -> Env:
    """One name: before libfabric 2.6 there was no list."""
    return {"FI_VERBS_DEVICE_NAME": device(nics[0])}


def _mpich_all(nics: Sequence[Nic]) -> Env:
    """All NICs for each rank, messages striped over them, and no silent falling back to fewer."""
    return {
        "MPIR_CVAR_CH4_OFI_MAX_NICS": str(len(nics)),
        "MPIR_CVAR_CH4_OFI_ENABLE_MULTI_NIC_STRIPING": "1",
        "MPIR_CVAR_OFI_USE_MIN_NICS": "0",
    }


def _openmpi_tcp(nics: Sequence[Nic]) -> Env:
    return {"OMPI_MCA_btl_tcp_if_include": _names(nics)}


def _nccl(nics: Sequence[Nic]) -> Env:
    """One `=` in front makes the whole list exact; without it mlx5_1 is mlx5_10 as well."""
    if is_port(nics[0]):
        return {"NCCL_IB_HCA": f"={_names(nics)}"}
    return {"NCCL_SOCKET_IFNAME": f"={_names(nics)}", "NCCL_NET": "Socket"}


def _perftest(nics: Sequence[Nic]) -> tuple[str, ...]:
    name, _, port = nics[0].name.partition(":")
    return ("-d", name, "-i", port)


def _iperf3(nics: Sequence[Nic]) -> tuple[str, ...]:
    address = nics[0].address
    return ("--bind-dev", nics[0].name) if address is None else ("-B", address)


_TABLE: Mapping[str, _Row] = {
    "ucx": _Row("UCX", _ucx, divides_ports=True),
    "libfabric-tcp": _Row("libfabric over TCP", _libfabric_interface, ports=False, most=1, divides_devices=True),
    "mpich-verbs": _Row(
        "MPICH over verbs",
        _libfabric_verbs,
        devices=False,
        most=1,
        divides_ports=True,
        whole=_mpich_all,
        prefixes=True,
    ),
    "intelmpi-verbs": _Row(
        "Intel MPI over verbs", _libfabric_verbs, devices=False, most=1, divides_ports=True, prefixes=True
    ),
    "openmpi-tcp": _Row("Open MPI over TCP", _openmpi_tcp, ports=False),
    "nccl": _Row("NCCL", _nccl),
    "perftest": _Row("perftest", args=_perftest, devices=False, most=1),
    "iperf3": _Row("iperf3", args=_iperf3, ports=False, most=1),
}

_CVAR = ("MPIR_CVAR_", "MPIR_PARAM_", "MPICH_")
"""What MPICH lets the names of its control variables begin with in the environment."""

_OWN = ("ucx", "nccl", "perftest", "iperf3")
"""Kinds of benchmarks that are their own transport."""


def transport(
    kind: str, flavour: str | None, env: Env, args: Sequence[str] = (), *, ports: bool, built: str = ""
) -> str | None:
    """The row of the table that holds a launch; None where we know none.

    `kind` is "mpi", where `flavour` (of `tasks.launchers`) decides, or "nccl", "ucx", "perftest", "iperf3". What the
    site's and the levels' `env` and `args` choose counts; else what the stack chooses by itself, which depends on
    whether the NICs are RDMA `ports`, and for MPICH on what its mpiexec says of how it was `built` (--version).
    """
    if kind != "mpi":
        return kind if kind in _OWN else None
    if flavour == "intelmpi":
        own = "ucx" if ports else "libfabric-tcp"
        return _libfabric("intelmpi", own, env.get("I_MPI_OFI_PROVIDER", env.get("FI_PROVIDER")))
    if flavour in ("openmpi4", "openmpi5"):
        return _openmpi(env, args, ports=ports)
    if flavour in ("mpich", "mvapich"):
        return _mpich(flavour, env, ports=ports, built=built)
    return None


def switches(row: str, chosen: Sequence[Nic], *, local_ranks: int = 1, others: Sequence[Nic] = ()) -> Switches:
    """What holds one process, or each of `local_ranks` ranks of a node, to the chosen NICs; `others` stay unused.

    Where a NIC per rank is how a stack is driven, each rank gets its own part of them, neighbours in rail order to
    neighbours in rank. KeyError for a row that the table has not.
    """
    told = _TABLE[row]
    if (reason := _misfit(told, chosen)) is not None:
        return Switches(reason=reason)
    divides = told.divides_ports if is_port(chosen[0]) else told.divides_devices
    parts = _parts(chosen, local_ranks) if divides else [tuple(chosen)]
    if told.most is not None and max(map(len, parts)) > told.most:
        if told.whole is not None and not others:
            return Switches(env=told.whole(chosen))
        per = f"each of {local_ranks} ranks per node" if divides else "a process"
        return Switches(reason=f"{told.title} can be held to {told.most} NIC for {per}, not to {len(chosen)} in all")
    if told.prefixes and (reason := _ambiguous(told, chosen, others)) is not None:
        return Switches(reason=reason)
    envs = [told.env(part) for part in parts]
    if all(env == envs[0] for env in envs):
        return Switches(env=envs[0], args=told.args(chosen))
    return Switches(per_rank=tuple(envs))


def hold(nodes: Sequence[Node], chosen: Mapping[str, Sequence[Nic]], row: str, local_ranks: int) -> Gang | str:
    """What a launch over these nodes sets, given the NICs chosen on each; or the reason why it cannot be held to them.

    Names differ between nodes, so what is the same everywhere is said once, and the rest node by node.
    """
    told: dict[str, Switches] = {}
    for node in nodes:
        picked = chosen[node.name]
        others = [nic for nic in node.nics or () if is_port(nic) and nic not in picked]
        told[node.name] = switches(row, picked, local_ranks=local_ranks, others=others)
        if (reason := told[node.name].reason) is not None:
            return f"{node.name}: {reason}"
    if len({is_port(nic) for nics in chosen.values() for nic in nics}) > 1:
        return "some nodes would use RDMA ports and others network devices"
    nics = {name: tuple(nic.name for nic in picked) for name, picked in chosen.items()}
    args = {name: each.args for name, each in told.items() if each.args}
    each_rank = {name: each.per_rank if each.per_rank is not None else (each.env,) for name, each in told.items()}
    same = {tuple(tuple(env.items()) for env in envs) for envs in each_rank.values()}
    if len(same) == 1 and all(each.per_rank is None for each in told.values()):
        return Gang(nics, env=told[nodes[0].name].env, args=args)
    return Gang(nics, ranks=each_rank, args=args)


def _parts(nics: Sequence[Nic], ranks: int) -> list[tuple[Nic, ...]]:
    """Each rank's own NICs: as equal in number as can be, at least one, all of them given out if there are fewer."""
    count = len(nics)
    starts = [(rank * count // ranks, (rank + 1) * count // ranks) for rank in range(ranks)]
    return [tuple(nics[start : max(end, start + 1)]) for start, end in starts]


def _misfit(told: _Row, chosen: Sequence[Nic]) -> str | None:
    if not chosen:
        return "no NIC is usable"
    ports = [nic.name for nic in chosen if is_port(nic)]
    devices = [nic.name for nic in chosen if not is_port(nic)]
    if ports and devices:
        return f"{ports[0]} is an RDMA port and {devices[0]} a network device: [fabric] nics must keep one kind"
    if ports and not told.ports:
        return f"{told.title} takes network devices, {ports[0]} is an RDMA port: name the devices in [fabric] nics"
    if devices and not told.devices:
        return f"{told.title} takes RDMA ports, {devices[0]} is a network device: name the ports in [fabric] nics"
    return None


def _ambiguous(told: _Row, chosen: Sequence[Nic], others: Sequence[Nic]) -> str | None:
    for nic in chosen:
        for other in (*chosen, *others):
            if other.name != nic.name and device(other).startswith(device(nic)):
                return f"{told.title} would take {other.name} for {nic.name}: it takes names for prefixes"
    return None


def _libfabric(stack: str, own: str, provider: str | None) -> str | None:
    """The row of a libfabric provider ("tcp;ofi_rxm"), or a stack's `own` row where none is named."""
    if provider is None:
        return own
    first = re.split("[;,]", provider)[0]
    rows = {"tcp": "libfabric-tcp", "sockets": "libfabric-tcp", "udp": "libfabric-tcp", "mlx": "ucx"}
    return f"{stack}-verbs" if first == "verbs" else rows.get(first)


def _mpich(flavour: str, env: Env, *, ports: bool, built: str) -> str | None:
    """By the network module that is asked for, else the first that it was built with; ch3 has none of them."""
    found = re.search(r"--with-device=(ch\d)(?::(\w+))?", built)
    if (found is None and flavour == "mvapich") or (found is not None and found[1] != "ch4"):
        return None
    named = [env[f"{prefix}CH4_NETMOD"] for prefix in _CVAR if f"{prefix}CH4_NETMOD" in env]
    built_first = found[2] if found is not None and found[2] is not None else "ofi"  # configure's own choice
    module = named[0] if named else built_first
    if module == "ucx":
        return "ucx"
    own = "mpich-verbs" if ports else "libfabric-tcp"
    providers = [
        env[name] for name in (*(f"{prefix}OFI_USE_PROVIDER" for prefix in _CVAR), "FI_PROVIDER") if name in env
    ]
    return _libfabric("mpich", own, providers[0] if providers else None)


def _openmpi(env: Env, args: Sequence[str], *, ports: bool) -> str | None:
    """By its point-to-point layer: ucx, which it takes for Mellanox ports; ob1 with TCP; none that drives an mtl."""
    pml, btl = _mca("pml", env, args), _mca("btl", env, args)
    if pml is None or pml.startswith("^"):
        if _mca("mtl", env, args) is not None:
            return None
        excluded = [] if pml is None else pml[1:].split(",")
        pml = "ucx" if ports and "ucx" not in excluded else "ob1"
    if pml == "ucx":
        return "ucx"
    with_tcp = btl is None or ("tcp" in btl.strip("^").split(",")) != btl.startswith("^")
    return "openmpi-tcp" if pml == "ob1" and with_tcp else None


def _mca(name: str, env: Env, args: Sequence[str]) -> str | None:
    """A parameter of Open MPI: on the command line, else in the environment."""
    for flag, key, value in zip(args, args[1:], args[2:], strict=False):
        if flag.lstrip("-") in ("mca", "gmca") and key == name:
            return value
    return env.get(f"OMPI_MCA_{name}")
