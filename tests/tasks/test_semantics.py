"""What sizes mean: payload in nccl-tests' sense, and bus factors."""

from __future__ import annotations

import pytest

from tasks.benchmarks import get
from tasks.semantics import bus_factor, payload_bytes


@pytest.mark.parametrize(
    ("tool", "operation", "payload"),
    [
        ("imb", "allreduce", 1000),
        ("imb", "bcast", 1000),
        ("imb", "allgather", 4000),
        ("imb", "alltoallv", 4000),
        ("imb", "reduce_scatter", 4000),
        ("imb", "pingpong", 1000),
        ("imb", "exchange", 2000),
        ("imb", "barrier", None),
        ("mpi4py", "ringtest", 1000),
    ],
)
def test_a_size_becomes_the_larger_buffer_of_one_rank(tool: str, operation: str, payload: int | None) -> None:
    assert payload_bytes(tool, operation, 1000, 4) == payload
    assert payload_bytes(tool, operation, None, 4) is None


def test_an_unknown_tool_is_an_error() -> None:
    with pytest.raises(KeyError):
        payload_bytes("nosuch", "allreduce", 1, 2)


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("allreduce", 1.5),
        ("allgather", 0.75),
        ("reduce_scatter_block", 0.75),
        ("alltoall", 0.75),
        ("scatterv", 0.75),
        ("bcast", 1.0),
        ("reduce", 1.0),
        ("sendrecv", 1.0),
        ("pingpong", 1.0),
        ("reduce_local", None),
        ("barrier", None),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(operation: str, factor: float | None) -> None:
    assert bus_factor(operation, 4) == factor
    assert bus_factor(operation, 1) is None


@pytest.mark.parametrize("tool", ["imb", "mpi4py"])
def test_every_sized_operation_has_a_payload(tool: str) -> None:
    for operation, each in get(tool).operations.items():
        assert (payload_bytes(tool, operation, 8, 2) is not None) == each.sized
