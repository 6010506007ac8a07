"""A model of `effects.call`: an outside call that must happen once.

Workers run one job, or two jobs that share a key. A worker commits an intent, sends a request to
the other side, and commits the outcome. At every step a worker may crash, lose its lease or simply
not be next, for as long as the model runs: a frozen worker needs no step of its own. An operator
may cancel and requeue, and a person may look at the other side and answer for it.

A request reaches the other side before its deadline or never. Time is a number of ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TypeAlias

from prove.models.effect_state import (
    NEVER,
    NOBODY,
    OPEN,
    Job,
    JobStatus,
    Phase,
    Request,
    Row,
    State,
    Status,
    Worker,
)
from prove.models.search import Model


class Rule(StrEnum):
    """The rules of the protocol."""

    INTENT_FIRST = "Commit the intent before the send."
    INTENT_IS_FENCED = "Commit an intent only while the lease names the job, and it is not over."
    WITHDRAW_OWN_INTENT = "Withdraw an intent without a confirmed commit by its own mark."
    START_OVER_CLOSED = "Start a call only if there is none, or if the last one failed."
    START_IS_ATOMIC = "Start a call by compare-and-set: no other call starts in between."
    PENDING_WAITS = "Before the deadline, postpone a job that finds a pending call."
    UNKNOWN_WAITS = "Before the deadline, postpone a job that finds an unknown outcome."
    SEND_IN_TIME = "Do not send after the deadline."
    DEADLINE_FROM_BEFORE = "Measure a worker's deadline from before its intent is committed."
    CLOCK_RUNS = "Measure a worker's deadline on a clock that runs through a suspend."
    EXCEPTION_IS_UNKNOWN = "An exception leaves the outcome unknown, unless declared otherwise."
    UNKNOWN_OVER_PENDING = "Commit 'unknown' only over the pending row of the same call."
    OUTCOME_UNFENCED = "Commit an outcome without regard to the lease: it is information."
    OUTCOME_BY_ITSELF = "Commit an outcome in its own transaction, not in the handler's."
    SUCCESS_FROM_ANY_CALL = "Accept a success from any call, over any status."
    REFUSAL_FROM_LATEST = "Accept 'not applied' only from the latest call."
    REFUSAL_OVER_OPEN = "Accept 'not applied' only over pending and unknown."
    REFUSAL_KEEPS_DOUBT = "The refusal of a repeated send says nothing about the send before it."
    RECONCILE_IS_ATOMIC = "Start again after a reconcile by compare-and-set on the call's number."
    RECONCILE_IS_FENCED = "Start again after a reconcile only while the lease names the job."
    DEADLINE_IN_WINDOW = "The deadline of a retry-safe call is not after the end of its window."
    WINDOW_FROM_FIRST = "The window begins with the first call, and never moves."
    DONE_NEEDS_OUTCOME = "Refuse `done` while a call of the attempt has no known outcome."
    DONE_NEEDS_OUTCOME_OF_OTHERS = "Refuse `done` too if another job's call has the key."
    CANCEL_REVOKES = "Cancel revokes the lease."
    CANCEL_KEEPS_DEADLINE = "Cancel keeps the deadline of an open call."
    CANCEL_KEEPS_NUMBER = "Cancel keeps the number of an open call."
    ANSWER_AFTER_DEADLINE = "Accept a person's answer only after the deadline."
    ANSWER_NAMES_CALL = "Accept 'did not happen' only for the latest call."


class Limit(StrEnum):
    """Faults that no rule covers. They are off unless asked for."""

    FROZEN_BEFORE_SEND = "A process is frozen between its last check and the send."
    APPLIED_LATE = "The other side applies a request after its deadline."
    KEY_FORGOTTEN = "The other side forgets the key before the window ends."
    RECONCILE_LAGS = "The other side reports 'not applied' for a call that it has applied."
    PERSON_LOOKS_EARLY = "A person looks before the deadline, and answers after it."


class Policy(StrEnum):
    """What happens when the outcome of a call is unknown and its deadline is over."""

    PERSON = auto()
    RECONCILE = auto()
    RETRY_SAFE = auto()
    RETRY_SAFE_OR_RECONCILE = auto()  # the declaration changes with each deployment

    @property
    def is_retry_safe(self) -> bool:
        """Return whether the other side applies a key once, for the length of the window."""
        return self in (Policy.RETRY_SAFE, Policy.RETRY_SAFE_OR_RECONCILE)

    @property
    def reconciles(self) -> bool:
        """Return whether the other side can be asked."""
        return self in (Policy.RECONCILE, Policy.RETRY_SAFE_OR_RECONCILE)


@dataclass(frozen=True)
class Configuration:
    """The size of a model."""

    policy: Policy
    jobs: int = 1
    workers: int = 2
    timeout: int = 1
    window: int = 2
    max_time: int = 2
    max_calls: int = 3

    def __str__(self) -> str:
        size = f"jobs {self.jobs}, workers {self.workers}"
        bounds = f"calls {self.max_calls}, ticks {self.max_time}, timeout {self.timeout}"
        window = f", window {self.window}" if self.policy.is_retry_safe else ""
        return f"{self.policy.replace('_', ' ')}: {size}, {bounds}{window}"

    def model(self, without: Collection[Rule] = (), limits: Collection[Limit] = ()) -> Model[State]:
        """Return the state machine, without some of its rules and with some limits."""
        return EffectCalls(self, without, limits)


Step: TypeAlias = tuple[str, State]
Act: TypeAlias = Callable[[State, int, str], Iterator[Step]]


class EffectCalls:
    """The state machine."""

    def __init__(
        self,
        configuration: Configuration,
        without: Collection[Rule] = (),
        limits: Collection[Limit] = (),
    ) -> None:
        self._size = configuration
        self._rules = frozenset(Rule) - frozenset(without)
        self._limits = frozenset(limits)
        self._acts: Mapping[Phase, Act] = {
            Phase.READY: self._begin,
            Phase.FOUND_NOTHING: self._found_nothing,
            Phase.COMMITTED: self._committed,
            Phase.UNCONFIRMED: self._withdraw,
            Phase.CALLING: self._call,
            Phase.CHECKED: self._send,
            Phase.SENT: self._exception,
            Phase.APPLIED: self._success,
            Phase.REFUSED: self._refusal,
            Phase.RECONCILED: self._start_again,
            Phase.RETURNED: self._finish,
            Phase.RAISED: self._swallow,
        }

    def initial(self) -> State:
        """Return the state in which every job is queued and every worker idle."""
        return State(0, Row(), (Job(),) * self._size.jobs, (Worker(),) * self._size.workers)

    def violation(self, state: State) -> str:
        """Return the harm that the last step did."""
        if state.row.status is Status.SUCCEEDED and state.applied_at == NEVER:
            return "a success is stored, and nothing was applied"
        return state.harm

    def steps(self, state: State) -> Iterator[Step]:
        """Yield the steps of time, workers, the other side, operators and a person."""
        yield from self._time(state)
        for index, worker in enumerate(state.workers):
            if worker.phase is not Phase.IDLE:
                yield from self._acts[worker.phase](state, index, f"W{index + 1}")
                yield from self._fault(state, index)
        if (idle := _first_idle(state)) is not None:
            yield from self._claims(state, idle)
        for request in dict.fromkeys(state.requests):
            yield from self._other_side(state, request)
        for index in range(len(state.jobs)):
            yield from self._operator(state, index)
        yield from self._person(state)

    # Time, leases and crashes.

    def _time(self, state: State) -> Iterator[Step]:
        """Let a tick pass, unless a request would reach its deadline on its way."""
        later = state.now + 1
        is_late = Limit.APPLIED_LATE in self._limits
        if later > self._size.max_time:
            return
        if not is_late and any(request.deadline == later for request in state.requests):
            return
        yield "time passes", state._replace(now=later)
        if Rule.CLOCK_RUNS not in self._rules:
            for index, worker in enumerate(state.workers):
                if worker.phase is Phase.CALLING:
                    woken = worker._replace(deadline=worker.deadline + 1)
                    passed = state._replace(now=later).with_worker(index, woken)
                    yield f"time passes while W{index + 1} is suspended", passed

    def _claims(self, state: State, index: int) -> Iterator[Step]:
        for number, job in enumerate(state.jobs):
            if job == Job():
                claimed = state.with_job(number, Job(holder=index))
                worker = Worker(Phase.READY, job=number)
                yield (
                    f"W{index + 1} claims {self._name(number)}",
                    claimed.with_worker(index, worker),
                )

    def _fault(self, state: State, index: int) -> Iterator[Step]:
        yield f"W{index + 1} crashes", state.end_attempt(index)
        if state.holds(index):
            job = state.workers[index].job
            yield f"W{index + 1} loses its lease", state.with_job(job, Job())

    # The worker.

    def _found_nothing(self, state: State, index: int, name: str) -> Iterator[Step]:
        if state.may_call(index):
            yield from self._intent(state, index, f"{name} commits its intent")

    def _committed(self, state: State, index: int, name: str) -> Iterator[Step]:
        deadline = state.now + self._size.timeout
        timed = state.workers[index]._replace(phase=Phase.CALLING, deadline=deadline)
        yield f"{name} starts its clock", state.with_worker(index, timed)

    def _begin(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Call: start, return the stored result, postpone, or clear up an unknown outcome."""
        if Rule.INTENT_IS_FENCED in self._rules and not state.may_call(index):
            yield f"{name} finds its lease gone", state.end_attempt(index)
        elif state.row.status is Status.SUCCEEDED:
            yield f"{name} reads the stored result", state.enter(index, Phase.RETURNED)
        elif state.row.status not in OPEN or Rule.START_OVER_CLOSED not in self._rules:
            if Rule.START_IS_ATOMIC in self._rules:
                yield from self._intent(state, index, f"{name} commits its intent")
            else:
                yield f"{name} finds no open call", state.enter(index, Phase.FOUND_NOTHING)
        elif state.now < state.row.deadline and self._waits(state.row.status):
            yield from self._raise(state, index, f"{name} finds a call before its deadline")
        else:
            yield from self._clear_up(state, index, name)

    def _waits(self, status: Status) -> bool:
        rule = Rule.PENDING_WAITS if status is Status.PENDING else Rule.UNKNOWN_WAITS
        return rule in self._rules

    def _clear_up(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Do what the policy says about an unknown outcome."""
        policy, row = self._size.policy, state.row
        may_repeat = policy.is_retry_safe and state.now < row.first_call_at + self._size.window
        if may_repeat:
            yield from self._intent(state, index, f"{name} commits a repeated intent", doubt=True)
        if policy.reconciles:
            yield from self._reconcile(state, index, name)
        elif not may_repeat:
            step = f"{name} finds the outcome unknown, and its job fails"
            yield from self._raise(state, index, step, JobStatus.FAILED)

    def _reconcile(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Ask the other side. 'Applied' stays true: it is stored in the same step."""
        if state.applied_at != NEVER:
            stored = self._succeeded(state).enter(index, Phase.RETURNED)
            yield f"{name} reconciles: applied", stored
        if state.applied_at == NEVER or Limit.RECONCILE_LAGS in self._limits:
            asked = Worker(Phase.RECONCILED, state.workers[index].job, state.row.call_no)
            yield f"{name} reconciles: not applied", state.with_worker(index, asked)

    def _start_again(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Start a call after the other side reported 'not applied'."""
        worker, row = state.workers[index], state.row
        is_lost = Rule.RECONCILE_IS_FENCED in self._rules and not state.holds(index)
        is_other = row.call_no != worker.call_no or row.status not in OPEN
        if is_lost or (Rule.RECONCILE_IS_ATOMIC in self._rules and is_other):
            yield f"{name} may not start again", state.end_attempt(index)
        else:
            yield from self._intent(state, index, f"{name} commits a new intent")

    def _intent(
        self, state: State, index: int, step: str, *, doubt: bool = False
    ) -> Iterator[Step]:
        """Commit the intent of the next call. A repeated one is in doubt, and has a window."""
        worker, row, size = state.workers[index], state.row, self._size
        if row.call_no == size.max_calls:
            return
        if Rule.INTENT_FIRST not in self._rules:
            own = Worker(Phase.CALLING, worker.job, 0, state.now + size.timeout)
            yield f"W{index + 1} skips the intent", state.with_worker(index, own)
            return
        is_first = not row.call_no or Rule.WINDOW_FROM_FIRST not in self._rules
        first_call_at = state.now if is_first else row.first_call_at
        deadline = state.now + size.timeout
        if doubt and Rule.DEADLINE_IN_WINDOW in self._rules:
            deadline = min(deadline, first_call_at + size.window)
        call_no = row.call_no + 1
        is_timed = Rule.DEADLINE_FROM_BEFORE in self._rules
        phase = Phase.CALLING if is_timed else Phase.COMMITTED
        started = state._replace(
            row=Row(Status.PENDING, call_no, worker.job, deadline, first_call_at, doubt)
        ).with_worker(index, Worker(phase, worker.job, call_no, deadline))
        if state.jobs[worker.job].status is not JobStatus.QUEUED:
            started = started._replace(harm="a call starts for a job that is over")
        yield step, started
        is_marked = Rule.WITHDRAW_OWN_INTENT in self._rules
        unsent = Phase.REFUSED if is_marked else Phase.UNCONFIRMED
        yield f"{step}, and gets no response", started.enter(index, unsent)

    def _withdraw(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Commit that an intent was not sent, of the call that has the key now."""
        withdrawn = self._not_applied(state, state.row.call_no).end_attempt(index)
        yield f"{name} withdraws its intent", withdrawn

    def _call(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Send, unless the deadline is over: then nothing was applied."""
        worker = state.workers[index]
        if Rule.SEND_IN_TIME in self._rules and state.now >= worker.deadline:
            unsent = self._not_applied(state, worker.call_no).end_attempt(index)
            yield f"{name} is too late to send, and commits 'not applied'", unsent
        elif Limit.FROZEN_BEFORE_SEND in self._limits:
            yield f"{name} checks its deadline", state.enter(index, Phase.CHECKED)
        else:
            yield from self._send(state, index, name)

    def _send(self, state: State, index: int, name: str) -> Iterator[Step]:
        worker = state.workers[index]
        request = Request(worker.call_no, worker.deadline)
        requests = tuple(sorted((*state.requests, request)))
        yield f"{name} sends", state._replace(requests=requests).enter(index, Phase.SENT)

    def _exception(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Get an exception that says nothing about the call."""
        worker, row = state.workers[index], state.row
        if Rule.EXCEPTION_IS_UNKNOWN not in self._rules:
            failed = self._not_applied(state, worker.call_no).end_attempt(index)
            yield f"{name} gets a timeout, and commits 'failed'", failed
            return
        is_pending = (row.status, row.call_no) == (Status.PENDING, worker.call_no)
        if is_pending or Rule.UNKNOWN_OVER_PENDING not in self._rules:
            state = _overwrite(state, Status.UNKNOWN)
        yield from self._raise(state, index, f"{name} gets a timeout: unknown")

    def _success(self, state: State, index: int, name: str) -> Iterator[Step]:
        """Commit a success, or lose it where a rule is missing."""
        call_no, row = state.workers[index].call_no, state.row
        is_fenced = Rule.OUTCOME_UNFENCED not in self._rules and not state.holds(index)
        is_latest = call_no == row.call_no and row.status in OPEN
        is_old = Rule.SUCCESS_FROM_ANY_CALL not in self._rules and not is_latest
        if is_fenced or is_old:
            yield f"the success of {name} is refused", _check_stored(state.end_attempt(index))
        elif Rule.OUTCOME_BY_ITSELF not in self._rules:
            yield f"{name} keeps its success for later", state.enter(index, Phase.RETURNED)
        else:
            stored = self._succeeded(state).enter(index, Phase.RETURNED)
            yield f"{name} commits its success", stored

    def _refusal(self, state: State, index: int, name: str) -> Iterator[Step]:
        refused = self._not_applied(state, state.workers[index].call_no)
        yield f"{name} commits 'not applied'", refused.end_attempt(index)

    def _succeeded(self, state: State) -> State:
        return state._replace(row=state.row._replace(status=Status.SUCCEEDED, doubt=False))

    def _not_applied(self, state: State, call_no: int) -> State:
        """Commit that a call was not applied: in doubt it stays unknown, else it failed."""
        row = state.row
        if Rule.REFUSAL_FROM_LATEST in self._rules and row.call_no != call_no:
            return state
        if Rule.REFUSAL_OVER_OPEN in self._rules and row.status not in OPEN:
            return state
        is_doubtful = row.doubt and Rule.REFUSAL_KEEPS_DOUBT in self._rules
        return _overwrite(state, Status.UNKNOWN if is_doubtful else Status.FAILED)

    def _raise(
        self, state: State, index: int, step: str, status: JobStatus = JobStatus.QUEUED
    ) -> Iterator[Step]:
        """End the attempt: its call has no known outcome. The handler may swallow the error."""
        yield step, state.end_attempt(index, status)
        is_own = state.row.job == state.workers[index].job
        rule = Rule.DONE_NEEDS_OUTCOME if is_own else Rule.DONE_NEEDS_OUTCOME_OF_OTHERS
        if rule not in self._rules:
            yield step, state.enter(index, Phase.RAISED)

    def _finish(self, state: State, index: int, name: str) -> Iterator[Step]:
        """End the handler, with `done` or with an error of its own."""
        yield f"the handler of {name} fails later", _check_stored(state.end_attempt(index))
        yield from self._done(state, index, f"{name} is done")

    def _swallow(self, state: State, index: int, name: str) -> Iterator[Step]:
        yield from self._done(state, index, f"{name} swallows the error and is done")

    def _done(self, state: State, index: int, step: str) -> Iterator[Step]:
        """Commit `done`, which the lease fences."""
        if not state.holds(index):
            return
        done = state.end_attempt(index, JobStatus.DONE)
        is_late = Rule.OUTCOME_BY_ITSELF not in self._rules
        if is_late and state.workers[index].phase is Phase.RETURNED:
            done = self._succeeded(done)
        if state.jobs[state.workers[index].job].status is JobStatus.CANCELLED:
            done = done._replace(harm="a cancelled job is done")
        elif done.row.status in OPEN:
            done = done._replace(harm="a job is done, and the outcome of its call is unknown")
        yield step, done

    # The other side.

    def _other_side(self, state: State, request: Request) -> Iterator[Step]:
        """Apply, refuse or lose a request. The response reaches a worker that waits, or is lost."""
        requests = list(state.requests)
        requests.remove(request)
        received = state._replace(requests=tuple(requests))
        applied = self._applied(received)
        yield f"call {request.call_no} is lost", received
        yield f"call {request.call_no} is applied, its response lost", applied
        for index, worker in enumerate(state.workers):
            if worker.phase is Phase.SENT and worker.call_no == request.call_no:
                yield f"call {request.call_no} is applied", applied.enter(index, Phase.APPLIED)
                yield f"call {request.call_no} is refused", received.enter(index, Phase.REFUSED)
                return

    def _applied(self, state: State) -> State:
        """Apply a request, unless the other side knows the key."""
        if state.applied_at == NEVER:
            return state._replace(applied_at=state.now)
        is_known = self._size.policy.is_retry_safe and Limit.KEY_FORGOTTEN not in self._limits
        if is_known and state.now < state.applied_at + self._size.window:
            return state
        return state._replace(harm="the effect is applied twice")

    # People.

    def _operator(self, state: State, index: int) -> Iterator[Step]:
        job, row, name = state.jobs[index], state.row, self._name(index)
        if job.status in (JobStatus.FAILED, JobStatus.CANCELLED):
            yield f"an operator requeues {name}", state.with_job(index, Job(holder=job.holder))
        if job.status is not JobStatus.QUEUED:
            return
        is_revoked = Rule.CANCEL_REVOKES in self._rules
        holder = NOBODY if is_revoked else job.holder
        cancelled = state.with_job(index, Job(JobStatus.CANCELLED, holder))
        if row.job == index and row.status is Status.PENDING:
            cancelled = cancelled._replace(row=self._cancelled(row, state.now))
        yield f"an operator cancels {name}", cancelled

    def _cancelled(self, row: Row, now: int) -> Row:
        keeps_deadline = Rule.CANCEL_KEEPS_DEADLINE in self._rules
        keeps_number = Rule.CANCEL_KEEPS_NUMBER in self._rules
        return row._replace(
            status=Status.UNKNOWN,
            deadline=row.deadline if keeps_deadline else now,
            call_no=row.call_no if keeps_number else 0,
        )

    def _person(self, state: State) -> Iterator[Step]:
        """Look at the other side, and answer for it. 'It happened' stays true: it is one step."""
        row = state.row
        is_over = state.now >= row.deadline or Rule.ANSWER_AFTER_DEADLINE not in self._rules
        if row.status in OPEN and (is_over or Limit.PERSON_LOOKS_EARLY in self._limits):
            if state.applied_at == NEVER:
                looked = state._replace(looked_at=row.call_no)
                yield f"a person looks: call {row.call_no} did not happen", looked
            elif is_over:
                yield "a person answers: it happened", _queue_again(self._succeeded(state))
        if state.looked_at:
            is_latest = state.looked_at == row.call_no or Rule.ANSWER_NAMES_CALL not in self._rules
            answered = state._replace(looked_at=0)
            if row.status in OPEN and is_over and is_latest:
                failed = row._replace(status=Status.FAILED, doubt=False)
                answered = _queue_again(answered._replace(row=failed))
            yield "the person answers: it did not happen", answered

    def _name(self, job: int) -> str:
        return "the job" if self._size.jobs == 1 else f"job {'AB'[job]}"


def _first_idle(state: State) -> int | None:
    """Return the first idle worker. Idle workers are alike: the others need not be tried."""
    return next((i for i, worker in enumerate(state.workers) if worker.phase is Phase.IDLE), None)


def _overwrite(state: State, status: Status) -> State:
    """Return the state with an outcome other than success."""
    harm = "a stored success is taken back" if state.row.status is Status.SUCCEEDED else ""
    return state._replace(row=state.row._replace(status=status), harm=harm)


def _check_stored(state: State) -> State:
    """Return the state after an attempt that learnt of a success."""
    is_stored = state.row.status is Status.SUCCEEDED
    return state if is_stored else state._replace(harm="a known success is not stored")


def _queue_again(state: State) -> State:
    """Queue the jobs that waited for the answer."""
    jobs = (Job() if job.status is JobStatus.FAILED else job for job in state.jobs)
    return state._replace(jobs=tuple(jobs))
