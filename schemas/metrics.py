"""Every metric we archive: its canonical unit, its direction, and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower", "none"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's canonical unit and which direction is better."""

    name: str
    unit: str
    better: Direction
    meaning: str


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("time", "us", "lower", "time per operation; pt2pt latency is one way (half round trip)"),
        Metric("time_min", "us", "lower", "the fastest rank's time per operation"),
        Metric("time_max", "us", "lower", "the slowest rank's time per operation"),
        Metric("time_stdev", "us", "lower", "standard deviation of the time per operation"),
        Metric("time_p50", "us", "lower", "median time per operation"),
        Metric("time_p95", "us", "lower", "95th percentile of the time per operation"),
        Metric("time_p99", "us", "lower", "99th percentile of the time per operation"),
        Metric("bandwidth", "GB/s", "higher", "what the tool calls bandwidth, in 1e9 bytes per second"),
        Metric("algbw", "GB/s", "higher", "payload_bytes / time, in 1e9 bytes per second"),
        Metric("busbw", "GB/s", "higher", "algbw times the operation's bus factor (nccl-tests doc/PERFORMANCE.md)"),
        Metric("message_rate", "1/s", "higher", "messages per second"),
        Metric("defects", "1", "lower", "wrong elements that the tool's own check found"),
        Metric("overlap", "%", "higher", "share of communication hidden under computation"),
        Metric("time_pure", "us", "lower", "time of the operation alone, without computation beside it"),
        Metric("time_compute", "us", "none", "time of the computation beside a non-blocking operation"),
        Metric("step_time", "s", "lower", "wall time of one training step"),
        Metric("tokens_per_second", "1/s", "higher", "training throughput, whole job"),
        Metric("samples_per_second", "1/s", "higher", "training throughput, whole job"),
        Metric("tflops_per_gpu", "TFLOP/s", "higher", "model TFLOP/s per GPU"),
        Metric("duration", "s", "lower", "wall time of the whole launch"),
    )
}
"""The vocabulary. A `command` may name others: they carry the unit that the user declares."""
