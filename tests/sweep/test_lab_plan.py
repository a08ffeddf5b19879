"""What a lab is to be, as text in and plain data out; and why one cannot be had, in one line."""

from __future__ import annotations

import errno
import tomllib
from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import InputError
from sweep import lab_network, lab_plan, lab_trouble

shapes = st.builds(
    lab_plan.Plan,
    name=st.from_regex(r"[a-z0-9][a-z0-9-]{0,30}", fullmatch=True),
    nodes=st.integers(1, lab_plan.MOST_NODES),
    nics=st.integers(1, lab_plan.MOST_NICS),
    rate=st.integers(lab_plan.LEAST_RATE, lab_plan.MOST_RATE),
    ray=st.booleans(),
)


@settings(max_examples=20, deadline=None)
@given(shapes)
def test_no_two_devices_of_a_lab_share_an_address(plan: lab_plan.Plan) -> None:
    addresses = [ip for host in (lab_plan.SWITCH, *plan.hosts) for ip in plan.addresses(host).values()]
    assert len(addresses) == len({ip_address(ip) for ip in addresses})


@settings(max_examples=20, deadline=None)
@given(shapes)
def test_the_names_of_the_far_ends_fit_the_kernels_fifteen_bytes(plan: lab_plan.Plan) -> None:
    assert all(len(lab_network.port(host, device)) <= 15 for host in plan.hosts for device in plan.addresses(host))


@given(shapes)
def test_the_site_file_is_toml_that_names_the_nics_and_their_rate(plan: lab_plan.Plan) -> None:
    site = tomllib.loads(lab_plan.site_text(plan))
    assert site["fabric"]["nics"] == [f"nic{rail}" for rail in range(plan.nics)]
    assert site["fabric"]["link_gbps"] * 1e9 == pytest.approx(plan.rate)


@given(st.integers(lab_plan.LEAST_RATE // 1000, lab_plan.MOST_RATE // 1000))
def test_a_rate_is_read_as_it_is_written(kbit: int) -> None:
    assert lab_plan.parse_rate(f"{kbit}kbit") == kbit * 1000


@pytest.mark.parametrize(
    ("text", "rate"), [("400mbit", 400_000_000), ("2.5Gbit", 2_500_000_000), (" 10 mbit ", 10_000_000)]
)
def test_rates_have_a_number_and_a_unit(text: str, rate: int) -> None:
    assert lab_plan.parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "fast", "400", "400mbps", "-1mbit", "1e3mbit", "nanmbit", "0mbit", "100gbit", "1kbit"]
)
def test_a_rate_that_cannot_be_had_is_refused_in_one_line_with_a_remedy(text: str) -> None:
    with pytest.raises(InputError) as caught:
        lab_plan.parse_rate(text)
    assert len(str(caught.value).splitlines()) == 1
    assert "mbit" in caught.value.problems[0].remedy


def test_everything_that_is_wrong_with_a_shape_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        lab_plan.check("../etc", nodes=0, nics=17, rate="fast", ray=True)
    assert [problem.where for problem in caught.value.problems] == ["--name", "--nodes", "--nics", "--rate"]


@pytest.mark.parametrize(
    ("step", "number", "settings", "remedy"),
    [
        ("namespaces", errno.EPERM, {lab_trouble.APPARMOR: "1"}, f"sysctl {lab_trouble.APPARMOR}=0"),
        ("mounts", errno.EACCES, {lab_trouble.APPARMOR: "1"}, f"sysctl {lab_trouble.APPARMOR}=0"),
        ("namespaces", errno.EPERM, {lab_trouble.CLONE: "0"}, f"sysctl {lab_trouble.CLONE}=1"),
        ("namespaces", errno.EPERM, {lab_trouble.APPARMOR: "0"}, "seccomp=unconfined"),
        ("mounts", errno.EPERM, {}, "systempaths=unconfined"),
        ("namespaces", errno.ENOSPC, {lab_trouble.MOST: "0"}, f"sysctl {lab_trouble.MOST}="),
        ("host", errno.ENOSPC, {}, f"sysctl {lab_trouble.MOST}="),
        ("namespaces", errno.EINVAL, {}, "as root"),
        ("bridges", errno.EOPNOTSUPP, {}, "modprobe bridge"),
        ("host", errno.EOPNOTSUPP, {}, "modprobe veth"),
        ("host", errno.ENOENT, {}, "modprobe sch_tbf"),
        ("wires", errno.ENOENT, {}, "modprobe sch_tbf"),
        ("wires", errno.ENODEV, {}, "No such device"),
        ("bridges", None, {}, "No such device"),
    ],
)
def test_every_failure_is_one_line_that_says_what_to_do(
    step: str, number: int | None, settings: dict[str, str], remedy: str
) -> None:
    line = lab_trouble.explain(step, number, "No such device", settings)
    assert remedy in line
    assert "\n" not in line
