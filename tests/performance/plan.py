"""A million points planned: seconds and memory, alone in a process of its own."""

from __future__ import annotations

import json
import resource
import time

from archive.where import keep
from schemas.plan import Inventory
from schemas.spec import Level, Spec
from sweep.expand import expand


def main() -> None:
    """Plan 20 sizes × 50,000 combinations, once plain and once through `where`."""
    factors: dict[str, tuple[Level, ...]] = {
        "benchmark": ("imb.allreduce",),
        "message_size": tuple(4 << power for power in range(20)),
        "ranks_per_node": tuple(range(2, 52)),
        "env.A": tuple(range(25)),
        "env.B": tuple(range(40)),
    }
    for where in (None, 'ranks_per_node > 0 OR "env.A" = 3'):
        start = time.perf_counter()
        made = expand(Spec(name="million", factors=factors, where=where), Inventory(), keep, 1)
        took = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(json.dumps({"where": where, "points": made.points, "seconds": round(took, 2), "peak_gb": round(peak, 2)}))


if __name__ == "__main__":
    main()
