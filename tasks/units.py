"""Units as people and programs write them, turned into the canonical unit of a metric."""

from __future__ import annotations

from collections.abc import Mapping

_SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "msec": 1e-3, "us": 1e-6, "usec": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BYTES = {
    "B/s": 1.0, "kB/s": 1e3, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12,
    "KiB/s": 2.0**10, "MiB/s": 2.0**20, "GiB/s": 2.0**30,
    "bit/s": 1 / 8, "kbit/s": 1e3 / 8, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8,
    "Kb/s": 1e3 / 8, "Mb/s": 1e6 / 8, "Gb/s": 1e9 / 8, "Mbps": 1e6 / 8, "Gbps": 1e9 / 8,
}  # fmt: skip
_RATE = {"1/s": 1.0, "/s": 1.0, "K/s": 1e3, "M/s": 1e6}
_FLOPS = {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15, "GFLOPS": 1e9, "TFLOPS": 1e12, "PFLOPS": 1e15}

UNITS: Mapping[str, Mapping[str, float]] = {
    "us": {unit: value * 1e6 for unit, value in _SECONDS.items()},
    "s": _SECONDS,
    "GB/s": {unit: value / 1e9 for unit, value in _BYTES.items()},
    "1/s": _RATE,
    "TFLOP/s": {unit: value / 1e12 for unit, value in _FLOPS.items()},
    "%": {"%": 1.0, "1": 100.0},
    "1": {"1": 1.0},
}
"""Canonical unit -> how else it may be written -> what one of that is; case matters: MB/s is not Mb/s."""


def factor(unit: str, canonical: str) -> float:
    """What one `unit` is in `canonical` units. ValueError, with what would be right, for a unit of another kind."""
    known = UNITS.get(canonical, {canonical: 1.0})
    if unit not in known:
        raise ValueError(f"`{unit}` is no unit for {canonical}; write one of {', '.join(known)}")
    return known[unit]
