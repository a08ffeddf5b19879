"""The driver: one asyncio loop that takes a plan through its attempts, decides about the next, and appends rows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, stop_after_attempt, wait_exponential_jitter

from schemas.attempt import Launch, Outcome, Output, Parsed, Process, Verdict
from schemas.errors import Interrupted, NodeLost, SiteError, Stopped, SweepError
from schemas.plan import Inventory, Node, Plan, Trial
from schemas.spec import Way
from sweep import cost, hold, rows, schedule
from sweep.append import Appender
from sweep.hold import held, way_of
from sweep.past import Pasts, left, rest
from sweep.placement import NodeSet
from sweep.redact import Mask
from sweep.rows import Attempt, Identity
from sweep.schedule import Block
from tasks import benchmarks, execute, launchers, nics, outcomes, pipe, wrap
from tasks.executor import Executor
from tasks.transports import Gang

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""
CONFIRM_S = 60.0
"""How much longer than its time-out an attempt's reply may take, before the node counts as lost."""
AGAIN_S = 0.2
"""How long before a node is asked again."""
DEAF = 2
"""How often a node may fail to answer before it counts as gone."""
OUTPUT_BYTES = 32 * 1024 * 1024
"""Read per stream; what is longer is cut in the middle and said so."""


class Watcher(Protocol):
    """Whoever shows what happens."""

    def begin(self, plan: Plan, done: int) -> None:
        """The run begins; `done` trials are in the archive already."""

    def started(self, trial: Trial, number: int) -> None:
        """An attempt starts."""

    def ended(self, attempt: Attempt) -> None:
        """An attempt ended and its rows are durable."""

    def say(self, text: str) -> None:
        """Something worth a line."""


@dataclass(slots=True)
class Summary:
    """How many trials ended how, counting each trial's last attempt."""

    outcomes: Counter[str] = field(default_factory=Counter)
    retried: int = 0

    @property
    def all_ok(self) -> bool:
        """Whether no trial ended in anything but ok or unsupported."""
        return not any(count for name, count in self.outcomes.items() if name not in ("ok", "unsupported"))


class Driver:
    """Takes a plan's trials through their attempts, in order, one at a time on the fabric."""

    def __init__(
        self,
        who: Identity,
        plan: Plan,
        inventory: Inventory,
        executor: Executor,
        appender: Appender,
        watcher: Watcher,
        past: Pasts,
        deadline: float | None = None,
    ) -> None:
        self._who = who
        self._plan = plan
        self._inventory = inventory
        self._executor = executor
        self._appender = appender
        self._watcher = watcher
        self._past = past
        self._deadline = deadline
        self._ending = False
        self._interrupts = 0
        self._interrupted = asyncio.Event()
        self._running: dict[str, NodeSet] = {}
        """Attempts that run now, and their nodes."""
        self._killing: asyncio.Task[None] | None = None
        self._agent = pipe.agent_text()
        self._warm: set[NodeSet] = set()
        self._mask = Mask(plan.spec)
        self.summary = Summary()

    async def run(self) -> None:
        """All of the plan that the archive does not have yet. Interrupted or Stopped leave a resumable run."""
        blocks = [list(members) for _, members in itertools.groupby(self._plan.trials, key=lambda trial: trial.block)]
        todo = [left(members, self._past) for members in blocks]
        ids = {trial.trial_id for _, trials in todo for trial in trials}
        done = [trial.trial_id for trial in self._plan.trials if trial.trial_id not in ids]
        self.summary.outcomes.update(self._past[each].outcome for each in done)
        self._watcher.begin(self._plan, len(done))
        try:
            await self._blocks([Block(block_try, tuple(trials)) for block_try, trials in todo if trials])
        finally:
            if self._killing is not None:
                self._killing.cancel()

    async def _blocks(self, pending: list[Block]) -> None:
        """Every block on nodes of its own, as soon as the schedule finds it some."""
        pick = schedule.disjoint if self._plan.spec.run.concurrency == "disjoint" else schedule.exclusive
        total = max(len(self._executor.nodes), 1)
        free = set(range(total))
        running: dict[asyncio.Task[None], NodeSet] = {}
        while pending or running:
            while (choice := pick(pending, free, total)) is not None:
                index, nodes = choice
                running[asyncio.create_task(self._block(pending.pop(index), nodes))] = nodes
                free -= set(nodes)
                if not nodes:
                    break  # nothing to launch: its rows are written before the next is picked
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if errors := [error for each in done if (error := each.exception()) is not None]:
                self._ending = True  # what runs beside it finishes its attempt, and nothing new starts
                await asyncio.gather(*running, return_exceptions=True)
                raise errors[0]
            for each in done:
                free |= set(running.pop(each))

    async def _block(self, block: Block, nodes: NodeSet) -> None:
        for trial in block.trials:
            await self._trial(schedule.on(trial, nodes), block.block_try)

    def interrupt(self) -> None:
        """First: finish what runs, then stop. Second: kill it."""
        self._interrupts += 1
        self._interrupted.set()
        if self._interrupts == 1 and self._running:
            self._watcher.say("finishing what runs, then stopping; once more to kill it")
        elif self._interrupts > 1 and self._running and self._killing is None:
            self._watcher.say("killing what runs")
            self._killing = asyncio.ensure_future(self._kill())

    async def _kill(self) -> None:
        """Have it killed; again and again, for a stop that comes before the start is not heard."""
        with contextlib.suppress(SweepError):  # whoever waits for the attempt learns of it, too
            while self._running:
                for attempt, nodes in list(self._running.items()):
                    for node in nodes:
                        await self._executor.stop(node, attempt)
                await asyncio.sleep(AGAIN_S)

    async def _trial(self, trial: Trial, block_try: int) -> None:
        """One trial to its last attempt; the row of each is on its way to the disk when this returns."""
        past = self._past.get(trial.trial_id)
        number = past.attempt if past is not None else 0
        if trial.unsupported is not None:
            attempt = rows.unsupported(trial, time.time(), block_try, uuid.uuid4(), number + 1)
            await self._record(attempt)
            return
        await self._warm_up(trial, block_try)
        retry = self._plan.spec.run.retry
        tries = _Tries(rest(trial, past, block_try), number, retry.attempts)
        retrying: AsyncRetrying = AsyncRetrying(
            retry=retry_if_result(lambda attempt: not attempt.final),
            stop=stop_after_attempt(retry.attempts),
            wait=wait_exponential_jitter(initial=retry.wait_min, max=retry.wait_max, jitter=retry.wait_min),
            sleep=self._sleep,
            before_sleep=self._say_retry,
        )

        async def attempt_once() -> Attempt:
            attempt = await self._attempt(tries.trial, tries.number + 1, block_try, tries.is_last)
            tries.count(attempt)
            return attempt

        await retrying(attempt_once)

    async def _warm_up(self, trial: Trial, block_try: int) -> None:
        """Launches that are discarded, before the first trial on a set of nodes."""
        if (gang := gang_of(trial)) not in self._warm:
            self._warm.add(gang)
            for _ in range(self._plan.spec.run.warmup):
                await self._attempt(trial, 0, block_try, lambda _: True, phase="warmup")

    async def _attempt(
        self, trial: Trial, number: int, block_try: int, is_last: Callable[[Verdict], bool], phase: str = "measure"
    ) -> Attempt:
        self._may_start(trial)
        self._watcher.started(trial, number)
        attempt_id = uuid.uuid4()
        start = time.time()
        begun = self._launch(trial)
        beside = tuple(self._running)
        self._running[str(attempt_id)] = gang_of(trial)
        try:
            parsed, verdict, output = await self._execute(trial, begun, str(attempt_id))
        finally:
            beside = tuple(dict.fromkeys((*beside, *(each for each in self._running if each != str(attempt_id)))))
            del self._running[str(attempt_id)]
        attempt = Attempt(
            trial,
            attempt_id,
            number,
            block_try,
            verdict,
            final=verdict.outcome is not Outcome.CANCELLED and is_last(verdict),
            phase=phase,
            parsed=parsed,
            output=output,
            processes=begun.processes,
            nodes=self._nodes(trial),
            nics=begun.nics,
            start=start,
            beside=beside,
        )
        await self._record(attempt)
        await self._leave_clean(attempt)
        if verdict.outcome is Outcome.CANCELLED:
            raise Interrupted("the run was interrupted")
        return attempt

    def _launch(self, trial: Trial) -> _Start:
        """What is started for a trial, with every program by its absolute path, held to the NICs that were asked."""
        combination = trial.combination
        stack = combination.setup.stack
        tools = self._inventory.tools.get(stack, {})
        flavour = self._inventory.flavours.get(stack)
        nodes = self._nodes(trial)
        site = self._plan.spec.site
        launch = benchmarks.get(combination.benchmark).launch(trial, nodes)
        roles = tuple(
            replace(role, argv=(tools[role.argv[0]].path, *role.argv[1:])) if role.argv[0] in tools else role
            for role in launch.roles
        )
        launch = replace(launch, roles=roles)
        gang = held(combination, trial.sizes, site, self._inventory, nodes)
        if isinstance(gang, str):
            raise SiteError(f"{trial.trial_id}: {gang}")  # planned for other nodes than these
        way = way_of(combination, site)
        if gang is not None:
            way = launchers.merge(way, Way(env=gang.env))
            launch = _wrapped(launch, gang, combination.setup.launcher, flavour)
        processes = launchers.processes(
            launch,
            way,
            launcher=combination.setup.launcher,
            mpiexec=tools.get("mpiexec"),
            flavour=flavour,
            nodes=nodes,
        )
        return _Start(launch, processes, {} if gang is None else gang.nics)

    def _nodes(self, trial: Trial) -> tuple[Node, ...]:
        """The nodes of a trial, the leader first."""
        return tuple(self._executor.nodes[index] for index in gang_of(trial))

    async def _execute(self, trial: Trial, begun: _Start, attempt_id: str) -> tuple[Parsed, Verdict, Output | None]:
        limit = cost.timeout(trial, self._plan.spec.run.timeout)
        request = execute.run_request(
            attempt_id,
            begun.processes,
            begun.launch.files,
            limit,
            grace=GRACE_S,
            limit=OUTPUT_BYTES,
            period=self._plan.spec.run.counters,
        )
        leader, *rest_of_gang = gang_of(trial)
        others = {name: index for index in rest_of_gang for name in launchers.names(self._executor.nodes[index])}
        if others:
            request = execute.across(request, attempt_id, self._agent)
        try:
            reply = await self._executor.ask(leader, request, limit + GRACE_S + CONFIRM_S, others)
        except NodeLost as lost:
            return Parsed(missing=trial.sizes), Verdict(Outcome.LOST, str(lost), transient=True), None
        if others:  # from here on nodes are counted within the gang
            reply["others"] = {gang_of(trial).index(index): part for index, part in reply["others"].items()}
        output = execute.output(begun.launch.asked, reply)
        if output.ended == "stopped" and self._interrupts < 2:
            output = replace(output, ended="lost")  # somebody else ended the node part
        output, ranks = wrap.reports(output)
        parsed, verdict = outcomes.judge(benchmarks.get(trial.combination.benchmark), output)
        facts = {**parsed.evidence.facts, **wrap.evidence(ranks)}
        parsed = replace(parsed, evidence=replace(parsed.evidence, facts=facts))
        return self._with_evidence(trial, begun, parsed, output), verdict, output

    def _with_evidence(self, trial: Trial, begun: _Start, parsed: Parsed, output: Output) -> Parsed:
        """What the counters prove about the NICs, per message size; loud where it is not what was asked."""
        leader = self._nodes(trial)[0]
        usable = nics.usable(leader, self._plan.spec.site.fabric)
        counted = hold.carried(output, parsed, [nic.name for nic in usable or ()])
        if not counted:
            return parsed
        asked = trial.combination.level("nics")
        if asked is not None and max(counted.values()) != asked:  # small messages may well use fewer
            shown = ", ".join(f"{count} for {size} bytes" for size, count in sorted(counted.items(), key=str)[-3:])
            self._watcher.say(f"warning: {asked} NICs were asked, the counters of {leader.name} show {shown}")
        return replace(parsed, evidence=replace(parsed.evidence, nics=counted, level="counted"))

    async def _record(self, attempt: Attempt) -> None:
        """Hand an attempt's rows over; the next trial runs while they reach the disk."""
        if attempt.phase == "measure" and attempt.final:
            self.summary.outcomes[attempt.verdict.outcome.value] += 1
        made = self._mask.rows(rows.attempt_rows(self._who, attempt, series=self._plan.spec.run.counters is not None))
        await self._appender.put(made, lambda: self._watcher.ended(attempt))

    async def _leave_clean(self, attempt: Attempt) -> None:
        """Make sure that nothing of an attempt is left: the next one would measure it. SiteError if something is."""
        remains: Collection[int] = attempt.output.left if attempt.output is not None else ()
        if attempt.verdict.outcome is Outcome.LOST:
            gone = [await self._clean(node, str(attempt.attempt_id)) for node in gang_of(attempt.trial)]
            remains = [pid for pids in gone for pid in pids]
        if remains:
            names = ", ".join(node.name for node in attempt.nodes)
            raise SiteError(f"{names} cannot be cleaned: processes {', '.join(map(str, remains))} do not die")

    async def _clean(self, node: int, attempt: str) -> Collection[int]:
        """End what is left of a lost attempt on a node; what does not end. SiteError if the node does not answer."""
        end = time.monotonic() + CONFIRM_S
        deaf = 0
        while True:
            try:
                runs = await self._executor.stop(node, attempt)  # a node part may outlive its worker
                greeting = await self._executor.ask(node, {"op": "hello"}, CONFIRM_S)  # it hunts what nobody watches
                remains: Collection[int] = greeting["left"]
                if (not runs and not remains) or time.monotonic() > end:
                    return remains
            except NodeLost as error:
                deaf += 1
                if deaf > DEAF:  # the first may have been asked of a node part that was about to end
                    raise SiteError(str(error)) from error
            await asyncio.sleep(AGAIN_S)

    def _may_start(self, trial: Trial) -> None:
        """Nothing starts after an interrupt or a failure beside it, or when it cannot finish before the deadline."""
        if self._ending:
            raise Interrupted("the run ended beside this trial")
        if self._interrupts:
            raise Interrupted("the run was interrupted")
        if self._deadline is not None and time.time() + cost.estimate(trial) > self._deadline:
            raise Stopped("the deadline is near: what is left would not finish before it")

    async def _sleep(self, seconds: float) -> None:
        """Wait before another attempt; no longer than until somebody interrupts, or the deadline."""
        left = seconds if self._deadline is None else min(seconds, max(0.0, self._deadline - time.time()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._interrupted.wait(), left)

    async def _say_retry(self, state: RetryCallState) -> None:
        """Say it after what it follows from."""
        self.summary.retried += 1
        await self._appender.flush()
        if not self._interrupts:
            wait = state.next_action.sleep if state.next_action is not None else 0.0
            self._watcher.say(f"trying again in {wait:.0f} s")


@dataclass(frozen=True, slots=True)
class _Start:
    """An attempt about to start: what it is, and the NICs that it is held to, by node."""

    launch: Launch
    processes: tuple[Process, ...]
    nics: Mapping[str, tuple[str, ...]]


def _wrapped(launch: Launch, gang: Gang, launcher: str, flavour: str | None) -> Launch:
    """A launch whose ranks get an environment of their own, where NICs differ between ranks or nodes."""
    if not gang.ranks:
        return launch
    told = {name for env in (gang.env, *(env for envs in gang.ranks.values() for env in envs)) for name in env}
    files = {**launch.files, **wrap.files(gang.ranks, told, launcher, flavour)}
    roles = tuple(role if role.ranks is None else replace(role, argv=wrap.command(role.argv)) for role in launch.roles)
    return replace(launch, roles=roles, files=files)


@dataclass(slots=True)
class _Tries:
    """A trial between its attempts: what is left of it, and how often it may still be tried."""

    trial: Trial
    number: int
    left: int
    puzzles: int = 0
    """Failures that no text we know explains."""

    def is_last(self, verdict: Verdict) -> bool:
        """Whether no attempt follows one that ended so: a failure that nobody can explain gets one more try."""
        return not verdict.transient or self.left <= 1 or (verdict.unknown and self.puzzles > 0)

    def count(self, attempt: Attempt) -> None:
        """Take an attempt into account: sizes that it measured are not launched again."""
        self.number += 1
        self.left -= 1
        self.puzzles += attempt.verdict.unknown
        if attempt.parsed.measurements and attempt.parsed.missing:
            self.trial = replace(self.trial, sizes=attempt.parsed.missing)


def gang_of(trial: Trial) -> NodeSet:
    """The nodes of a trial: as placed, else the first ones."""
    return trial.members or tuple(range(trial.combination.nodes))


def new_run_id(now: float) -> str:
    """`r<YYYYMMDD>-<HHMMSS>-<4 letters>`: begins with a letter, sorts by time.

    The first two letters tell the fraction of the second, the others keep apart what starts in the same millisecond.
    """
    letters = "0123456789abcdefghijklmnopqrstuvwxyz"
    at, chance = int(now % 1 * 36**2), random.SystemRandom().randrange(36**2)
    tail = "".join(letters[place] for each in (at, chance) for place in divmod(each, 36))
    return time.strftime("r%Y%m%d-%H%M%S-", time.gmtime(now)) + tail
