"""What the NICs carried during an attempt, from the looks at their counters: totals, series, foreign traffic. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from schemas.attempt import Counters, Looks, Output
from schemas.plan import Nic, Node

FOREIGN_SHARE = 0.01
"""Of a NIC's rate; more than that while we were idle is somebody else's traffic."""
FOREIGN_BYTES_PER_S = 5e6
"""The same where the rate is unknown."""
SHORTEST_IDLE_S = 0.05
"""An idle time that is shorter tells nothing: what moves in it may be the end of our own."""

Total = tuple[Node, Nic, int, int]
"""Node, NIC, bytes sent, bytes received."""


def totals(output: Output, nodes: Sequence[Node]) -> Iterator[Total]:
    """Bytes that each NIC sent and received between the first and the last look of its node."""
    for index, looks in sorted(output.looks.items()):
        if len(looks.taken) < 2:
            continue
        (_, first), (_, last) = looks.taken[0], looks.taken[-1]
        for nic in nodes[index].nics or ():
            if nic.name in first and nic.name in last:
                sent = _moved(first, last, nic.name, "tx_bytes")
                yield nodes[index], nic, sent, _moved(first, last, nic.name, "rx_bytes")


def errors(output: Output, nodes: Sequence[Node]) -> dict[str, int]:
    """Error counters that rose during the attempt: "node nic counter" -> by how much."""
    rose: dict[str, int] = {}
    for index, looks in sorted(output.looks.items()):
        if len(looks.taken) < 2:
            continue
        (_, first), (_, last) = looks.taken[0], looks.taken[-1]
        for nic in nodes[index].nics or ():
            for counter in last.get(nic.name, {}):
                moved = _moved(first, last, nic.name, counter)
                if moved and not counter.endswith(("_bytes", "_packets", "_wait", "_data")):
                    rose[f"{nodes[index].name} {nic.name} {counter}"] = moved
    return rose


def contaminated(output: Output, nodes: Sequence[Node]) -> bool | None:
    """Whether somebody else's traffic was on our NICs just before the attempt; None where no look could tell."""
    told = [_foreign(looks, nodes[index]) for index, looks in sorted(output.looks.items())]
    known = [each for each in told if each is not None]
    return any(known) if known else None


def _foreign(looks: Looks, node: Node) -> bool | None:
    if looks.idle_s is None or looks.before is None or looks.idle_s < SHORTEST_IDLE_S or not looks.taken:
        return None
    now = looks.taken[0][1]
    for nic in node.nics or ():
        allowed = FOREIGN_BYTES_PER_S if nic.rate_gbps is None else FOREIGN_SHARE * nic.rate_gbps * 1e9 / 8
        for way in ("tx_bytes", "rx_bytes"):
            if _moved(looks.before, now, nic.name, way) > allowed * looks.idle_s:
                return True
    return False


Series = tuple[Node, str, str, tuple[float, ...], tuple[int, ...]]
"""Node, NIC, counter, elapsed seconds of each step since the attempt's start there, what moved in each step."""


def series(output: Output, nodes: Sequence[Node]) -> Iterator[Series]:
    """Each NIC's byte counters as steps between looks; a step over a reset holds what came after it."""
    for index, looks in sorted(output.looks.items()):
        for nic in nodes[index].nics or ():
            seen = [(t, counters) for t, counters in looks.taken if nic.name in counters]
            steps = list(itertools.pairwise(seen))
            for way in ("tx_bytes", "rx_bytes"):
                moved = tuple(_moved(before, after, nic.name, way) for (_, before), (_, after) in steps)
                if any(moved):
                    yield nodes[index], nic.name, way, tuple(round(t, 6) for _, (t, _) in steps), moved


def _moved(first: Counters, last: Counters, nic: str, counter: str) -> int:
    """By how much a counter rose; one that went backwards was reset, it did not wrap."""
    before, after = first.get(nic, {}).get(counter, 0), last.get(nic, {}).get(counter, 0)
    return after - before if after >= before else after
