"""Which NICs are usable, chosen, told to each stack, and seen to carry traffic: by properties and in a lab."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.attempt import Counters
from schemas.errors import InputError
from schemas.plan import Nic, Node
from schemas.spec import Fabric
from sweep import lab, lab_state
from tasks import nics, transports, wrap
from tests.tasks.lab_ranks import Hosts, mpiexec, pingpong


def port(name: str, numa: int | None = None, layer: str = "infiniband", state: str | None = "ACTIVE") -> Nic:
    return Nic(name, layer, 400.0, state, numa)


def eth(name: str, address: str | None = None, state: str | None = "ACTIVE") -> Nic:
    return Nic(name, "ethernet", 25.0, state, address=address)


IB = tuple(port(f"mlx5_{rail}:1", numa=rail // 4) for rail in range(8))
ETH = tuple(eth(f"eth{rail}", f"10.0.{rail}.1") for rail in range(4))
HOST = Node(
    "n1", nics=(*reversed(IB), port("mlx5_an0:1", layer="ethernet"), eth("ib0"), *ETH, eth("eth9", state="DOWN"))
)


def names(found: Sequence[Nic] | str | None) -> list[str]:
    assert not isinstance(found, str), found
    assert found is not None
    return [nic.name for nic in found]


# ---- usable --------------------------------------------------------------------------------------


def test_rails_are_in_the_natural_order_of_names() -> None:
    found = nics.usable(Node("n", nics=(port("mlx5_10:1"), port("mlx5_2:1"), port("mlx5_2:2"))), Fabric())
    assert names(found) == ["mlx5_2:1", "mlx5_2:2", "mlx5_10:1"]


def test_nics_that_are_unknown_are_not_none() -> None:
    assert nics.usable(Node("n"), Fabric()) is None
    assert nics.usable(Node("n", nics=()), Fabric()) == ()


@pytest.mark.parametrize(
    ("selector", "kept"),
    [
        (None, [nic.name for nic in IB]),
        ({"link_layer": "infiniband"}, [nic.name for nic in IB]),
        ({"link_layer": "ethernet"}, ["mlx5_an0:1"]),
        ({"link_layer": "ethernet", "name": "e*"}, ["eth0", "eth1", "eth2", "eth3"]),
        ({"name": "ib*"}, ["ib0"]),
        ({"name": "mlx5_[01]"}, ["mlx5_0:1", "mlx5_1:1"]),
        ({"name": "mlx5_1:1"}, ["mlx5_1:1"]),
        ({"name": "eth.*", "rail": "0,2"}, ["eth0", "eth2"]),
        ({"rail": "0,4,9"}, ["mlx5_0:1", "mlx5_4:1"]),
        (("eth2", "eth0"), ["eth0", "eth2"]),
        (("mlx5_3", "mlx5_an0:1"), ["mlx5_3:1", "mlx5_an0:1"]),
        (("eth9", "nowhere"), []),
    ],
)
def test_a_site_keeps_nics_by_name_by_link_layer_or_by_rail(
    selector: Mapping[str, str] | tuple[str, ...] | None, kept: list[str]
) -> None:
    assert names(nics.usable(HOST, Fabric(selector))) == kept


@pytest.mark.parametrize(
    ("selector", "problem"),
    [
        ({"name": "mlx5_["}, "no regular expression"),
        ({"link_layer": "ib"}, "infiniband|ethernet"),
        ({"rail": "0-3"}, "rail = '0-3'"),
        ({"speed": "400"}, "no `speed`"),
    ],
)
def test_a_selector_that_is_none_is_refused(selector: Mapping[str, str], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        nics.usable(HOST, Fabric(selector))
    assert problem in str(caught.value)


# ---- choose --------------------------------------------------------------------------------------


def test_spread_takes_both_sockets_and_no_neighbours() -> None:
    assert names(nics.choose(IB, 1)) == ["mlx5_0:1"]
    assert names(nics.choose(IB, 2)) == ["mlx5_0:1", "mlx5_4:1"]
    assert names(nics.choose(IB, 4)) == ["mlx5_0:1", "mlx5_2:1", "mlx5_4:1", "mlx5_6:1"]
    assert names(nics.choose(ETH, 2)) == ["eth0", "eth2"]


def test_other_policies_take_what_they_say() -> None:
    assert names(nics.choose(IB, 2, "first")) == ["mlx5_0:1", "mlx5_1:1"]
    assert names(nics.choose(IB, 1, "rails:4,0")) == ["mlx5_4:1"]
    assert names(nics.choose(IB, 2, "rails:4,0")) == ["mlx5_0:1", "mlx5_4:1"]
    assert names(nics.choose(IB, None, "first")) == [nic.name for nic in IB]


def test_what_cannot_be_chosen_says_why() -> None:
    assert nics.choose(ETH[:2], 3) == "needs 3 NICs, 2 are usable (eth0, eth1)"
    assert nics.choose((), 1, "first") == "needs 1 NICs, none is usable"
    assert nics.choose(ETH, 3, "rails:0,1") == "needs 3 NICs, rails:0,1 names 2"
    assert nics.choose(ETH[:2], 2, "rails:0,4") == "rails:0,4 asks for rail 4, 2 are usable (eth0, eth1)"
    assert nics.chosen([Node("a", nics=ETH), Node("b", nics=ETH[:1])], Fabric(), 2) == (
        "b: needs 2 NICs, 1 are usable (eth0)"
    )
    assert nics.chosen([Node("a")], Fabric(), 2) == "the NICs of a are unknown"
    with pytest.raises(InputError):
        nics.choose(ETH, 1, "nearest")


@given(st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=1, max_size=17), st.sampled_from(["spread", "first"]))
def test_a_larger_count_keeps_the_nics_of_a_smaller_one(sockets: list[int | None], policy: str) -> None:
    there = tuple(port(f"mlx5_{rail}:1", numa) for rail, numa in enumerate(sockets))
    sets = [names(nics.choose(there, count, policy)) for count in range(1, len(there) + 1)]
    assert [len(each) for each in sets] == list(range(1, len(there) + 1))
    assert all(set(smaller) < set(larger) for smaller, larger in itertools.pairwise(sets))
    assert all(each == [nic.name for nic in there if nic.name in each] for each in sets)


# ---- the table -----------------------------------------------------------------------------------


def told(row: str, *chosen: Nic, ranks: int = 1, others: Sequence[Nic] = ()) -> transports.Switches:
    return transports.switches(row, chosen, local_ranks=ranks, others=others)


@pytest.mark.parametrize(
    ("row", "chosen", "env"),
    [
        ("ucx", IB[:1], {"UCX_NET_DEVICES": "mlx5_0:1"}),
        ("ucx", ETH[:2], {"UCX_NET_DEVICES": "eth0,eth1", "UCX_MAX_RNDV_RAILS": "2", "UCX_MAX_EAGER_RAILS": "2"}),
        ("libfabric-tcp", ETH[1:2], {"FI_TCP_IFACE": "eth1", "FI_SOCKETS_IFACE": "eth1", "FI_UDP_IFACE": "eth1"}),
        ("mpich-verbs", IB[:1], {"FI_VERBS_DEVICE_NAME": "mlx5_0"}),
        ("intelmpi-verbs", IB[3:4], {"FI_VERBS_DEVICE_NAME": "mlx5_3"}),
        ("openmpi-tcp", ETH[:2], {"OMPI_MCA_btl_tcp_if_include": "eth0,eth1"}),
        ("nccl", IB[:2], {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),
        ("nccl", ETH[:2], {"NCCL_SOCKET_IFNAME": "=eth0,eth1", "NCCL_NET": "Socket"}),
    ],
)
def test_each_stack_is_told_in_its_own_variables_with_exact_names(
    row: str, chosen: Sequence[Nic], env: Mapping[str, str]
) -> None:
    assert told(row, *chosen) == transports.Switches(env=env)


def test_programs_are_told_in_flags() -> None:
    assert told("perftest", port("mlx5_1:2")).args == ("-d", "mlx5_1", "-i", "2")
    assert told("iperf3", ETH[1]).args == ("-B", "10.0.1.1")
    assert told("iperf3", eth("eth1")).args == ("--bind-dev", "eth1")


def test_each_rank_gets_the_rdma_ports_beside_it() -> None:
    def devices(ranks: int) -> list[str]:
        each = told("ucx", *IB[:4], ranks=ranks)
        return [env["UCX_NET_DEVICES"] for env in each.per_rank or (each.env,)]

    assert devices(1) == ["mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"]
    assert devices(2) == ["mlx5_0:1,mlx5_1:1", "mlx5_2:1,mlx5_3:1"]
    assert devices(3) == ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1,mlx5_3:1"]
    assert devices(8) == [f"mlx5_{rank // 2}:1" for rank in range(8)]
    rails = told("ucx", *IB[:4], ranks=2).per_rank
    assert rails is not None
    assert rails[1]["UCX_MAX_EAGER_RAILS"] == "2"


def test_ranks_share_network_devices_that_one_process_can_use_together() -> None:
    assert told("ucx", *ETH, ranks=4).env["UCX_NET_DEVICES"] == "eth0,eth1,eth2,eth3"
    assert told("openmpi-tcp", *ETH, ranks=4).per_rank is None


@given(st.integers(1, 16), st.integers(1, 16))
def test_all_chosen_nics_are_given_out_and_ranks_get_an_even_part(count: int, ranks: int) -> None:
    chosen = [port(f"mlx5_{rail}:1") for rail in range(count)]
    each = told("ucx", *chosen, ranks=ranks)
    parts = [env["UCX_NET_DEVICES"].split(",") for env in each.per_rank or (each.env,) * ranks]
    assert len(parts) == ranks
    assert sorted(set(itertools.chain(*parts))) == sorted(nic.name for nic in chosen)
    assert {len(part) for part in parts} <= {max(1, count // ranks), max(1, -(-count // ranks))}


@pytest.mark.parametrize(
    ("row", "chosen", "ranks", "reason"),
    [
        ("ucx", (), 1, "no NIC is usable"),
        ("ucx", (IB[0], ETH[0]), 1, "mlx5_0:1 is an RDMA port and eth0 a network device"),
        ("openmpi-tcp", IB[:1], 1, "Open MPI over TCP takes network devices"),
        ("perftest", ETH[:1], 1, "perftest takes RDMA ports"),
        ("perftest", IB[:2], 1, "1 NIC for a process, not to 2"),
        ("iperf3", ETH[:2], 1, "1 NIC for a process, not to 2"),
        ("libfabric-tcp", ETH[:2], 1, "1 NIC for each of 1 ranks per node, not to 2"),
        ("libfabric-tcp", ETH[:4], 2, "1 NIC for each of 2 ranks per node, not to 4"),
        ("intelmpi-verbs", IB[:2], 1, "1 NIC for each of 1 ranks per node, not to 2"),
    ],
)
def test_what_a_stack_cannot_be_held_to_has_a_reason(row: str, chosen: Sequence[Nic], ranks: int, reason: str) -> None:
    assert reason in (told(row, *chosen, ranks=ranks).reason or "")


def test_libfabric_gives_a_nic_to_each_rank_where_there_are_enough_ranks() -> None:
    each = told("libfabric-tcp", *ETH[:2], ranks=4).per_rank
    assert each is not None
    assert [env["FI_TCP_IFACE"] for env in each] == ["eth0", "eth0", "eth1", "eth1"]


def test_mpich_uses_several_verbs_devices_only_when_they_are_all_there_are() -> None:
    env = told("mpich-verbs", *IB[:2]).env
    assert env["MPIR_CVAR_CH4_OFI_MAX_NICS"] == "2"
    assert env["MPIR_CVAR_OFI_USE_MIN_NICS"] == "0"
    assert "not to 2 in all" in (told("mpich-verbs", *IB[:2], others=IB[2:]).reason or "")


def test_a_name_that_libfabric_would_take_for_two_is_refused() -> None:
    ten = port("mlx5_10:1")
    assert "would take mlx5_10:1 for mlx5_1:1" in (told("mpich-verbs", IB[1], others=(ten,)).reason or "")
    assert told("mpich-verbs", ten, others=IB).env == {"FI_VERBS_DEVICE_NAME": "mlx5_10"}


# ---- which row -----------------------------------------------------------------------------------

WHEEL = "Configure options:  --with-device=ch4:ucx,ofi --with-pm=hydra:gforker"


@pytest.mark.parametrize(
    ("flavour", "ports", "env", "args", "row"),
    [
        ("mpich", False, {}, "", "ucx"),
        ("mpich", False, {"FI_PROVIDER": "tcp"}, "", "ucx"),
        ("mpich", False, {"MPIR_CVAR_CH4_NETMOD": "ofi"}, "", "libfabric-tcp"),
        ("mpich", True, {"MPICH_CH4_NETMOD": "ofi"}, "", "mpich-verbs"),
        ("mpich", True, {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp;ofi_rxm"}, "", "libfabric-tcp"),
        ("mpich", True, {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_OFI_USE_PROVIDER": "psm3"}, "", None),
        ("intelmpi", False, {}, "", "libfabric-tcp"),
        ("intelmpi", True, {}, "", "ucx"),
        ("intelmpi", True, {"I_MPI_OFI_PROVIDER": "verbs"}, "", "intelmpi-verbs"),
        ("intelmpi", True, {"I_MPI_OFI_PROVIDER": "mlx", "FI_PROVIDER": "tcp"}, "", "ucx"),
        ("intelmpi", True, {"FI_PROVIDER": "tcp"}, "", "libfabric-tcp"),
        ("openmpi5", False, {}, "", "openmpi-tcp"),
        ("openmpi5", True, {}, "", "ucx"),
        ("openmpi4", True, {"OMPI_MCA_pml": "^ucx"}, "", "openmpi-tcp"),
        ("openmpi5", True, {"OMPI_MCA_pml": "ucx"}, "--mca pml ob1 --mca btl self,tcp", "openmpi-tcp"),
        ("openmpi5", False, {}, "-mca pml ucx", "ucx"),
        ("openmpi5", True, {}, "--mca pml ob1 --mca btl ^tcp", None),
        ("openmpi4", True, {}, "--mca pml ob1 --mca btl openib,self", None),
        ("openmpi5", False, {}, "--mca pml cm", None),
        ("openmpi5", False, {"OMPI_MCA_mtl": "ofi"}, "", None),
        ("mvapich", True, {}, "", "ucx"),
        ("unknown", True, {}, "", None),
        (None, True, {}, "", None),
    ],
)
def test_the_row_is_what_the_site_asks_of_its_stack_else_the_stacks_own_choice(
    flavour: str | None, ports: bool, env: Mapping[str, str], args: str, row: str | None
) -> None:
    assert transports.transport("mpi", flavour, env, args.split(), ports=ports, built=WHEEL) == row


@pytest.mark.parametrize(
    ("flavour", "built", "row"),
    [
        ("mpich", "--with-device=ch4:ofi", "libfabric-tcp"),
        ("mpich", "--with-device=ch4", "libfabric-tcp"),
        ("mpich", "--prefix=/usr", "libfabric-tcp"),
        ("mpich", "--with-device=ch3:nemesis", None),
        ("mvapich", "--prefix=/opt/mvapich2", None),
        ("mvapich", "--with-device=ch3:mrail", None),
    ],
)
def test_mpich_is_asked_what_it_was_built_with(flavour: str, built: str, row: str | None) -> None:
    assert transports.transport("mpi", flavour, {}, ports=False, built=built) == row


def test_other_programs_are_their_own_transport_or_unknown() -> None:
    assert transports.transport("nccl", None, {}, ports=True) == "nccl"
    assert transports.transport("netpipe", None, {}, ports=True) is None


# ---- a gang --------------------------------------------------------------------------------------


def test_what_is_the_same_on_all_nodes_is_said_once() -> None:
    nodes = [Node("a", nics=ETH), Node("b", nics=ETH)]
    chosen = nics.chosen(nodes, Fabric(), 2)
    assert isinstance(chosen, dict)
    gang = transports.hold(nodes, chosen, "openmpi-tcp", 1)
    assert gang == transports.Gang(
        nics={"a": ("eth0", "eth2"), "b": ("eth0", "eth2")}, env={"OMPI_MCA_btl_tcp_if_include": "eth0,eth2"}
    )


def test_names_that_differ_between_nodes_are_told_node_by_node() -> None:
    nodes = [Node("a", nics=(port("mlx5_0:1"), port("mlx5_1:1"))), Node("b", nics=(port("mlx5_2:1"), port("mlx5_3:1")))]
    chosen = nics.chosen(nodes, Fabric(), 2)
    assert isinstance(chosen, dict)
    one, two = (transports.hold(nodes, chosen, "ucx", ranks) for ranks in (1, 2))
    assert isinstance(one, transports.Gang)
    assert isinstance(two, transports.Gang)
    assert one.env == {}
    assert [env["UCX_NET_DEVICES"] for env in one.ranks["b"]] == ["mlx5_2:1,mlx5_3:1"]
    assert [env["UCX_NET_DEVICES"] for env in two.ranks["b"]] == ["mlx5_2:1", "mlx5_3:1"]


def test_a_gang_that_cannot_be_held_names_the_node() -> None:
    nodes = [Node("a", nics=IB[:2]), Node("b", nics=IB)]
    chosen = nics.chosen(nodes, Fabric(), 2)
    assert isinstance(chosen, dict)
    assert str(transports.hold(nodes, chosen, "mpich-verbs", 1)).startswith("b: MPICH over verbs can be held to 1")
    mixed = {"a": IB[:1], "b": ETH[:1]}
    assert "others network devices" in str(transports.hold(nodes, mixed, "ucx", 1))


# ---- observed ------------------------------------------------------------------------------------


def look(**sent: int) -> Counters:
    return {nic: {"tx_bytes": count, "rx_bytes": 0} for nic, count in sent.items()}


def test_the_nics_that_carried_a_size_are_counted_in_its_own_window() -> None:
    marks = [(0.0, look(a=0, b=0)), (1.0, look(a=10**6, b=10)), (2.0, look(a=2 * 10**6, b=10**6))]
    found = nics.observed(marks, {8: (0.0, 1.0), 1024: (1.0, 2.0)}, ["a", "b"])
    assert found == {8: 1, 1024: 2}


def test_a_window_that_is_too_short_or_moved_too_little_says_nothing() -> None:
    marks = [(0.0, look(a=0)), (1.0, look(a=60_000)), (2.0, look(a=10**9))]
    assert nics.observed(marks, {1: (0.0, 1.0), 2: (1.2, 1.8), 4: (1.5, 2.5)}, ["a"]) == {1: None, 2: None, 4: None}
    assert nics.observed([], {1: (0.0, 1.0)}, ["a"]) == {1: None}
    assert nics.observed(marks, {1: (0.0, 2.0)}, []) == {1: None}


def test_the_look_that_a_line_caused_stands_for_the_end_of_its_window() -> None:
    marks = [(0.0002, look(a=0, b=0)), (1.0003, look(a=10**6, b=0)), (2.0002, look(a=2 * 10**6, b=10**6))]
    assert nics.observed(marks, {8: (0.0, 1.0), 1024: (1.0, 2.0)}, ["a", "b"]) == {8: 1, 1024: 2}


def test_a_counter_that_was_reset_counts_from_zero() -> None:
    marks = [(0.0, look(a=10**9, b=10**9)), (1.0, look(a=10**6, b=0)), (2.0, look(a=2 * 10**6, b=0))]
    assert nics.observed(marks, {8: (0.0, 2.0)}, ["a", "b"]) == {8: 1}


def test_a_node_that_only_receives_counts_what_it_received() -> None:
    def seen(sent: int, received: int) -> Mapping[str, int]:
        return {"tx_bytes": sent, "rx_bytes": received}

    marks = [(0.0, {"a": seen(0, 0), "b": seen(0, 0)}), (1.0, {"a": seen(9000, 10**7), "b": seen(0, 10**7)})]
    assert nics.observed(marks, {8: (0.0, 1.0)}, ["a", "b"]) == {8: 2}


@given(
    rates=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10**9), min_size=1),
    step=st.floats(0.01, 1),
    edges=st.tuples(st.floats(0, 20), st.floats(0, 20)),
)
def test_steady_traffic_is_counted_as_it_is_wherever_the_window_lies(
    rates: dict[str, int], step: float, edges: tuple[float, float]
) -> None:
    marks = [(i * step, look(**{nic: int(rate * i * step) for nic, rate in rates.items()})) for i in range(20)]
    begin, end = sorted(edges)
    found = nics.observed(marks, {0: (begin, end)}, list(rates))[0]
    inside = [t for t, _ in marks if begin <= t <= end]
    total = sum(rates.values())
    assume(all(abs(rate - nics.SHARE * total) > 100 for rate in rates.values()))
    if len(inside) > 1 and total * (inside[-1] - inside[0]) > 2 * nics.ENOUGH_BYTES and step > 0.1:
        assert found == sum(rate > nics.SHARE * total for rate in rates.values())
    if found is not None:
        assert 1 <= found <= len(rates)


# ---- in a lab ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A runtime folder of our own; no lab of ours outlives the tests."""
    folder = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder
        for name in lab_state.names():
            lab.down(name)


@pytest.fixture(scope="module")
def hosts(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """Two hosts with three NICs each."""
    lab.up(2, 3, "400mbit", "nics", ray=False)
    return Hosts("nics", tmp_path_factory.mktemp("ranks"), ["node1", "node2"])


def held(hosts: Hosts, stack: str, env: Mapping[str, str], count: int, policy: str, ranks: int = 1) -> transports.Gang:
    """What a launch on the hosts sets."""
    chosen = nics.chosen(hosts.nodes, Fabric(nic_policy=policy), count)
    assert isinstance(chosen, dict), chosen
    row = transports.transport("mpi", stack, env, ports=False, built=mpiexec(stack).version)
    assert row is not None
    gang = transports.hold(hosts.nodes, chosen, row, ranks)
    assert isinstance(gang, transports.Gang), gang
    return gang


def both(*nics: str) -> dict[str, set[str]]:
    return {"node1": set(nics), "node2": set(nics)}


@pytest.mark.parametrize(
    ("stack", "env", "policy", "count", "used"),
    [
        ("mpich", {}, "rails:1", 1, ["nic1"]),
        ("mpich", {}, "rails:0,2", 2, ["nic0", "nic2"]),
        ("mpich", {}, "spread", 3, ["nic0", "nic1", "nic2"]),
        ("mpich", {"MPIR_CVAR_CH4_NETMOD": "ofi"}, "rails:1", 1, ["nic1"]),
        ("mpich", {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}, "rails:0", 1, ["nic0"]),
        ("intelmpi", {}, "rails:1", 1, ["nic1"]),
        ("openmpi5", {}, "rails:1", 1, ["nic1"]),
        ("openmpi5", {}, "rails:0,2", 2, ["nic0", "nic2"]),
        ("openmpi5", {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any"},
         "rails:1,2", 2, ["nic1", "nic2"]),
    ],
)  # fmt: skip
def test_a_large_message_crosses_exactly_the_chosen_nics(
    hosts: Hosts, stack: str, env: Mapping[str, str], policy: str, count: int, used: list[str]
) -> None:
    gang = held(hosts, stack, env, count, policy)
    ran = hosts.run(stack, pingpong(stack), {**env, **gang.env})
    assert ran.output.exits[0].exit_code == 0, ran.output.streams
    assert ran.used == both(*used)
    assert ran.used == {node: set(nics) for node, nics in gang.nics.items()}


def test_intel_mpi_over_tcp_uses_two_nics_when_each_of_two_ranks_has_its_own(hosts: Hosts) -> None:
    gang = held(hosts, "intelmpi", {}, 2, "rails:0,2", ranks=2)
    files = wrap.files(gang.ranks, ["FI_TCP_IFACE"], "mpiexec", "intelmpi")
    argv = wrap.command((pingpong("intelmpi")[0], "Alltoall", *pingpong("intelmpi")[2:]))
    ran = hosts.run("intelmpi", argv, {}, ranks_per_node=2, files=files)
    assert ran.output.exits[0].exit_code == 0, ran.output.streams
    _, ranks = wrap.reports(ran.output)
    assert [(rank.host, rank.env["FI_TCP_IFACE"]) for rank in ranks] == [
        ("node1", "nic0"), ("node1", "nic2"), ("node2", "nic0"), ("node2", "nic2")
    ]  # fmt: skip
    assert ran.used == both("nic0", "nic2")


def test_a_stack_that_uses_fewer_nics_than_asked_is_seen(hosts: Hosts) -> None:
    def seen(env: Mapping[str, str]) -> int | None:
        before = hosts.look("node1")["nics"]
        ran = hosts.run("mpich", pingpong("mpich"), env)
        assert ran.output.exits[0].exit_code == 0, ran.output.streams
        marks = [(0.0, before), (1.0, hosts.look("node1")["nics"])]
        usable = nics.usable(hosts.nodes[0], Fabric())
        return nics.observed(marks, {1 << 20: (0.0, 1.0)}, names(usable))[1 << 20]

    asked = held(hosts, "mpich", {}, 2, "first").env
    assert seen(asked) == 2
    assert seen({**asked, "UCX_NET_DEVICES": "nic0"}) == 1


def test_nics_of_other_names_on_another_node_are_used_all_the_same(
    runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lab.up(2, 2, "400mbit", "names", ray=False)
    hosts = Hosts("names", tmp_path_factory.mktemp("ranks"), ["node1", "node2"])
    hosts.rename("node2", "nic1", "port7")
    gang = held(hosts, "mpich", {}, 1, "rails:1")
    assert gang.nics == {"node1": ("nic1",), "node2": ("port7",)}
    files = wrap.files(gang.ranks, ["UCX_NET_DEVICES"], "mpiexec", "mpich")
    ran = hosts.run("mpich", wrap.command(pingpong("mpich")), gang.env, files=files)
    assert ran.output.exits[0].exit_code == 0, ran.output.streams
    assert ran.used == {"node1": {"nic1"}, "node2": {"port7"}}
