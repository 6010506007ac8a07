"""A model of `on_failed`: a function that commits with the end of a job as failed.

Workers run a job whose handler raises an error or kills its process, and then `on_failed`, which
may do the same. A lease may expire while its worker lives. An operator requeues the job, answers
about its outside call, or both. A worker of an earlier version knows neither the mark nor the
function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple, TypeAlias

from prove.models.search import Model
from prove.models.tuples import replace_item


class Rule(StrEnum):
    """The rules of the protocol."""

    COMMIT_TOGETHER = "What on_failed writes commits with the end of the job."
    END_IS_FENCED = "The end as failed lands only under the lease."
    LEFT_QUEUED = "A job whose worker dies in the last attempt is left queued for on_failed."
    SECOND_DEATH_FAILS = "If the worker that runs on_failed dies too, the job fails without it."
    MARK_IS_STORED = "Such a job is marked: used-up attempts alone do not skip the handler."
    MARK_NEEDS_ATTEMPTS = "The mark counts only while the attempts are used up."


class Phase(StrEnum):
    """What a worker does."""

    IDLE = auto()
    RUNNING = auto()  # the handler
    GIVING_UP = auto()  # on_failed
    WROTE = auto()  # on_failed has committed by itself; only without COMMIT_TOGETHER


@dataclass(frozen=True)
class Configuration:
    """The size of a model."""

    workers: int = 1
    max_attempts: int = 1
    expiries: int = 0
    """Leases that expire while their worker lives."""
    answers: int = 0
    """Outside calls whose outcome an operator finds out in time."""
    requeues: int = 0
    has_older_version: bool = False

    def __str__(self) -> str:
        size = f"workers {self.workers}, attempts {self.max_attempts}, expiries {self.expiries}"
        older = ", an earlier version beside them" if self.has_older_version else ""
        return f"{size}, answers {self.answers}, requeues {self.requeues}{older}"

    def model(self, without: Collection[Rule] = (), _: Collection[StrEnum] = ()) -> Model[State]:
        """Return the state machine, without some of its rules."""
        return GivingUp(self, without)


class State(NamedTuple):
    """A state of the model: one job, and the workers."""

    phases: tuple[Phase, ...]
    limit: int
    """The attempts that the job has."""
    has_failed: bool = False
    holder: int | None = None
    """The worker whose lease on the job is alive."""
    solo: bool = False
    attempts: int = 0
    marked: bool = False
    commits: int = 0
    """Committed runs of on_failed since the job was queued."""
    has_reason: bool = False
    """Whether the job says that it failed without on_failed."""
    is_owed: bool = False
    """Whether the handler must run, because of an operator, before the job may fail."""
    kills: int = 0
    expiries: int = 0
    answers: int = 0
    requeues: int = 0

    def with_phase(self, worker: int, phase: Phase) -> State:
        """Return the state with the phase of a worker replaced."""
        return self._replace(phases=replace_item(self.phases, worker, phase))


Step: TypeAlias = tuple[str, State]


class GivingUp:
    """The state machine of a job that fails, and of its on_failed."""

    def __init__(self, size: Configuration, without: Collection[Rule] = ()) -> None:
        self._size = size
        self._rules = frozenset(Rule) - frozenset(without)

    def initial(self) -> State:
        """Return the state in which the job is queued."""
        return State((Phase.IDLE,) * self._size.workers, self._size.max_attempts)

    def violation(self, state: State) -> str:
        """Return the promise that the state breaks."""
        if state.commits > 1:
            return "on_failed commits twice for one failure"
        if state.has_failed and state.is_owed:
            return "a job that an operator queued fails without its handler"
        if state.has_failed and not state.commits and not state.has_reason:
            return "a job fails without on_failed, and does not say so"
        max_kills = 2 * self._size.max_attempts + 2
        return "a job kills without limit" if state.kills > max_kills else ""

    def steps(self, state: State) -> Iterator[Step]:
        """Yield the steps of the workers, of time and of an operator."""
        for worker, phase in enumerate(state.phases):
            name = f"W{worker + 1}"
            match phase:
                case Phase.IDLE if state.holder is None and not state.has_failed:
                    yield from self._claim(state, worker)
                case Phase.RUNNING:
                    yield from self._handler(state, worker)
                case Phase.GIVING_UP:
                    yield from self._on_failed(state, worker)
                case Phase.WROTE:
                    yield f"{name} ends the job", self._failed(state, worker)
            if phase is not Phase.IDLE:
                yield f"{name} dies", self._died(state, worker)
        if state.holder is not None and state.expiries < self._size.expiries:
            expired = state._replace(expiries=state.expiries + 1)
            yield "the lease expires", self._reclaimed(expired)
        if state.has_failed and state.requeues < self._size.requeues:
            yield "the job is requeued", self._requeued(state)

    def _gives_up(self, state: State) -> bool:
        is_marked = state.marked or Rule.MARK_IS_STORED not in self._rules
        is_used_up = state.attempts >= state.limit
        return is_marked and (is_used_up or Rule.MARK_NEEDS_ATTEMPTS not in self._rules)

    def _claim(self, state: State, worker: int) -> Iterator[Step]:
        name = f"W{worker + 1}"
        claimed = state._replace(holder=worker)
        if self._gives_up(state):
            yield f"{name} claims the job to end it", claimed.with_phase(worker, Phase.GIVING_UP)
        else:
            running = claimed._replace(is_owed=False).with_phase(worker, Phase.RUNNING)
            yield f"{name} claims the job and runs its handler", running
        if self._size.has_older_version and state.marked:
            ran = state._replace(is_owed=False, attempts=state.attempts + 1)
            failed = ran._replace(has_failed=True, has_reason=True)
            yield "an earlier version runs the handler, and fails the job", failed

    def _handler(self, state: State, worker: int) -> Iterator[Step]:
        name = f"W{worker + 1}"
        retried = state._replace(attempts=state.attempts + 1, holder=None, solo=False)
        retried = retried.with_phase(worker, Phase.IDLE)
        if state.attempts + 1 >= state.limit:
            yield f"{name}'s handler raises", state.with_phase(worker, Phase.GIVING_UP)
            if state.holder == worker and state.answers < self._size.answers:
                answered = retried._replace(answers=state.answers + 1, is_owed=True)
                yield f"{name}'s outside call is answered; the job is queued", answered
        elif state.holder == worker:
            yield f"{name}'s handler raises, and is retried", retried
        else:
            yield f"{name} notices that its lease is lost", state.with_phase(worker, Phase.IDLE)

    def _on_failed(self, state: State, worker: int) -> Iterator[Step]:
        name = f"W{worker + 1}"
        if Rule.COMMIT_TOGETHER not in self._rules:
            wrote = state._replace(commits=state.commits + 1).with_phase(worker, Phase.WROTE)
            yield f"{name}'s on_failed commits", wrote
            return
        committed = self._failed(state, worker)
        if committed.has_failed and self._may_end(state, worker):
            committed = committed._replace(commits=state.commits + 1)
        yield f"{name} commits on_failed with the end", committed
        faulty = self._failed(state, worker)
        if self._may_end(state, worker):
            faulty = faulty._replace(has_reason=True)
        yield f"{name}'s on_failed raises; the job ends without it", faulty

    def _may_end(self, state: State, worker: int) -> bool:
        return state.holder == worker or Rule.END_IS_FENCED not in self._rules

    def _failed(self, state: State, worker: int) -> State:
        """Return the state in which a worker has ended the job, or found its lease lost."""
        idle = state.with_phase(worker, Phase.IDLE)
        if not self._may_end(state, worker):
            return idle
        return idle._replace(has_failed=True, holder=None, marked=False)

    def _died(self, state: State, worker: int) -> State:
        """Return the state in which a worker was started again after its death."""
        dead = state._replace(kills=state.kills + 1).with_phase(worker, Phase.IDLE)
        return self._reclaimed(dead) if state.holder == worker else dead

    def _reclaimed(self, state: State) -> State:
        """Return the state in which a claim took the job from its lease."""
        free = state._replace(holder=None)
        if not state.solo:
            return free._replace(solo=True)
        if self._gives_up(state):
            if Rule.SECOND_DEATH_FAILS not in self._rules:
                return free
            return free._replace(has_failed=True, has_reason=True, marked=False)
        free = free._replace(attempts=state.attempts + 1)
        if free.attempts < free.limit:
            return free
        if Rule.LEFT_QUEUED in self._rules:
            return free._replace(marked=True)
        return free._replace(has_failed=True)

    def _requeued(self, state: State) -> State:
        """Return the state after a requeue by an earlier version, which leaves the mark."""
        return state._replace(
            has_failed=False,
            limit=state.attempts + self._size.max_attempts,
            commits=0,
            has_reason=False,
            is_owed=True,
            kills=0,
            requeues=state.requeues + 1,
        )
