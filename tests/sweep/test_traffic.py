"""What the NICs carried, from looks at their counters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.attempt import Asked, Counters, Looks, Output
from schemas.plan import Nic, Node
from sweep.traffic import contaminated, errors, series, totals

NODES = [Node("a", nics=(Nic("nic0", "ethernet", 0.4),)), Node("b", nics=(Nic("mlx5_0:1", "infiniband", 400.0),))]


def output(*looks: Looks) -> Output:
    return Output(Asked("b", "o"), 0.0, 1.0, "exited", looks=dict(enumerate(looks)))


def at(nic: str, tx: int, rx: int = 0, **more: int) -> Counters:
    return {nic: {"tx_bytes": tx, "rx_bytes": rx, **more}, "lo": {"tx_bytes": 10**9 + tx, "rx_bytes": 0}}


def seen(nic: str, counts: Sequence[int]) -> Looks:
    return Looks(0.0, tuple((float(t), at(nic, count)) for t, count in enumerate(counts)))


def test_totals_are_of_the_nodes_nics_alone_and_on_every_node() -> None:
    found = list(totals(output(seen("nic0", [5, 10, 105]), seen("mlx5_0:1", [0, 7])), NODES))
    assert [(node.name, nic.name, tx, rx) for node, nic, tx, rx in found] == [
        ("a", "nic0", 100, 0),
        ("b", "mlx5_0:1", 7, 0),
    ]


def test_a_counter_that_went_backwards_was_reset_and_is_no_wrap() -> None:
    [(_, _, tx, _)] = totals(output(seen("nic0", [1000, 40])), NODES)
    assert tx == 40


@given(st.lists(st.integers(0, 1 << 40), min_size=2, max_size=20))
def test_the_steps_of_a_series_add_up_to_the_total(moved: list[int]) -> None:
    counts = [sum(moved[:end]) for end in range(len(moved) + 1)]
    found = output(seen("nic0", counts))
    [(_, _, total, _)] = totals(found, NODES)
    steps = [each for each in series(found, NODES) if each[2] == "tx_bytes"]
    assert sum(sum(each[4]) for each in steps) == total == sum(moved)
    assert all(len(each[3]) == len(each[4]) == len(moved) for each in steps)


@pytest.mark.parametrize(
    ("idle", "before", "now", "told"),
    [
        (None, None, 0, None),
        (0.01, 0, 10**9, None),
        (1.0, 0, 100_000, False),
        (1.0, 0, 600_000, True),
    ],
)
def test_traffic_while_we_were_idle_is_somebody_elses(
    idle: float | None, before: int | None, now: int, told: bool | None
) -> None:
    counters = None if before is None else at("nic0", before)
    assert contaminated(output(Looks(0.0, ((0.0, at("nic0", now)),), idle, counters)), NODES) is told


def test_error_counters_that_rose_are_named_with_node_and_nic() -> None:
    looks = Looks(0.0, ((0.0, at("nic0", 0, tx_errors=1)), (1.0, at("nic0", 9, tx_errors=4))))
    assert errors(output(looks), NODES) == {"a nic0 tx_errors": 3}


def test_without_two_looks_nothing_is_said() -> None:
    assert list(totals(output(seen("nic0", [1])), NODES)) == []
    assert contaminated(output(), NODES) is None
