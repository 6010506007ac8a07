"""A model of inline processing: the handler runs within the request, in one transaction.

Requests A, B, C and D deliver one event, at any time: they are concurrent, or one is a redelivery
of another. An operator may requeue or cancel the event once it is recorded; a requeued one is run
by the worker W. At every step a request may fail, or its process may crash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple, TypeAlias

from prove.models.search import Model
from prove.models.tuples import replace_item

MAX_LOOKS = 2


class Rule(StrEnum):
    """The rules of the protocol."""

    COMMIT_IF_NOT_DONE = "Commit only if the job is not done, by compare-and-set."
    COMMIT_IF_NOT_CANCELLED = "Commit only if the job is not cancelled, by compare-and-set."
    ONE_AT_A_TIME = "Run a handler only under the lock of its event."
    WAIT_WITHOUT_CONNECTION = "Release the connection while another request has the lock."
    WAIT_IN_BOUNDS = "Respond 503 when the lock is not free in time."
    READ_UNDER_LOCK = "Read the status in a later statement than the one that takes the lock."
    DONE_MEANS_DONE = "Respond `already_processed` only if the job is done, not if it is known."
    WAITERS_READ = "A request that waited reads the status, and copies no other's result."
    FAILURE_KEEPS_STATUS = "Recording a failure never changes a status that exists."
    RESPOND_AFTER_COMMIT = "Respond `processed` only after the response to the commit."
    UNKNOWN_IS_503 = "Respond 503 when the outcome of the commit is unknown."


@dataclass(frozen=True)
class Configuration:
    """The size of a model."""

    requests: int = 2
    connections: int = 2

    def __str__(self) -> str:
        return f"requests {self.requests}, connections {self.connections}, workers 1"

    def model(self, without: Collection[Rule] = (), _: Collection[StrEnum] = ()) -> Model[State]:
        """Return the state machine, without some of its rules."""
        return Inline(self, without)


class Status(StrEnum):
    """The status of the event's job."""

    ABSENT = auto()
    FAILED = auto()  # within a request: a redelivery runs it again
    QUEUED = auto()  # requeued: the worker runs it
    FAILED_IN_WORKER = auto()  # an operator decides
    DONE = auto()
    CANCELLED = auto()


class Phase(StrEnum):
    """How far a request, or the worker, has come."""

    NEW = auto()
    WAITING = auto()  # for the lock
    SNAPSHOT = auto()  # the status was read before the lock; only without READ_UNDER_LOCK
    LOCKED = auto()
    RUNNING = auto()
    RETURNED = auto()  # the handler did; its transaction is open
    COMMITTED = auto()
    IN_DOUBT = auto()  # the connection was lost during the commit
    ROLLED_BACK = auto()
    OVER = auto()


LOCK_HELD = (Phase.LOCKED, Phase.RUNNING, Phase.RETURNED)
IN_HANDLER = (Phase.RUNNING, Phase.RETURNED)


class Request(NamedTuple):
    """A delivery of the event."""

    phase: Phase = Phase.NEW
    seen: Status | None = None
    """The status that its snapshot has; only without READ_UNDER_LOCK."""
    looks: int = 0


class State(NamedTuple):
    """The event's job, the requests and the worker."""

    status: Status
    requests: tuple[Request, ...]
    worker: Phase = Phase.NEW
    runs: int = 0
    """How many transactions of the handler were committed."""
    harm: str = ""

    def with_request(self, index: int, request: Request) -> State:
        """Return the state with a request replaced."""
        return self._replace(requests=replace_item(self.requests, index, request))

    def enter(self, index: int, phase: Phase) -> State:
        """Return the state with a request in another phase."""
        return self.with_request(index, Request(phase))


Step: TypeAlias = tuple[str, State]


class Inline:
    """The state machine."""

    def __init__(self, configuration: Configuration, without: Collection[Rule] = ()) -> None:
        self._size = configuration
        self._rules = frozenset(Rule) - frozenset(without)

    def initial(self) -> State:
        """Return the state before any request."""
        return State(Status.ABSENT, (Request(),) * self._size.requests)

    def violation(self, state: State) -> str:
        """Return the promise that the state breaks."""
        if state.harm:
            return state.harm
        if state.runs > 1:
            return "the event is processed twice"
        if sum(request.phase in IN_HANDLER for request in state.requests) > 1:
            return "two requests run the handler at once"
        is_full = self._connections(state) >= self._size.connections
        if is_full and any(self._waits_with_connection(request) for request in state.requests):
            return "no connection is free, because a waiting request holds one"
        return ""

    def steps(self, state: State) -> Iterator[Step]:
        """Yield the steps of the requests, the worker and an operator."""
        for index, request in enumerate(state.requests):
            name = "ABCD"[index]
            yield from self._request(state, index, request, name)
            if request.phase not in (Phase.NEW, Phase.OVER):
                yield f"{name} crashes", state.enter(index, Phase.OVER)
        yield from self._worker(state)
        yield from self._operator(state)

    # The request.

    def _request(self, state: State, index: int, request: Request, name: str) -> Iterator[Step]:
        match request.phase:
            case Phase.NEW | Phase.WAITING:
                yield from self._look(state, index, request, name)
            case Phase.SNAPSHOT if not self._is_locked(state):
                locked = request._replace(phase=Phase.LOCKED)
                yield f"{name} gets the lock", state.with_request(index, locked)
            case Phase.LOCKED:
                yield from self._read(state, index, request.seen or state.status, name)
            case Phase.RUNNING:
                yield f"the handler of {name} returns", state.enter(index, Phase.RETURNED)
                yield f"the handler of {name} fails", state.enter(index, Phase.ROLLED_BACK)
            case Phase.RETURNED:
                yield from self._commit(state, index, name)
            case Phase.COMMITTED:
                yield self._processed(state, index, f"{name} responds processed")
            case Phase.IN_DOUBT:
                if Rule.UNKNOWN_IS_503 in self._rules:
                    yield f"{name} responds 503", state.enter(index, Phase.OVER)
                else:
                    yield self._processed(state, index, f"{name} responds processed")
            case Phase.ROLLED_BACK:
                yield f"{name} records its failure", self._failure(state, index)

    def _look(self, state: State, index: int, request: Request, name: str) -> Iterator[Step]:
        """Try the lock: go on, or wait and look again."""
        is_waiting = request.phase is Phase.WAITING
        if not is_waiting and self._connections(state) >= self._size.connections:
            return
        if Rule.READ_UNDER_LOCK not in self._rules:
            snapshot = Request(Phase.SNAPSHOT, seen=state.status)
            yield f"{name} reads {state.status}", state.with_request(index, snapshot)
        elif not self._is_locked(state) or Rule.ONE_AT_A_TIME not in self._rules:
            yield f"{name} gets the lock", state.enter(index, Phase.LOCKED)
        elif request.looks == MAX_LOOKS and Rule.WAIT_IN_BOUNDS in self._rules:
            yield f"{name} has waited long enough, and responds 503", state.enter(index, Phase.OVER)
        else:
            waiting = state.with_request(index, Request(Phase.WAITING, looks=request.looks + 1))
            if request.looks == MAX_LOOKS:
                waiting = waiting._replace(harm="a request waits without end")
            yield f"{name} finds the lock taken, and waits", waiting
        is_leader_done = any(other.phase is Phase.RETURNED for other in state.requests)
        if is_waiting and is_leader_done and Rule.WAITERS_READ not in self._rules:
            yield self._processed(state, index, f"{name} copies the result, already_processed")

    def _read(self, state: State, index: int, status: Status, name: str) -> Iterator[Step]:
        """Decide by the status, under the lock."""
        is_known = status is Status.FAILED and Rule.DONE_MEANS_DONE not in self._rules
        if status is Status.DONE or is_known:
            step = f"{name} reads {status}, and responds already_processed"
            yield self._processed(state, index, step)
        elif status in (Status.ABSENT, Status.FAILED):
            running = state.enter(index, Phase.RUNNING)
            if state.status is Status.DONE:
                running = running._replace(harm="the handler of a done event runs again")
            yield f"{name} reads {status}, and runs the handler", running
        else:
            response = "ignored" if status is Status.CANCELLED else "202"
            yield f"{name} reads {status}, and responds {response}", state.enter(index, Phase.OVER)

    def _commit(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Commit record, writes and `done` together; or roll back, and look again."""
        if Rule.RESPOND_AFTER_COMMIT not in self._rules:
            yield self._processed(state, index, f"{name} responds processed")
        if not self._may_commit(state.status, Status.ABSENT, Status.FAILED):
            step = f"{name} finds the job {state.status}, rolls back and looks again"
            yield step, state.enter(index, Phase.NEW)
            return
        committed = self._done(state)
        yield f"{name} commits", committed.enter(index, Phase.COMMITTED)
        yield f"{name} commits, the response is lost", committed.enter(index, Phase.IN_DOUBT)
        yield f"{name} loses its connection at the commit", state.enter(index, Phase.IN_DOUBT)

    def _may_commit(self, status: Status, *expected: Status) -> bool:
        if status is Status.DONE:
            return Rule.COMMIT_IF_NOT_DONE not in self._rules
        if status is Status.CANCELLED:
            return Rule.COMMIT_IF_NOT_CANCELLED not in self._rules
        return status in expected

    def _done(self, state: State) -> State:
        harm = "a cancelled event is processed" if state.status is Status.CANCELLED else ""
        return state._replace(status=Status.DONE, runs=state.runs + 1, harm=harm)

    def _processed(self, state: State, index: int, step: str) -> Step:
        """Respond 200, after which the sender sends no more."""
        over = state.enter(index, Phase.OVER)
        if state.status is not Status.DONE:
            over = over._replace(harm="the sender got 200, and the event is not processed")
        return step, over

    def _failure(self, state: State, index: int) -> State:
        """Record a failure by itself: the rollback has released the lock."""
        over = state.enter(index, Phase.OVER)
        if state.status is Status.ABSENT:
            return over._replace(status=Status.FAILED)
        if Rule.FAILURE_KEEPS_STATUS in self._rules:
            return over
        harm = "a done event is failed again" if state.status is Status.DONE else ""
        return over._replace(status=Status.FAILED, harm=harm)

    # The lock and the pool.

    def _is_locked(self, state: State) -> bool:
        return any(request.phase in LOCK_HELD for request in state.requests)

    def _waits_with_connection(self, request: Request) -> bool:
        is_waiting = request.phase is Phase.WAITING
        return is_waiting and Rule.WAIT_WITHOUT_CONNECTION not in self._rules

    def _connections(self, state: State) -> int:
        return sum(
            request.phase in LOCK_HELD or self._waits_with_connection(request)
            for request in state.requests
        )

    # The worker and the operator.

    def _worker(self, state: State) -> Iterator[Step]:
        if state.worker is Phase.NEW and state.status is Status.QUEUED:
            yield "W claims the job and runs the handler", state._replace(worker=Phase.RUNNING)
        if state.worker is Phase.RUNNING:
            yield "W crashes or retries later", state._replace(worker=Phase.NEW)
            if state.status is Status.QUEUED:
                failed = state._replace(status=Status.FAILED_IN_WORKER, worker=Phase.NEW)
                yield "the job of W fails for good", failed
            if self._may_commit(state.status, Status.QUEUED):
                yield "W commits", self._done(state)._replace(worker=Phase.NEW)

    def _operator(self, state: State) -> Iterator[Step]:
        if state.status in (Status.FAILED, Status.FAILED_IN_WORKER, Status.CANCELLED):
            yield "an operator requeues the event", state._replace(status=Status.QUEUED)
        if state.status in (Status.FAILED, Status.FAILED_IN_WORKER, Status.QUEUED):
            # The cancel revokes the worker's lease.
            cancelled = state._replace(status=Status.CANCELLED, worker=Phase.NEW)
            yield "an operator cancels the event", cancelled
