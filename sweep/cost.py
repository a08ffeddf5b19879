"""What a launch is expected to take: the cost model behind estimates and automatic time-outs."""

from __future__ import annotations

from schemas.plan import Trial

START_S = 0.7
"""Starting a launcher and its ranks, measured on a laptop; clusters take longer, hence the factor below."""
LATENCY_S = 5e-6
BANDWIDTH = 1e9
"""Bytes per second per rank; a deliberately slow fabric, so that an estimate is rarely too short."""
FLOOR_S = 60.0
MARGIN = 20.0


def estimate(trial: Trial) -> float:
    """Seconds that one launch is expected to take."""
    parameters = trial.combination.parameters
    iterations = parameters.get("iterations", 1)
    count = float(iterations) if isinstance(iterations, (int, float)) else 1.0
    ranks = trial.combination.nodes * trial.combination.ranks_per_node
    per_size = sum(LATENCY_S * ranks + (size or 0) * ranks / BANDWIDTH for size in trial.sizes)
    return START_S + count * per_size


def timeout(trial: Trial, asked: float | None) -> float:
    """Seconds until an attempt is killed: what the spec says, or the estimate with a wide margin and a floor."""
    return asked if asked is not None else max(FLOOR_S, MARGIN * estimate(trial))
