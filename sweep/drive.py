"""The driver: one asyncio loop that takes a plan through its attempts, decides about the next, and appends rows."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, stop_after_attempt, wait_exponential_jitter

from schemas.attempt import Launch, Outcome, Output, Parsed, Process, Verdict
from schemas.errors import Interrupted, NodeLost, SiteError, Stopped
from schemas.plan import Inventory, Plan, Trial
from schemas.spec import Retry, Way
from sweep import cost, rows
from sweep.append import Appender
from sweep.rows import Attempt, Identity
from tasks import benchmarks, execute, launchers, outcomes
from tasks.executor import Executor

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""
CONFIRM_S = 60.0
"""How much longer than its time-out an attempt's reply may take, before the node counts as lost."""
OUTPUT_BYTES = 32 * 1024 * 1024
"""Read per stream; what is longer is cut in the middle and said so."""


@dataclass(frozen=True, slots=True)
class Past:
    """What the archive has of a trial already: its last attempt."""

    attempt: int
    block_try: int
    outcome: str
    final: bool
    missing: tuple[int, ...]
    sizes: tuple[int, ...]


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
        past: Mapping[uuid.UUID, Past],
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
        self._interrupts = 0
        self._interrupted = asyncio.Event()
        self._running: str | None = None
        self.summary = Summary()

    async def run(self) -> None:
        """All of the plan that the archive does not have yet. Interrupted or Stopped leave a resumable run."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            loop.add_signal_handler(each, self._interrupt)
        try:
            await self._run()
        finally:
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                loop.remove_signal_handler(each)

    async def _run(self) -> None:
        blocks = [list(members) for _, members in itertools.groupby(self._plan.trials, key=lambda trial: trial.block)]
        todo = [(block_try, trials) for block_try, trials in map(self._left, blocks) if trials]
        left = sum(len(trials) for _, trials in todo)
        self._watcher.begin(self._plan, len(self._plan.trials) - left)
        for done in self._past.values():
            if done.final:
                self.summary.outcomes[done.outcome] += 1
        for block_try, trials in todo:
            for trial in trials:
                await self._trial(trial, block_try)

    def _left(self, members: Sequence[Trial]) -> tuple[int, list[Trial]]:
        """What is left of a block, and under which try: a cut block of several is done again whole."""
        tries = [self._past[trial.trial_id] for trial in members if trial.trial_id in self._past]
        if not tries:
            return 0, list(members)
        block_try = max(past.block_try for past in tries)
        left = [trial for trial in members if not self._is_done(trial, block_try)]
        launched = [trial for trial in members if trial.unsupported is None]
        if len(launched) > 1 and left and len(left) < len(members):
            for trial in launched:
                if (past := self._past.get(trial.trial_id)) is not None and past.final:
                    self.summary.outcomes[past.outcome] -= 1
            return block_try + 1, launched
        return block_try, left

    def _is_done(self, trial: Trial, block_try: int) -> bool:
        past = self._past.get(trial.trial_id)
        return past is not None and past.final and (past.block_try == block_try or past.outcome == Outcome.UNSUPPORTED)

    async def _trial(self, trial: Trial, block_try: int) -> None:
        """One trial to its last attempt; the row of each is on its way to the disk when this returns."""
        number = past.attempt if (past := self._past.get(trial.trial_id)) is not None else 0
        if trial.unsupported is not None:
            attempt = rows.unsupported(trial, time.time(), block_try, uuid.uuid4(), number + 1)
            await self._record(attempt)
            return
        left = replace(trial, sizes=past.missing) if past and _is_half(past, block_try) else trial
        retry = self._plan.spec.run.retry
        for _ in range(self._plan.spec.run.warmup if number == 0 else 0):
            await self._attempt(trial, number, block_try, retry, phase="warmup")
        state = _Left(left, number)
        retrying: AsyncRetrying = AsyncRetrying(
            retry=retry_if_result(lambda attempt: not attempt.final),
            stop=stop_after_attempt(retry.attempts),
            wait=wait_exponential_jitter(initial=retry.wait_min, max=retry.wait_max, jitter=retry.wait_min),
            sleep=self._sleep,
            before_sleep=self._say_retry,
        )

        async def attempt_once() -> Attempt:
            attempt = await self._attempt(state.trial, state.number + 1, block_try, retry, tried=state.number - number)
            state.number += 1
            if attempt.parsed.measurements and attempt.parsed.missing:
                state.trial = replace(trial, sizes=attempt.parsed.missing)
            return attempt

        await retrying(attempt_once)

    async def _attempt(
        self, trial: Trial, number: int, block_try: int, retry: Retry, *, tried: int = 0, phase: str = "measure"
    ) -> Attempt:
        self._may_start(trial)
        self._watcher.started(trial, number)
        attempt_id = uuid.uuid4()
        start = time.time()
        launch, processes = self._launch(trial)
        self._running = str(attempt_id)
        try:
            parsed, verdict, output = await self._execute(trial, launch, processes, str(attempt_id))
        finally:
            self._running = None
        final = verdict.outcome is not Outcome.CANCELLED and (not verdict.transient or tried + 1 >= retry.attempts)
        attempt = Attempt(
            trial,
            attempt_id,
            number,
            block_try,
            verdict,
            final=final or phase != "measure",
            phase=phase,
            parsed=parsed,
            output=output,
            processes=processes,
            nodes=self._executor.nodes[: trial.combination.nodes],
            start=start,
        )
        await self._record(attempt)
        if output is not None and output.left:
            names = ", ".join(map(str, output.left))
            raise SiteError(f"node {self._executor.nodes[0].name} cannot be cleaned: processes {names} do not die")
        if verdict.outcome is Outcome.CANCELLED:
            raise Interrupted("the run was interrupted")
        return attempt

    def _launch(self, trial: Trial) -> tuple[Launch, tuple[Process, ...]]:
        """What is started for a trial, with every program by its absolute path."""
        combination = trial.combination
        stack = combination.setup.stack
        tools = self._inventory.tools.get(stack, {})
        nodes = self._executor.nodes[: combination.nodes]
        launch = benchmarks.get(combination.benchmark).launch(trial, nodes)
        roles = tuple(
            replace(role, argv=(tools[role.argv[0]].path, *role.argv[1:])) if role.argv[0] in tools else role
            for role in launch.roles
        )
        launch = replace(launch, roles=roles)
        processes = launchers.processes(
            launch,
            self._way(trial),
            launcher=combination.setup.launcher,
            mpiexec=tools.get("mpiexec"),
            flavour=self._inventory.flavours.get(stack),
            nodes=nodes,
        )
        return launch, processes

    def _way(self, trial: Trial) -> Way:
        """The site's way of running with those of all levels of this trial, and the variables that are factors."""
        site = self._plan.spec.site
        ways = [site.way]
        env: dict[str, str] = {}
        for name, level in trial.combination.factors.items():
            if (way := site.levels.get(name, {}).get(rows.text(level))) is not None:
                ways.append(way)
            if name.startswith("env."):
                env[name.removeprefix("env.")] = rows.text(level)
        return launchers.merge(*ways, Way(env=env))

    async def _execute(
        self, trial: Trial, launch: Launch, processes: tuple[Process, ...], attempt_id: str
    ) -> tuple[Parsed, Verdict, Output | None]:
        limit = cost.timeout(trial, self._plan.spec.run.timeout)
        request = execute.run_request(attempt_id, processes, launch.files, limit, grace=GRACE_S, limit=OUTPUT_BYTES)
        try:
            reply = await self._executor.ask(0, request, limit + GRACE_S + CONFIRM_S)
        except NodeLost as lost:
            return Parsed(missing=trial.sizes), Verdict(Outcome.LOST, str(lost), transient=True), None
        output = execute.output(launch.asked, reply)
        parsed, verdict = outcomes.judge(benchmarks.get(trial.combination.benchmark), output)
        return parsed, verdict, output

    async def _record(self, attempt: Attempt) -> None:
        """Hand an attempt's rows over; the next trial runs while they reach the disk."""
        if attempt.phase == "measure":
            if attempt.final:
                self.summary.outcomes[attempt.verdict.outcome.value] += 1
            elif attempt.verdict.transient:
                self.summary.retried += 1
        await self._appender.put(rows.attempt_rows(self._who, attempt), lambda: self._watcher.ended(attempt))

    def _may_start(self, trial: Trial) -> None:
        """Nothing starts after an interrupt, or when it cannot finish before the deadline."""
        if self._interrupts:
            raise Interrupted("the run was interrupted")
        if self._deadline is not None and time.time() + cost.estimate(trial) > self._deadline:
            raise Stopped("the deadline is near: what is left would not finish before it")

    async def _sleep(self, seconds: float) -> None:
        """Wait before another attempt, or until somebody interrupts."""
        try:
            await asyncio.wait_for(self._interrupted.wait(), seconds)
        except TimeoutError:
            return

    def _say_retry(self, state: RetryCallState) -> None:
        wait = state.next_action.sleep if state.next_action is not None else 0.0
        self._watcher.say(f"trying again in {wait:.0f} s")

    def _interrupt(self) -> None:
        """First: finish what runs. Second: kill it."""
        self._interrupts += 1
        self._interrupted.set()
        if self._interrupts == 1:
            self._watcher.say("finishing what runs, then stopping; once more to kill it")
        elif self._running is not None:
            self._watcher.say("killing what runs")
            self._kill = asyncio.ensure_future(self._executor.stop(0, self._running))


@dataclass(slots=True)
class _Left:
    """What is left of a trial between its attempts."""

    trial: Trial
    number: int


def _is_half(past: Past, block_try: int) -> bool:
    """Whether the last attempt of this try measured some sizes, so that only the rest is launched again."""
    return past.block_try == block_try and bool(past.missing) and set(past.missing) < set(past.sizes)


def new_run_id(now: float) -> str:
    """`r<YYYYMMDD>-<HHMMSS>-<4 letters>`: begins with a letter, sorts by time."""
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    tail = "".join(alphabet[byte % 32] for byte in os.urandom(4))
    return time.strftime("r%Y%m%d-%H%M%S-", time.gmtime(now)) + tail


def pasts(records: Sequence[Mapping[str, object]], *, again: bool) -> Iterator[tuple[uuid.UUID, Past]]:
    """The archive's attempts of a run as the last one of each trial; `again`: what failed for good is not done."""
    latest: dict[object, Mapping[str, object]] = {}
    for each in sorted(records, key=lambda record: int(str(record["attempt"]))):
        if each["phase"] == "measure":
            latest[each["trial_id"]] = each
    for key, each in latest.items():
        outcome = str(each["outcome"])
        final = bool(each["final"]) and not (again and outcome not in ("ok", "unsupported"))
        yield (
            uuid.UUID(str(key)),
            Past(
                attempt=int(str(each["attempt"])),
                block_try=int(str(each["block_try"])),
                outcome=outcome,
                final=final,
                missing=_sizes(each["missing"]),
                sizes=_sizes(each["sizes"]),
            ),
        )


def _sizes(value: object) -> tuple[int, ...]:
    return tuple(int(size) for size in value) if isinstance(value, (list, tuple)) else ()
