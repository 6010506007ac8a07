"""The worker: loops that claim jobs, listen for announcements, renew leases and drain."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Final, NoReturn

from onceward.errors import NewerSchema, StoreError
from onceward.model.jobs import Job, Lease
from onceward.model.workers import WorkerHealth
from onceward.ports import Queue
from onceward.ports.watching import WorkerRegistry
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import locate
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import redact
from onceward.runtime.timeouts import GRACE_SECONDS
from onceward.settings import Settings
from onceward.work.claiming.claim_outage import ClaimOutage
from onceward.work.claiming.heartbeat import Heartbeat
from onceward.work.claiming.leases import LeasedJob, Leases, Revoked
from onceward.work.claiming.scheduler import ASK_INTERVAL_SECONDS, Run, Scheduler
from onceward.work.running.runner import JobRunner

_log = logging.getLogger("onceward.worker")

RENEWALS_PER_LEASE: Final = 3
_MIN_PAUSE_SECONDS: Final = 0.02
_END_LEASES_SECONDS: Final = 0.2
"""How long the lease of a job that is over waits for the next claim, which ends it."""
_LOOK_SECONDS: Final = 0.25
"""How often a busy worker looks for lost leases: that takes a fifth of a claim."""
_OUTAGE_PAUSE_SECONDS: Final = 1.0
_PRESENCE_PAUSE_SECONDS: Final = 60.0
_PRESENCE_WAIT_SECONDS: Final = 2.0
"""How long the first claim waits for the session that stands for the worker."""


class Worker:
    """Claims and runs jobs until `stop` is called."""

    def __init__(
        self,
        *,
        name: str,
        queue: Queue,
        registry: WorkerRegistry,
        runner: JobRunner,
        handlers: Sequence[str],
        settings: Settings,
        clock: Clock,
    ) -> None:
        self.name = name
        self._queue = queue
        self._runner = runner
        self._settings = settings
        self._clock = clock
        self._leases = Leases(
            queue, worker=name, slots=runner.slots(settings), lease_seconds=settings.lease_seconds
        )
        self._scheduler = Scheduler(
            settings,
            handlers,
            max_shared_transactions=queue.max_shared_transactions,
            may_share=runner.may_share,
            max_events=runner.max_events,
        )
        self._capped_handlers = runner.capped_handlers
        self._abandoned_calls = runner.abandoned_calls
        self._abandoned_calls.on_resume = self._wake_up
        self._claim_outage = ClaimOutage(name, clock)
        self._looked_at = -math.inf
        """When the last claim began that looked for lost leases."""
        self._heartbeat = Heartbeat(registry, worker=name, handlers=handlers, health=self.health)
        self._tasks: dict[asyncio.Task[bool], Run] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self._cancelled_jobs: set[int] = set()
        """Running jobs that an operator cancelled."""
        self._wake = asyncio.Event()
        self._is_timer_set = False
        """Whether the claiming loop wakes soon to end leases."""
        self._knows_presence = asyncio.Event()
        self._newer_schema = NewerSchema()
        self._is_outdated = asyncio.Event()
        self._stopping = False
        self._stopped_at = 0.0
        self._claiming: asyncio.Task[None] | None = None
        self._is_store_away = False
        """Whether a call failed while the worker stops. Further ones would only delay the end."""

    async def run(self) -> None:
        """Work until `stop` is called, then drain."""
        self._claiming = asyncio.create_task(self._claim_until_stopped())
        helpers = [
            self._claiming,
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._renew_leases()),
            asyncio.create_task(self._keep_presence()),
            asyncio.create_task(self._heartbeat.run()),
        ]
        try:
            await asyncio.wait({self._claiming})
            if not self._claiming.cancelled():
                self._claiming.result()
            await self._drain()
        finally:
            for helper in helpers:
                helper.cancel()
            # One may wait for a frozen database, until the limit of its statement.
            await asyncio.wait(helpers, timeout=GRACE_SECONDS)
            if not self._is_store_away:
                await self._heartbeat.end()

    def stop(self) -> None:
        """Ask the worker to release its queued jobs, finish the running ones and return."""
        if self._stopping:
            return
        self._stopping = True
        self._stopped_at = self._clock.monotonic()
        self._knows_presence.set()
        self._wake.set()
        if self._claiming is not None:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._end_claiming, self._claiming)

    def _end_claiming(self, claiming: asyncio.Task[None]) -> None:
        """Cancel a claim to which the database does not respond."""
        if claiming.cancel():
            self._is_store_away = True

    async def wait_until_outdated(self) -> NoReturn:
        """Wait until a newer version has migrated the database, then raise NewerSchema."""
        await self._is_outdated.wait()
        raise self._newer_schema

    def health(self) -> WorkerHealth:
        """Return the paused handlers, and since when and why no jobs can be claimed."""
        return WorkerHealth(
            paused=self._abandoned_calls.paused_since,
            claims_failed_since=self._claim_outage.since,
            claim_error=self._claim_outage.reason,
        )

    def _wake_up(self) -> None:
        self._wake.set()

    # Claiming.

    async def _claim_until_stopped(self) -> None:
        # The first leases must end with the worker, too.
        with suppress(TimeoutError):
            async with asyncio.timeout(_PRESENCE_WAIT_SECONDS):
                await self._knows_presence.wait()
        while not self._stopping:
            await self._pause(await self._claim())

    async def _claim(self) -> float:
        """Claim until enough jobs are held or no more are due. Return the seconds to pause."""
        while not self._stopping:
            self._start_runs()  # a job that got stuck may let another one start
            plan = self._scheduler.next_claim(
                self._clock.monotonic(),
                without=self._abandoned_calls.paused,
                freed=self._leases.freed_handlers,
            )
            if plan is None:
                return min(self._settings.poll_seconds, ASK_INTERVAL_SECONDS)
            owner = self._leases.owner
            now = self._clock.monotonic()
            looks_for_lost = now - self._looked_at >= _LOOK_SECONDS
            try:
                claim = await self._leases.claim(
                    plan.wanted, plan.limit, solo=plan.solo, looks_for_lost=looks_for_lost
                )
            except StoreError as error:
                self._claim_outage.claim_failed(error)
                if isinstance(error, NewerSchema):
                    self._newer_schema = error
                    self._is_outdated.set()
                self._scheduler.may_have_due = True
                return _OUTAGE_PAUSE_SECONDS
            self._claim_outage.claim_succeeded()
            if looks_for_lost:
                self._looked_at = now
            if plan.solo and claim.lease is not None:
                _log_solo(claim.lease.jobs)
            pause = self._scheduler.add(plan, claim, self._clock.monotonic())
            self._start_runs()
            if owner != self._leases.owner:
                await self._renew_now()  # the presence changed during the claim
            if pause is not None:
                return pause
        return 0.0

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, _MIN_PAUSE_SECONDS)):
                await self._wake.wait()
        self._wake.clear()

    def _warn(self, message: str, error: Exception) -> None:
        """Log a failure that is expected now and then, such as an outage."""
        reason = redact(str(error))
        _log.warning(message, reason, extra=LogFields(worker=self.name, error=reason))

    def _report(self, message: str, error: BaseException) -> None:
        """Log a failure that should not happen."""
        reason = locate(error)
        _log.error(message, reason, extra=LogFields(worker=self.name, error=reason))

    async def _listen(self) -> None:
        """Wake the claiming loop when jobs may have become due."""
        while True:
            try:
                async with aclosing(self._queue.announcements()) as announcements:
                    async for _ in announcements:
                        self._scheduler.may_have_due = True
                        self._wake.set()
            except Exception as error:  # noqa: BLE001 - polling continues meanwhile
                self._report("announcements cannot be received: %s", error)
            await asyncio.sleep(_OUTAGE_PAUSE_SECONDS)

    # Running.

    def _start_runs(self) -> None:
        self._give_back()
        while (run := self._scheduler.next_run(self._clock.monotonic())) is not None:
            task = asyncio.create_task(self._run(run))
            self._tasks[task] = run
            task.add_done_callback(self._run_ended)

    def _give_back(self) -> None:
        """Release the jobs of handlers that became slow or hang: others may run them sooner."""
        self._abandoned_calls.report()
        jobs = self._scheduler.withdraw_excess(self._clock.monotonic())
        if paused := self._abandoned_calls.paused:
            jobs += self._scheduler.withdraw(lambda leased: leased.job.handler in paused)
        if jobs:
            task = asyncio.create_task(self._release(jobs))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _run(self, run: Run) -> bool:
        """Return whether all jobs of a run are done or ignored."""
        if run.is_batch:
            return await self._run_batch(run.jobs)
        if len(run.jobs) > 1:  # a call with one event is a job alone: its failure counts
            return await self._run_events(run.jobs)
        return await self._run_job(*run.jobs[0])

    async def _run_batch(self, jobs: Sequence[LeasedJob]) -> bool:
        started = self._clock.monotonic()
        outcome = await self._runner.run_batch(jobs)
        for lease, job in outcome.settled:
            self._leases.finish(lease, job)
        self._scheduler.complete_batch(outcome, self._clock.monotonic() - started)
        return len(outcome.settled) == len(jobs)

    async def _run_events(self, jobs: Sequence[LeasedJob]) -> bool:
        started = self._clock.monotonic()
        outcome = await self._runner.run_events(jobs)
        for lease, job in outcome.settled:
            self._leases.finish(lease, job)
        seconds = self._clock.monotonic() - started
        self._scheduler.complete_call(jobs[0].job.handler, outcome, seconds)
        return len(outcome.settled) == len(jobs)

    async def _run_job(self, lease: Lease, job: Job) -> bool:
        started = self._clock.monotonic()
        try:
            is_done = await self._runner.run(lease.token, job)
        except BaseException:
            # A drain releases the jobs that it cancels.
            if not self._stopping and job.id not in self._cancelled_jobs:
                await self._abandon(lease)
            raise
        self._leases.finish(lease, job)
        seconds = self._clock.monotonic() - started
        self._scheduler.complete_job(job.handler, seconds, failed=not is_done)
        return is_done

    async def _abandon(self, lease: Lease) -> None:
        """Let a lease expire because one of its jobs may still run; release its queued jobs."""
        await self._release(self._scheduler.withdraw(Revoked({lease.token}).affects))
        self._leases.abandon(lease)

    def _run_ended(self, task: asyncio.Task[bool]) -> None:
        run = self._tasks.pop(task)
        is_done = False
        self._scheduler.free_slot(run)
        if task.cancelled():
            if not self._stopping:
                # One lease was lost, or one job cancelled. The worker still holds the others.
                self._scheduler.requeue(
                    leased
                    for leased in run.jobs
                    if self._leases.holds(leased.lease)
                    and leased.job.id not in self._cancelled_jobs
                )
        elif (error := task.exception()) is not None:
            self._report("a job could not be run: %s", error)
            for lease, _ in run.jobs:
                self._leases.abandon(lease)
        else:
            is_done = task.result()
        self._cancelled_jobs.difference_update(leased.job.id for leased in run.jobs)
        if not self._stopping:
            self._start_runs()
        if not is_done or self._may_find_jobs(run):
            self._wake.set()
        else:
            self._end_leases_soon()

    def _may_find_jobs(self, run: Run) -> bool:
        """Return whether a claim may find jobs because a run has ended. New ones are announced.

        Each claim costs as much as a job, and delays the one that follows an announcement.
        """
        return (
            self._scheduler.may_have_due
            or bool(self._leases.freed_handlers)
            or not run.handlers.isdisjoint(self._capped_handlers)
        )

    def _end_leases_soon(self) -> None:
        """Let a claim end the leases of jobs that are over, unless another has done so by then."""

        def wake() -> None:
            self._is_timer_set = False
            if self._leases.has_ended:
                self._wake.set()

        if not self._is_timer_set:
            self._is_timer_set = True
            asyncio.get_running_loop().call_later(_END_LEASES_SECONDS, wake)

    # Keeping leases.

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_seconds / RENEWALS_PER_LEASE)
            await self._renew_now()

    async def _renew_now(self) -> None:
        try:
            self._cancel_revoked(await self._leases.renew())
        except StoreError as error:
            self._warn("leases could not be renewed: %s", error)
        except Exception as error:  # noqa: BLE001 - without renewals, every lease is lost
            self._report("leases could not be renewed: %s", error)

    async def _keep_presence(self) -> None:
        """Renew the leases whenever the session that stands for the worker is lost or found."""
        while True:
            try:
                async with aclosing(self._queue.presence()) as numbers:
                    async for owner in numbers:
                        self._leases.owner = owner
                        self._knows_presence.set()
                        await self._renew_now()
            except Exception as error:  # noqa: BLE001 - leases expire meanwhile
                self._report("no session can stand for the worker: %s", error)
                self._leases.owner = 0
                await self._renew_now()
            await asyncio.sleep(_PRESENCE_PAUSE_SECONDS)

    def _cancel_revoked(self, revoked: Revoked) -> None:
        """Cancel the jobs of lost leases, and those that an operator cancelled.

        Their transactions can no longer commit.
        """
        if revoked.tokens:
            count = len(revoked.tokens)
            fields = LogFields(worker=self.name, count=count)
            _log.warning("%d leases were lost; their jobs were cancelled", count, extra=fields)
        for lease, job in self._scheduler.withdraw(revoked.affects):
            self._leases.finish(lease, job)
        affected = self._scheduler.runs_of(revoked.affects)
        for task, run in self._tasks.items():
            if run in affected:
                self._finish_cancelled(run, revoked.jobs)
                task.cancel()

    def _finish_cancelled(self, run: Run, cancelled: Collection[int]) -> None:
        for lease, job in run.jobs:
            if job.id in cancelled:
                self._cancelled_jobs.add(job.id)
                self._leases.finish(lease, job)

    # Draining.

    async def _drain(self) -> None:
        """Release queued jobs, wait for running ones, then cancel and release the rest."""
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self._release_queued()
        if self._tasks:
            elapsed = self._clock.monotonic() - self._stopped_at
            seconds = max(self._settings.drain_seconds - elapsed, 0.0)
            await asyncio.wait(self._tasks, timeout=seconds)
        await self._release_queued()  # jobs of a batch that failed meanwhile
        slow = dict(self._tasks)
        for task in slow:
            task.cancel()
        if slow:
            await asyncio.wait(slow, timeout=2 * GRACE_SECONDS)
        interrupted = [leased for run in slow.values() for leased in run.jobs]
        _log_interrupted(interrupted)
        await self._release(interrupted)
        if not self._is_store_away:
            await self._end_leases()

    async def _end_leases(self) -> None:
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await self._leases.end()
        except (StoreError, TimeoutError):
            self._is_store_away = True

    async def _release_queued(self) -> None:
        await self._release(self._scheduler.withdraw(lambda _: True))

    async def _release(self, jobs: Iterable[LeasedJob]) -> None:
        by_lease: dict[str, tuple[Lease, list[Job]]] = {}
        for lease, job in jobs:
            by_lease.setdefault(lease.token, (lease, []))[1].append(job)
        if self._is_store_away:
            return
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                for lease, leased in by_lease.values():
                    await self._leases.release(lease, leased)
        except (StoreError, TimeoutError) as error:
            self._is_store_away = self._stopping
            self._warn("jobs could not be released: %s", error)
            for lease, leased in by_lease.values():  # their leases end with the next claim
                for job in leased:
                    self._leases.finish(lease, job)


def _log_interrupted(jobs: Iterable[LeasedJob]) -> None:
    message = (
        "job %s of handler %r was interrupted, because it ran for longer than drain_seconds after "
        "the stop; it runs again, and no attempt is counted"
    )
    for _, job in jobs:
        fields = LogFields(handler=job.handler, job=job.id, source=job.source)
        _log.warning(message, job.id, job.handler, extra=fields)


def _log_solo(jobs: Iterable[Job]) -> None:
    message = (
        "job %s of handler %r runs alone, because a worker died or lost its lease while it may "
        "have run; other jobs wait for it in this process"
    )
    for job in jobs:
        fields = LogFields(handler=job.handler, job=job.id, source=job.source)
        _log.warning(message, job.id, job.handler, extra=fields)
