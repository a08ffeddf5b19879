"""What a tool's message size means, in nccl-tests' sense, so that tools can be compared.

In that sense (nccl-tests doc/PERFORMANCE.md and src/*.cu) the size S of an operation is the bytes of the larger buffer
of one rank: the vector of an allreduce, reduce or broadcast, the whole gathered, scattered or exchanged array of the
others. algbw = S / time, busbw = algbw * bus factor.
"""

from __future__ import annotations

from collections.abc import Mapping

_VECTOR = frozenset({"allreduce", "bcast", "reduce", "reduce_local"})
_ARRAY = frozenset({
    "allgather", "allgatherv", "alltoall", "alltoallv", "gather", "gatherv", "reduce_scatter", "reduce_scatter_block",
    "scatter", "scatterv",
})  # fmt: skip
_POINT_TO_POINT = frozenset({
    "biband", "exchange", "pingping", "pingpinganysource", "pingpingspecificsource", "pingpong", "pingponganysource",
    "pingpongspecificsource", "ringtest", "sendrecv", "uniband",
})  # fmt: skip

_SIZED = _VECTOR | _ARRAY | _POINT_TO_POINT

_BLOCKS: Mapping[str, frozenset[str]] = {
    "imb": _ARRAY,  # src_c/IMB_*.c of 2019.1 and later: `size` is the block of one rank or one destination
    "mpi4py": frozenset(),
}
"""Tool -> the operations whose size is one block of as many as there are ranks; elsewhere it is the whole."""

_TWICE = frozenset({("imb", "exchange")})
"""Sends its size to both neighbours (IMB_exchange.c: the send buffer holds two messages)."""


def payload_bytes(tool: str, operation: str, size: int | None, ranks: int) -> int | None:
    """Message size in nccl-tests' sense, in bytes; None where there is none (a barrier).

    `size` is as the tool prints it, `operation` in canonical lower-case spelling. KeyError for an unknown tool.
    """
    blocks = _BLOCKS[tool]
    if size is None or operation not in _SIZED:
        return None
    if operation in blocks:
        return size * ranks
    return 2 * size if (tool, operation) in _TWICE else size


def bus_factor(operation: str, ranks: int) -> float | None:
    """The ratio busbw / algbw for that many ranks; None where nothing crosses a bus.

    That is a barrier, a local reduction, or a single rank. Otherwise, by nccl-tests doc/PERFORMANCE.md: 2(n-1)/n for an
    allreduce, (n-1)/n where each rank keeps its own part, 1 where every byte crosses.
    """
    if ranks < 2 or operation == "reduce_local":
        return None
    if operation == "allreduce":
        return 2 * (ranks - 1) / ranks
    if operation in _ARRAY:
        return (ranks - 1) / ranks
    return 1.0 if operation in _VECTOR | _POINT_TO_POINT else None
