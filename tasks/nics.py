"""A node's NICs: which may carry benchmark traffic, which `k` of them do, and which were seen to. Pure.

A NIC with a port in its name (`mlx5_0:1`) is an RDMA port, on InfiniBand or Ethernet; one without (`eth1`) is a network
device. A NIC's *rail* is its place among the usable NICs of its node, since names differ between nodes.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from schemas.attempt import Counters
from schemas.errors import InputError, Problem
from schemas.plan import Nic, Node
from schemas.spec import Fabric

ENOUGH_BYTES = 64 * 1024
"""A window that moved less says nothing: connections being made weigh as much as the messages."""
SHARE = 0.01
"""A NIC carried traffic if it moved more than this part of the total (DOMAIN section 6)."""
EDGE_S = 0.003
"""How far from a window's edge a look may be to stand for it: looks that lines cause come just after their line."""
EDGE_PART = 0.05
"""The same as a part of the window, which is what counts for short ones."""

Mark = tuple[float, Counters]
"""One look at a node's counters (`schemas.attempt.Looks`): seconds since the attempt's start, and what they said."""

Key = TypeVar("Key")

_UP = frozenset({"ACTIVE", "UP"})
_SELECTOR = {"link_layer": re.compile("infiniband|ethernet"), "rail": re.compile(r"\d+(,\d+)*")}
_PREFIX = re.compile(r"(?:[\w.:-]*[\w:-])?\*")  # `eth*`; not `eth.*`, which is a regular expression
_RAILS = re.compile(r"rails:(\d+(?:,\d+)*)")


def is_port(nic: Nic) -> bool:
    """Whether it is an RDMA port; a network device otherwise."""
    return ":" in nic.name


def device(nic: Nic) -> str:
    """Its name without the port: `mlx5_0` of `mlx5_0:1`."""
    return nic.name.partition(":")[0]


def selector_problem(selector: Mapping[str, str]) -> str | None:
    """What is wrong with a selector of a site; None if nothing."""
    for key, value in selector.items():
        if key == "name":
            try:
                _matcher(value)
            except re.error as error:
                return f"name = {value!r} is no regular expression ({error}), and no prefix such as `mlx5_*`"
        elif key not in _SELECTOR:
            return f"a selector has no `{key}`; it has link_layer, name and rail"
        elif not _SELECTOR[key].fullmatch(value):
            return f"{key} = {value!r} is not of the form {_SELECTOR[key].pattern}"
    return None


def usable(node: Node, fabric: Fabric) -> tuple[Nic, ...] | None:
    """The NICs of a node that the site keeps and that are up, in rail order; None where its NICs are unknown.

    Rail order is the natural order of their names: mlx5_2 before mlx5_10. Unless the site names them one by one, they
    are all of one kind, for no stack uses two: InfiniBand ports, else RDMA ports on Ethernet, else network devices; an
    RDMA port is a network device as well, and would count twice. InputError for a selector that is none.
    """
    if node.nics is None:
        return None
    up = sorted((nic for nic in node.nics if nic.state is None or nic.state.upper() in _UP), key=_natural)
    if not isinstance(fabric.nics, Mapping) and fabric.nics is not None:
        return tuple(nic for nic in up if nic.name in fabric.nics or device(nic) in fabric.nics)
    selector = {} if fabric.nics is None else fabric.nics
    if (problem := selector_problem(selector)) is not None:
        raise InputError(Problem("fabric.nics", problem))
    kept = _of_one_kind([nic for nic in up if _keeps(selector, nic)])
    if "rail" in selector:
        wanted = {int(rail) for rail in selector["rail"].split(",")}
        return tuple(nic for rail, nic in enumerate(kept) if rail in wanted)
    return tuple(kept)


def choose(nics: Sequence[Nic], count: int | None, policy: str = "spread") -> tuple[Nic, ...] | str:
    """Which `count` of a node's usable NICs a trial uses, in rail order; or the reason why that cannot be.

    The NICs of a smaller count are among those of a larger one. None chooses nothing: all, as the stack has it.
    InputError for a policy that is none.
    """
    if count is None:
        return tuple(nics)
    order = _order(nics, policy)
    if count > len(order):
        have = f"{policy} names {len(order)}" if _RAILS.fullmatch(policy) else _listed(nics)
        return f"needs {count} NICs, {have}"
    if (rail := max(order[:count])) >= len(nics):
        return f"{policy} asks for rail {rail}, {_listed(nics)}"
    return tuple(nics[rail] for rail in sorted(order[:count]))


def chosen(nodes: Sequence[Node], fabric: Fabric, count: int | None) -> dict[str, tuple[Nic, ...]] | str:
    """Node -> the NICs that a trial uses there; or the reason why some node cannot provide them."""
    found: dict[str, tuple[Nic, ...]] = {}
    for node in nodes:
        there = usable(node, fabric)
        if there is None:
            return f"the NICs of {node.name} are unknown"
        picked = choose(there, count, fabric.nic_policy)
        if isinstance(picked, str):
            return f"{node.name}: {picked}"
        found[node.name] = picked
    return found


def observed(
    marks: Sequence[Mark], windows: Mapping[Key, tuple[float, float]], nics: Collection[str]
) -> dict[Key, int | None]:
    """Message size -> how many of `nics` carried traffic on this node while it was measured; None: cannot be told.

    `windows` are seconds since the attempt's start, on the clock of `marks`, which ascend in time. Counted is the
    direction that moved more, since a node that only receives sends nothing but acknowledgements. A counter that goes
    backwards was reset, and counts from zero again.
    """
    times = [t for t, _ in marks]
    found: dict[Key, int | None] = {}
    for key, (begin, end) in windows.items():
        first, last = _edges(times, begin, end)
        inside = marks[first : last + 1] if last > first else ()
        ways = [[_moved(inside, nic, way) for nic in nics] for way in ("tx_bytes", "rx_bytes")]
        bytes_moved = max(ways, key=sum)
        total = sum(bytes_moved)
        found[key] = sum(each > SHARE * total for each in bytes_moved) if total >= ENOUGH_BYTES else None
    return found


def _natural(nic: Nic) -> list[str | int]:
    """Numbers inside a name as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", nic.name)]


def _matcher(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name[:-1]) + ".*" if _PREFIX.fullmatch(name) else name)


def _keeps(selector: Mapping[str, str], nic: Nic) -> bool:
    if selector.get("link_layer", nic.link_layer) != nic.link_layer:
        return False
    if "name" not in selector:
        return True
    matcher = _matcher(selector["name"])
    return matcher.fullmatch(nic.name) is not None or matcher.fullmatch(device(nic)) is not None


def _of_one_kind(nics: Sequence[Nic]) -> list[Nic]:
    def kind(nic: Nic) -> int:
        return (0 if nic.link_layer == "infiniband" else 1) if is_port(nic) else 2

    best = min(map(kind, nics), default=2)
    return [nic for nic in nics if kind(nic) == best]


def _order(nics: Sequence[Nic], policy: str) -> list[int]:
    """Rails in the order in which a policy takes them."""
    if policy == "first":
        return list(range(len(nics)))
    if policy == "spread":
        return _spread(nics)
    if (rails := _RAILS.fullmatch(policy)) is not None:
        return list(dict.fromkeys(int(rail) for rail in rails[1].split(",")))
    raise InputError(
        Problem("fabric.nic_policy", f"there is no policy {policy!r}", 'write "spread", "first", "rails:0,4"')
    )


def _spread(nics: Sequence[Nic]) -> list[int]:
    """One NUMA node after the other, and far apart within one, for neighbours often share a PCIe switch."""
    groups: dict[int | None, list[int]] = {}
    for rail, nic in enumerate(nics):
        groups.setdefault(nic.numa, []).append(rail)
    turns = itertools.zip_longest(*([group[place] for place in _apart(len(group))] for group in groups.values()))
    return [rail for turn in turns for rail in turn if rail is not None]


def _apart(count: int) -> Iterator[int]:
    """0 … count - 1 so that each start of the sequence lies spread: 0, 4, 2, 6, 1, 5, 3, 7 (bits reversed)."""
    bits = (count - 1).bit_length()
    for number in range(1 << bits):
        place = int(f"{number:0{bits}b}"[::-1], 2)
        if place < count:
            yield place


def _listed(nics: Sequence[Nic]) -> str:
    names = ", ".join(nic.name for nic in nics)
    return f"{len(nics)} are usable ({names})" if nics else "none is usable"


def _edges(times: Sequence[float], begin: float, end: float) -> tuple[int, int]:
    """The marks that stand for a window's edges; the second is not above the first where there are no two."""
    slack = min(EDGE_S, EDGE_PART * (end - begin))
    first, last = bisect_left(times, begin), bisect_right(times, end) - 1
    inside_after, inside_before = times[first : first + 1], times[max(last, 0) : last + 1]
    if first > 0 and begin - times[first - 1] <= min([slack, *(t - begin for t in inside_after)]):
        first -= 1
    if last + 1 < len(times) and times[last + 1] - end <= min([slack, *(end - t for t in inside_before)]):
        last += 1
    return first, last


def _moved(marks: Sequence[Mark], nic: str, counter: str) -> int:
    """By how much a NIC's counter rose over these marks; a mark that does not show it is passed over."""
    seen = [counters[nic][counter] for _, counters in marks if counter in counters.get(nic, {})]
    return sum(after - before if after >= before else after for before, after in itertools.pairwise(seen))
