"""Outside calls: commit the intent, call, commit the outcome.

A crash between the intent and the outcome leaves an effect of which nobody knows whether it was
applied. It is called again only if its policy says that this is safe. Decision 0021 lists the
rules; ``prove/models/effect_calls.py`` shows what goes wrong without each.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from onceward.errors import (
    EffectNotApplied,
    EffectPending,
    EffectUnknown,
    PermanentError,
    StoreError,
)
from onceward.model.effects import (
    Applied,
    CallIntent,
    EffectCall,
    EffectStatus,
    NotApplied,
    StillUnknown,
    key_in_use,
    reserved_key_fault,
)
from onceward.model.jobs import Job
from onceward.ports.effect_calls import EffectCalls
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import describe
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.runtime.value_kind import kind_of
from onceward.work.outside.declaration import (
    KEY_PARAMETER,
    EffectFunction,
    OutsideEffect,
    OutsideEffects,
)
from onceward.work.outside.outcomes import (
    Expired,
    Raised,
    Returned,
    encode_result,
    run_call,
    stored_result,
)
from onceward.work.running.handler_call import Abandonment

_log = logging.getLogger("onceward.work")

T = TypeVar("T")

STORE_SECONDS: Final = 8.0
"""How long a handler waits until the outcome of a call is stored. The process tries further."""

_STORE_DELAYS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between the attempts to store an outcome; the last one is repeated."""

_EARLIER_INTERRUPTED: Final = "an earlier call was interrupted"
_INTERRUPTED: Final = "the call was interrupted"

Unresolved = EffectUnknown | EffectPending | StoreError
"""Errors of a call without a known outcome."""

_MAX_LOOKS: Final = 10
"""How often a call looks at an effect that others change meanwhile."""


class NoCalls(Enum):
    """Why an attempt can make no outside calls."""

    SHARED = (
        'effects.call is not for handlers with transaction="shared", which may run again when a '
        'neighbour fails; remove transaction="shared"'
    )
    INLINE = (
        'effects.call is not for a source with mode="inline": its sender may give up and send the '
        'event again before the outcome is known; set mode="background" on the source'
    )


@dataclass(frozen=True, slots=True)
class Invocation:
    """One use of an effect by a handler, with the arguments of its function."""

    effect: OutsideEffect
    intent: CallIntent
    arguments: Sequence[Any]
    named: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The effect, for messages."""
        return f"effect {self.intent.key!r}"

    def call(self) -> partial[Any]:
        """Return the call of the function, with the key of the effect if it names one."""
        key = {KEY_PARAMETER: self.intent.key} if self.effect.takes_key else {}
        return partial(self.effect.function, *self.arguments, **self.named, **key)

    def ask(self, reconcile: EffectFunction) -> partial[Any]:
        """Return the call of the function that asks the other side."""
        return partial(reconcile, self.intent.key, *self.arguments, **self.named)


@dataclass(frozen=True, slots=True)
class OutsideCalls:
    """Makes the outside calls of the handlers of this process."""

    store: EffectCalls
    effects: OutsideEffects
    timeout_seconds: float
    """The timeout of a function without one of its own."""
    clock: Clock
    failpoints: Failpoints
    make_nonce: Callable[[], str]
    """Returns a text that no other call has."""
    secrets: Iterable[str | bytes] = ()
    """Secrets to redact in error texts. The owner may add more at any time."""
    threads: dict[str, set[asyncio.Future[Any]]] = field(default_factory=dict)
    """Threads that outlive the deadline of their call, by the key of the effect."""

    def attempt(self, token: str, job: Job, abandonment: Abandonment | None = None) -> AttemptCalls:
        """Return the outside calls of one attempt of a leased job.

        Threads that run after their time are reported to the `abandonment`.
        """
        return AttemptCalls(self, token, job, abandonment)


class AttemptCalls:
    """The outside calls of one attempt. While one has no known outcome, the job cannot be done."""

    def __init__(
        self, calls: OutsideCalls, token: str, job: Job, abandonment: Abandonment | None
    ) -> None:
        self._calls = calls
        self._store = calls.store
        self._clock = calls.clock
        self._token = token
        self._job = job
        self._abandonment = abandonment
        self._unresolved: dict[str, Unresolved] = {}
        self._background: set[asyncio.Future[Any]] = set()
        """Outcomes that are being stored, even if the handler is cancelled meanwhile."""

    def unresolved(self) -> Unresolved | None:
        """Return the error of a call without a known outcome: the one that needs most help."""
        errors = self._unresolved.values()
        return max(errors, key=_urgency, default=None)

    async def call(self, invocation: Invocation) -> Any:
        """Make a call once, and return its stored result ever after. See `Effects.call`."""
        key = invocation.intent.key
        try:
            result = await self._call(invocation)
        except (EffectUnknown, EffectPending, StoreError) as error:
            self._unresolved[key] = error
            raise
        self._unresolved.pop(key, None)
        return result

    def check(
        self, key: str, function: object, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Invocation:
        """Check the arguments of a call. Raise PermanentError before anything is stored."""
        effect = self._calls.effects.find(function)
        if isinstance(effect, str):
            raise PermanentError(f"effects.call: {effect}")
        if not effect.is_built_in and (fault := reserved_key_fault(key)):
            raise PermanentError(f"effects.call: {fault}")
        if effect.takes_key and KEY_PARAMETER in named:
            raise PermanentError(f"effects.call passes {KEY_PARAMETER} to {effect.name}; omit it")
        intent = CallIntent(
            token=self._token,
            job=self._job.id,
            key=key,
            reference=self._job.reference,
            function=effect.name,
            timeout_seconds=effect.timeout_seconds or self._calls.timeout_seconds,
            nonce=self._calls.make_nonce(),
        )
        invocation = Invocation(effect, intent, arguments, named)
        try:
            call = invocation.call()
            inspect.signature(effect.function).bind(*call.args, **call.keywords)
        except TypeError as error:
            raise PermanentError(f"effects.call: {effect.name}: {error}") from None
        return invocation

    async def _call(self, invocation: Invocation) -> Any:
        if invocation.intent.key in self._calls.threads:
            return await self._await_thread(invocation)
        for _ in range(_MAX_LOOKS):
            before = self._clock.boottime()
            started = await self._start(invocation, self._store.start_call(invocation.intent))
            if started is not None:
                return await self._send(invocation, started, before)
            existing = await self._store.load_call(invocation.intent)
            _require_same_function(invocation, existing)
            if existing.status is EffectStatus.SUCCEEDED:
                return stored_result(existing)
            if existing.status is EffectStatus.FAILED:
                continue  # since start_call looked
            if existing.seconds_left > 0:
                raise _pending(invocation, existing)
            self._unresolved[invocation.intent.key] = _unknown(
                invocation, existing, _EARLIER_INTERRUPTED
            )
            answer = await self._decide(invocation, existing)
            if isinstance(answer, Applied):
                return await self._end_applied(invocation, existing, answer.result)
            before = self._clock.boottime()
            restart = self._store.restart_call(
                invocation.intent,
                existing,
                window_seconds=None
                if isinstance(answer, NotApplied)
                else invocation.effect.retry_safe_seconds,
            )
            started = await self._start(invocation, restart)
            if started is not None:
                return await self._send(invocation, started, before)
        message = f"{invocation.label}: others call the same effect again and again"
        raise EffectPending(message, seconds=invocation.intent.timeout_seconds)

    async def _await_thread(self, invocation: Invocation) -> Any:
        """Return the result of an effect whose thread outlives its deadline, if it is known.

        Raise EffectPending: no other call may begin beside the thread.
        """
        existing = await self._store.load_call(invocation.intent)
        _require_same_function(invocation, existing)
        if existing.status is EffectStatus.SUCCEEDED:
            return stored_result(existing)
        raise _running(invocation)

    async def _start(
        self, invocation: Invocation, start: Awaitable[EffectCall | None]
    ) -> EffectCall | None:
        """Commit the intent. If the commit fails, withdraw it: nothing was sent."""
        try:
            return await start
        except BaseException:
            withdraw = partial(self._store.withdraw_call, invocation.intent)
            self._keep(asyncio.ensure_future(self._store_outcome(withdraw)))
            raise

    async def _decide(
        self, invocation: Invocation, call: EffectCall
    ) -> Applied | NotApplied | None:
        """Return what the other side says, or None to repeat the call under its key.

        Raise EffectUnknown if the effect has no policy, or if its policy cannot tell.
        """
        effect = invocation.effect
        if effect.reconcile is not None:
            return await self._reconcile(invocation, effect.reconcile, call)
        window = effect.retry_safe_seconds
        if window is not None and call.seconds_since_first < window:
            return None
        reason = call.error_message or "its process died, or was cut off, during the call"
        if window is not None:
            reason = f"the time in which it may be repeated is over; {reason}"
        await self._store.record_unknown(call, reason)
        raise _unknown(invocation, call, reason, is_final=True)

    async def _reconcile(
        self, invocation: Invocation, reconcile: EffectFunction, call: EffectCall
    ) -> Applied | NotApplied:
        asked = await run_call(
            invocation.ask(reconcile),
            invocation.intent.timeout_seconds,
            on_left=self._abandon,
        )
        match asked:
            case Returned(value=Applied() | NotApplied() as answer):
                return answer
            case Returned(value=StillUnknown()):
                reason = "reconcile cannot tell yet"
            case Returned(value=value):
                reason = (
                    f"reconcile returned {kind_of(value)}; return Applied(result), NotApplied() or "
                    "StillUnknown()"
                )
                raise _unknown(invocation, call, reason, is_final=True)
            case Raised(error=error):
                reason = f"reconcile failed: {self._describe(error)}"
            case Expired():
                reason = "reconcile did not return in time"
        raise _unknown(invocation, call, reason)

    async def _send(self, invocation: Invocation, call: EffectCall, before: float) -> Any:
        """Call the function and store the outcome. `before` is the time before the intent."""
        effect = invocation.effect
        self._unresolved[invocation.intent.key] = _unknown(invocation, call, _INTERRUPTED)
        self._calls.failpoints.reach("effect.intended")
        # The ledger's deadline is later than this one: its time began after `before`.
        seconds = before + call.seconds_left - self._clock.boottime()
        if seconds <= 0:
            late = EffectNotApplied(f"{invocation.label}: the time for the call passed before it")
            return await self._end_not_applied(invocation, call, late)
        try:
            outcome = await run_call(
                invocation.call(), seconds, on_left=partial(self._leave, invocation, call)
            )
        except BaseException:  # the handler is cancelled
            unknown = partial(self._store.record_unknown, call, _INTERRUPTED)
            self._keep(asyncio.ensure_future(self._store_outcome(unknown)))
            raise
        self._calls.failpoints.reach("effect.called")
        match outcome:
            case Returned(value=value):
                return await self._end_applied(invocation, call, value)
            case Raised(error=error) if isinstance(error, effect.not_applied):
                return await self._end_not_applied(invocation, call, error)
            case Raised(error=error):
                return await self._end_unknown(invocation, call, self._describe(error), error)
            case Expired():
                reason = f"{effect.name} did not return within {seconds:.3g} s"
                return await self._end_unknown(invocation, call, reason)

    async def _end_applied(self, invocation: Invocation, call: EffectCall, value: Any) -> Any:
        """Store a result, and return it as every later call will.

        Raise PermanentError if it cannot be stored: the call happened, and is not repeated.
        """
        text, fault = encode_result(invocation.label, invocation.effect.name, value)
        store = partial(self._store.record_success, call, text, fault)
        reason = f"{invocation.effect.name} returned, but its result could not be stored"
        await self._save(store, _unknown(invocation, call, reason))
        self._unresolved.pop(invocation.intent.key, None)
        if fault is not None:
            raise PermanentError(fault)
        return None if text is None else msgspec.json.decode(text)

    async def _end_not_applied(
        self, invocation: Invocation, call: EffectCall, error: BaseException
    ) -> NoReturn:
        """Store that a call was not applied, and raise its error.

        Raise EffectUnknown if an earlier call may have been: a refusal says nothing about it.
        """
        reason = self._describe(error)
        store = partial(self._store.record_not_applied, call, reason)
        unknown = _unknown(invocation, call, reason)
        status = await self._save(store, unknown)
        if status is EffectStatus.UNKNOWN:
            raise unknown from error
        self._unresolved.pop(invocation.intent.key, None)
        raise error

    async def _end_unknown(
        self,
        invocation: Invocation,
        call: EffectCall,
        reason: str,
        cause: BaseException | None = None,
    ) -> NoReturn:
        """Store that the outcome of a call is unknown, and raise EffectUnknown."""
        unknown = _unknown(invocation, call, reason)
        await self._save(partial(self._store.record_unknown, call, reason), unknown)
        raise unknown from cause

    async def _save(self, store: Callable[[], Awaitable[T]], failed: EffectUnknown) -> T:
        """Store an outcome, even if the handler is cancelled meanwhile. Raise `failed`."""
        task = self._keep(asyncio.ensure_future(self._store_outcome(store)))
        try:
            stored = await asyncio.wait_for(asyncio.shield(task), STORE_SECONDS)
        except TimeoutError:
            text = str(failed)
            message = "%s; its outcome is stored once the database is back, if this process lives"
            _log.error(message, text, extra=LogFields(error=text, job=self._job.id))
            raise failed from None
        self._calls.failpoints.reach("effect.stored")
        return stored

    async def _store_outcome(self, store: Callable[[], Awaitable[T]]) -> T:
        """Store an outcome. Try again while the store is unavailable and this process lives."""
        for delay in chain(_STORE_DELAYS, repeat(_STORE_DELAYS[-1])):
            try:
                return await store()
            except StoreError:
                await asyncio.sleep(delay)
        raise AssertionError("unreachable: the delays do not end")

    def _leave(self, invocation: Invocation, call: EffectCall, thread: asyncio.Future[Any]) -> None:
        """Let no call begin beside a thread that outlives its deadline, and store its result."""
        self._abandon(thread)
        threads = self._calls.threads.setdefault(invocation.intent.key, set())
        threads.add(thread)
        thread.add_done_callback(partial(self._end_thread, invocation, call))

    def _abandon(self, thread: asyncio.Future[Any]) -> None:
        """Count a thread that outlives its call against its handler, until it ends."""
        if self._abandonment is not None and not thread.done():
            abandonment = self._abandonment
            abandonment.begin()
            thread.add_done_callback(lambda _: abandonment.end())

    def _end_thread(
        self, invocation: Invocation, call: EffectCall, thread: asyncio.Future[Any]
    ) -> None:
        key = invocation.intent.key
        self._calls.threads[key].discard(thread)
        if not self._calls.threads[key]:
            del self._calls.threads[key]
        if thread.cancelled() or thread.exception() is not None:
            return
        value = thread.result()
        if inspect.iscoroutine(value):
            value.close()  # it never runs
        elif not inspect.isawaitable(value):
            self._store_late(invocation, call, value)

    def _store_late(self, invocation: Invocation, call: EffectCall, value: Any) -> None:
        """Store the result of a thread that returned after the deadline: it is the truth."""
        message = "%s (id %s): %s returned after its deadline; its result is stored"
        fields = LogFields(job=self._job.id)
        _log.warning(message, invocation.label, call.id, invocation.effect.name, extra=fields)
        text, fault = encode_result(invocation.label, invocation.effect.name, value)
        store = partial(self._store.record_success, call, text, fault)
        self._keep(asyncio.ensure_future(self._store_outcome(store)))

    def _keep(self, task: asyncio.Future[T]) -> asyncio.Future[T]:
        """Keep a task until it ends."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _describe(self, error: BaseException) -> str:
        return describe(error, self._calls.secrets)


def _require_same_function(invocation: Invocation, call: EffectCall) -> None:
    """Raise PermanentError if the key belongs to a mark, or to another function."""
    wanted = invocation.effect.name
    if call.function != wanted:
        raise PermanentError(key_in_use(invocation.intent.key, call.function, wanted))


def _pending(invocation: Invocation, call: EffectCall) -> EffectPending:
    message = (
        f"{invocation.label}: an earlier call of {invocation.effect.name} may be under way until "
        "its deadline"
    )
    return EffectPending(message, seconds=call.seconds_left)


def _running(invocation: Invocation) -> EffectPending:
    message = (
        f"{invocation.label}: an earlier call of {invocation.effect.name} still runs in a thread "
        "of this process, after its deadline; give its client a timeout"
    )
    return EffectPending(message, seconds=invocation.intent.timeout_seconds)


def _unknown(
    invocation: Invocation, call: EffectCall, reason: str, *, is_final: bool = False
) -> EffectUnknown:
    """Return the error of a call whose outcome is unknown. `is_final`: its policy cannot help."""
    needs_operator = is_final or not invocation.effect.has_policy
    message = (
        f"{invocation.label}: nobody knows whether {invocation.effect.name} was applied: {reason}"
    )
    return EffectUnknown(message, effect=call.id, needs_operator=needs_operator)


def _urgency(error: Unresolved) -> int:
    if isinstance(error, EffectUnknown):
        return 2 if error.needs_operator else 1
    return 0
