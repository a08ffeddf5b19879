"""Spec + inventory -> plan: pure expansion, coalescing, identities, blocks and their order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from uuid import UUID

from schemas.errors import InputError, Problem
from schemas.identity import hash_id
from schemas.plan import Combination, Inventory, Plan, Setup, Trial
from schemas.spec import DEFAULTS, Level, Site, Spec
from sweep.cost import estimate
from sweep.placement import NodeSet, node_sets
from sweep.support import refusal, without_launcher, without_nics, without_ranks
from tasks import benchmarks
from tasks.launchers import merge

Keep = Callable[[str, Mapping[str, Sequence[Level | None]]], Sequence[bool]]
"""`where` and the factors' columns -> which rows stay."""


def expand(spec: Spec, inventory: Inventory, keep: Keep, seed: int) -> Plan:
    """Every trial of a spec in the order of execution. InputError when nothing is left to measure."""
    total, asked = 0, 0
    combinations: list[tuple[Combination, tuple[int | None, ...]]] = []
    make = _Maker(spec, inventory, seed)
    for axes in _grids(spec):
        kept, points = _kept(spec, axes, keep)
        total += points
        asked += sum(len(sizes) for _, sizes in kept)
        combinations.extend((make.combination(levels), sizes) for levels, sizes in kept)
    combinations, asked = _distinct(combinations, asked)
    _check_parameters(spec, [combination for combination, _ in combinations])
    if not asked:
        raise InputError(
            Problem(spec.source, "the grid is empty", f"`where` excludes all {total} points: {spec.where}")
        )
    launches = [each for combination, sizes in combinations for each in make.launches(combination, sizes)]
    trials = tuple(_order(spec, launches, seed))
    launched = [trial for trial in trials if trial.unsupported is None]
    return Plan(
        spec=spec,
        trials=trials,
        seed=seed,
        points=asked,
        excluded=total - asked,
        launches_saved=sum(len(trial.sizes) - 1 for trial in launched),
        estimate_s=sum(map(estimate, launched)),
    )


def point_id(combination: Combination, size: int | None) -> UUID:
    """The identity of one question; defaults are left out, so that a new parameter changes no old id."""
    return hash_id({**question(combination), **({} if size is None else {"message_size": size})})


def question(combination: Combination) -> dict[str, object]:
    """What a point asks, message size aside, in the form that is hashed."""
    own = f"{combination.benchmark}."
    defaults = {each.name: each.default for each in benchmarks.get(combination.benchmark).parameters}
    return {
        "benchmark": combination.benchmark,
        "operation": combination.operation,
        "factors": {name: level for name, level in combination.factors.items() if not name.startswith(own)},
        "parameters": {
            name: level
            for name, level in combination.parameters.items()
            if name not in defaults or level != defaults[name]
        },
    }


def trial_id(combination: Combination, sizes: Sequence[int | None], repeat: int, slot: int) -> UUID:
    """The identity of one launch: the point without its size, which sizes it measures, which repeat, which slot."""
    return hash_id({**question(combination), "sizes": list(sizes), "repeat": repeat, "slot": slot})


@dataclass(frozen=True, slots=True)
class _Launch:
    """A trial before it has a repeat and a place in the order."""

    combination: Combination
    sizes: tuple[int | None, ...]
    unsupported: str | None
    slot: int = 0
    members: NodeSet = ()


def _grids(spec: Spec) -> Iterator[dict[str, tuple[Level, ...]]]:
    """The axes of each grid: one per benchmark, then one per benchmark of each include."""
    named = {str(level).partition(".")[0] for level in spec.factors["benchmark"]}
    for extra in (None, *spec.include):
        axes = dict(spec.factors)
        if extra is not None:
            axes.update(extra)  # a factor that it does not name keeps all its levels
        for level in axes["benchmark"]:
            module = str(level).partition(".")[0]
            others = tuple(f"{name}." for name in named - {module})
            yield {
                "benchmark": (level,),
                **{
                    name: levels for name, levels in axes.items() if name != "benchmark" and not name.startswith(others)
                },
            }


def _check_parameters(spec: Spec, combinations: Iterable[Combination]) -> None:
    """What no level mends, such as a template that names no factor, is told before anything runs."""
    problems: dict[str, Problem] = {}
    seen: set[tuple[object, ...]] = set()
    for each in combinations:
        key = (each.benchmark, each.operation, _frozen(each.parameters))
        if key not in seen:
            seen.add(key)
            names = {*DEFAULTS, *spec.factors}
            problems |= {
                str(one): one for one in benchmarks.get(each.benchmark).check(each.operation, each.parameters, names)
            }
    if problems:
        raise InputError(replace(one, where=f"{spec.source}: factors.{one.where}") for one in problems.values())


_Kept = list[tuple[Mapping[str, Level], tuple[int | None, ...]]]


def _kept(spec: Spec, axes: Mapping[str, tuple[Level, ...]], keep: Keep) -> tuple[_Kept, int]:
    """The combinations of a grid with the sizes that `where` keeps, and the number of points before it."""
    names = [name for name in axes if name != "message_size"]
    sized = "message_size" in axes and _sized(axes["benchmark"][0])
    sizes: tuple[int | None, ...] = tuple(int(size) for size in axes["message_size"]) if sized else (None,)
    rows = [dict(zip(names, levels, strict=True)) for levels in itertools.product(*(axes[name] for name in names))]
    points = len(rows) * len(sizes)
    if spec.where is None:
        return [(row, sizes) for row in rows], points
    try:
        mask = keep(spec.where, _columns(rows, sizes, spec))
    except InputError as error:
        raise InputError(replace(one, where=f"{spec.source}: {one.where}") for one in error.problems) from error
    width = len(sizes)
    kept: _Kept = []
    for index, row in enumerate(rows):
        chosen = tuple(itertools.compress(sizes, mask[index * width : (index + 1) * width]))
        if chosen:
            kept.append((row, chosen))
    return kept, points


def _sized(benchmark: Level) -> bool:
    """Whether message size is a factor of this operation (a barrier has none)."""
    module, _, operation = str(benchmark).partition(".")
    return benchmarks.get(module).operations[operation].sized


def _columns(
    rows: Sequence[Mapping[str, Level]], sizes: Sequence[int | None], spec: Spec
) -> dict[str, list[Level | None]]:
    """One column per factor over all points: also those at their defaults, so that `where` may name any."""
    width = len(sizes)
    columns: dict[str, list[Level | None]] = {
        name: [level for row in rows for level in itertools.repeat(row.get(name, DEFAULTS.get(name)), width)]
        for name in dict.fromkeys([*DEFAULTS, *spec.factors])
        if name != "message_size"
    }
    names: list[Level | None] = [str(level).partition(".")[2] for level in columns["benchmark"]]
    sized: list[Level | None] = [*sizes] * len(rows)
    return {**columns, "operation": names, "message_size": sized}


def _distinct(
    combinations: Iterable[tuple[Combination, tuple[int | None, ...]]], asked: int
) -> tuple[list[tuple[Combination, tuple[int | None, ...]]], int]:
    """The same question asked twice (an include inside the grid) is asked once."""
    merged: dict[tuple[object, ...], tuple[Combination, tuple[int | None, ...]]] = {}
    for combination, sizes in combinations:
        key = (combination.benchmark, combination.operation, *_frozen(combination.factors))
        if key in merged:
            before = merged[key][1]
            added = tuple(size for size in sizes if size not in before)
            asked -= len(sizes) - len(added)
            merged[key] = (combination, tuple(sorted((*before, *added), key=lambda size: -1 if size is None else size)))
        else:
            merged[key] = (combination, sizes)
    return list(merged.values()), asked


def _frozen(levels: Mapping[str, Level]) -> tuple[tuple[str, str, Level], ...]:
    """Hashable, and apart where Python calls things equal: 1, 1.0 and True are three levels."""
    return tuple(sorted((name, type(level).__name__, level) for name, level in levels.items()))


class _Maker:
    """Makes combinations and launches; what depends on few factors only is worked out once."""

    def __init__(self, spec: Spec, inventory: Inventory, seed: int) -> None:
        self._spec = spec
        self._inventory = inventory
        self._seed = seed
        self._setups: dict[tuple[str, Level | None], Setup] = {}
        self._sets: dict[tuple[str, int], tuple[NodeSet, ...]] = {}
        self._splits: dict[tuple[object, ...], list[tuple[tuple[int | None, ...], str | None]]] = {}

    def combination(self, levels: Mapping[str, Level]) -> Combination:
        module, _, operation = str(levels["benchmark"]).partition(".")
        own = f"{module}."
        parameters = {each.name: each.default for each in benchmarks.get(module).parameters if not each.family}
        parameters |= {name.removeprefix(own): level for name, level in levels.items() if name.startswith(own)}
        factors = {
            name: level
            for name, level in levels.items()
            if name not in ("benchmark", "message_size") and not (name in DEFAULTS and level == DEFAULTS[name])
        }
        stack = levels.get("stack")
        if (setup := self._setups.get((module, stack))) is None:
            setup = self._setups[module, stack] = _setup(self._spec.site, self._inventory, module, stack)
        return Combination(module, operation, MappingProxyType(factors), MappingProxyType(parameters), setup)

    def launches(self, combination: Combination, sizes: tuple[int | None, ...]) -> Iterator[_Launch]:
        if reason := refusal(combination, self._spec.site, self._inventory):
            yield _Launch(combination, sizes, reason)
            return
        key = (
            combination.benchmark,
            combination.operation,
            combination.nodes * combination.ranks_per_node,
            _frozen(combination.parameters),
            sizes,
        )
        if (split := self._splits.get(key)) is None:
            split = self._splits[key] = list(_split(combination, sizes))
        for batch, refused in split:
            reason = refused or without_launcher(combination, batch, self._inventory)
            reason = reason or without_ranks(combination, batch)
            reason = reason or without_nics(combination, batch, self._spec.site, self._inventory)
            if reason is not None:
                yield _Launch(combination, batch, reason)
                continue
            for slot, members in enumerate(self._node_sets(combination)):
                yield _Launch(combination, batch, None, slot, members)

    def _node_sets(self, combination: Combination) -> tuple[NodeSet, ...]:
        """The node sets of a combination's placement: one launch each; a single one where nodes are unknown."""
        if self._inventory.nodes is None:
            return ((),)
        placement, count = str(combination.level("placement")), combination.nodes
        if (sets := self._sets.get((placement, count))) is None:
            sets = self._sets[placement, count] = node_sets(placement, count, self._inventory.nodes, self._seed)
        return sets


def _split(
    combination: Combination, sizes: tuple[int | None, ...]
) -> Iterator[tuple[tuple[int | None, ...], str | None]]:
    """Sizes as launches: the fewest that hold exactly the asked ones; refused sizes by reason, never launched."""
    module = benchmarks.get(combination.benchmark)
    ranks = combination.nodes * combination.ranks_per_node
    refused: dict[str, list[int | None]] = {}
    good: list[int | None] = []
    for size in sizes:
        reason = module.refuses(combination.operation, size, ranks, combination.parameters)
        (good if reason is None else refused.setdefault(reason, [])).append(size)
    if good:
        yield from (
            (batch, None) for batch in module.batches(combination.operation, tuple(good), combination.parameters)
        )
    yield from ((tuple(bad), reason) for reason, bad in refused.items())


def _setup(site: Site, inventory: Inventory, module: str, stack: Level | None) -> Setup:
    """What is declared about the way of running; whatever realises the level of another factor stays out."""
    name = None if stack is None else str(stack)
    level = site.levels.get("stack", {}).get(name) if name is not None else None
    way = merge(site.way, level) if level is not None else site.way
    launcher = way.launcher if way.launcher is not None else site.launcher
    flavour = inventory.flavours.get(name)
    container = way.container
    declared: dict[str, object] = {
        "cluster": site.cluster,
        "stack": name,
        "launcher": launcher,
        "flavour": flavour,
        "args": list(way.args),
        "env": dict(way.env),
        "path": list(way.path),
        "setup": list(way.setup),
        "container": None if container is None else [container.engine, container.image, list(container.mounts)],
        "benchmark": module,
        "revision": benchmarks.get(module).revision,
    }
    return Setup(hash_id(declared), site.cluster, name, launcher, flavour, MappingProxyType(declared))


def _order(spec: Spec, launches: Sequence[_Launch], seed: int) -> Iterator[Trial]:
    """Repeats are rounds; inside a round blocks are shuffled; inside a block the paired levels alternate."""
    paired = tuple(name for name in spec.run.pair if len(spec.factors.get(name, ())) > 1)
    blocks: dict[tuple[object, ...], list[_Launch]] = {}
    for launch in launches:
        rest = {name: level for name, level in launch.combination.factors.items() if name not in paired}
        key = (launch.combination.benchmark, launch.combination.operation, launch.sizes, launch.slot, *_frozen(rest))
        blocks.setdefault(key, []).append(launch)
    shuffle = random.Random(seed)  # noqa: S311 - an order, not a secret
    members = list(blocks.values())
    index = 0
    for repeat in range(spec.run.repeats.min):
        order = list(range(len(members)))
        if spec.run.order == "shuffled":
            shuffle.shuffle(order)
        for chosen in order:
            yield from _block(members[chosen], repeat, index, alternate=spec.run.order == "shuffled")
            index += 1


def _block(members: Sequence[_Launch], repeat: int, index: int, *, alternate: bool) -> Iterator[Trial]:
    ids = [trial_id(each.combination, each.sizes, repeat, each.slot) for each in members]
    block_id = hash_id({"trials": sorted(str(each) for each in ids)})
    for position, member in enumerate(
        williams(len(members))[repeat % _period(len(members))] if alternate else range(len(members))
    ):
        launch = members[member]
        yield Trial(
            trial_id=ids[member],
            combination=launch.combination,
            sizes=launch.sizes,
            repeat=repeat,
            slot=launch.slot,
            block_id=block_id,
            block=index,
            position=position,
            unsupported=launch.unsupported,
            members=launch.members,
        )


def _period(levels: int) -> int:
    return levels if levels % 2 == 0 else 2 * levels


def williams(levels: int) -> list[list[int]]:
    """Orders of `levels` treatments in which each follows each other one equally often.

    Williams, E. J. (1949), Aust. J. Sci. Res. A 2:149: a Latin square for an even number, two for an odd one. For
    two levels: AB, BA, hence ABBA over two rounds.
    """
    first = [0]
    low, high = 1, levels - 1
    while len(first) < levels:
        first.append(low)
        low += 1
        if len(first) < levels:
            first.append(high)
            high -= 1
    square = [[(each + shift) % levels for each in first] for shift in range(levels)]
    return square if levels % 2 == 0 else square + [row[::-1] for row in square]
