"""Lists and actions for operators. Each action is audited."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn

from msgspec.structs import replace

from onceward.errors import NotFound, NotInState, RequestRefused, SignatureRejected, StoreError
from onceward.model.admin import (
    Cancelled,
    Dismissed,
    ForgottenWatermark,
    JobDetail,
    ManualRecording,
    OperatorAction,
    Pausable,
    PauseChange,
    RejectionCount,
    Requeued,
    ResolvedEffect,
    RoutedEvent,
    StoredDelivery,
    StoredRejection,
)
from onceward.model.effects import Resolution
from onceward.model.events import (
    ID_LIMIT_BYTES,
    INGEST_SOURCE,
    Arrival,
    Identity,
    Outcome,
    SourceMode,
    invalid_text_reason,
    storable_key,
)
from onceward.model.jobs import REQUEUEABLE
from onceward.model.workers import LiveWorker
from onceward.operate.filters import page_query, parse_id
from onceward.operate.pause_watch import NO_INLINE, InlineNames
from onceward.ports import AdminStore
from onceward.runtime.redact import printable
from onceward.sources.challenge import Reply
from onceward.sources.envelope import identify_envelope
from onceward.sources.kept_request import unpack
from onceward.sources.request import Request
from onceward.sources.source import Source

MAX_ATTEMPTS_SHOWN: Final = 100
"""The failed attempts that a job is shown with, newest first."""
CONFLICT_ID_DIGITS: Final = 16
"""The number of hex digits of a hash that end the id of an accepted conflict."""
LiveWorkers = Callable[[], Awaitable[Sequence[LiveWorker]]]
"""Returns the workers whose last heartbeat is recent."""
_REQUEUEABLE: Final = ", ".join(sorted(REQUEUEABLE))


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list, newest first. `next` is the `after` of the following page."""

    items: list[Any]
    limit: int
    next: str | None


@dataclass(frozen=True, slots=True)
class RejectionListPage(ListPage):
    """One page of the rejections, with the counts and times of all rejections so far."""

    counts: list[RejectionCount]


class Operator:
    """Lists and actions for operators."""

    def __init__(
        self,
        store: AdminStore,
        sources: Mapping[str, Source],
        inline: InlineNames = NO_INLINE,
        *,
        live_workers: LiveWorkers | None = None,
        forwards: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._forwards = forwards
        self._live_workers = live_workers
        self._store = store
        self._inline = inline
        self._sources = sources

    async def page(self, kind: str, parameters: Mapping[str, str]) -> ListPage:
        """Return one page of the list `kind`. Raises InvalidFilter."""
        query = page_query(kind, parameters)
        items: list[Any] = await getattr(self._store, kind)(query)
        if kind == "sources":
            items = [replace(item, mode=self._mode(item.name)) for item in items]
        if kind == "handlers":
            items = [replace(item, forwards_to=self._forwards.get(item.name)) for item in items]
        following = items[-1].id if len(items) == query.limit else None
        if kind == "rejections":
            counts = await self._store.rejection_counts()
            return RejectionListPage(items, query.limit, following, counts)
        return ListPage(items, query.limit, following)

    def _mode(self, name: str) -> SourceMode | None:
        """Return where the handlers of a source run; None if this process does not define it."""
        if name == INGEST_SOURCE:
            return "background"
        source = self._sources.get(name)
        return None if source is None else source.mode

    async def job(self, job: str) -> JobDetail:
        """Return a job with its newest failed attempts. Raises NotFound."""
        detail = await self._store.job(_parse_id("job", job), attempts=MAX_ATTEMPTS_SHOWN)
        if detail is None:
            raise _not_found("job", job)
        return detail

    async def requeue(
        self, job: str, action: OperatorAction, *, even_if_stale: bool = False
    ) -> Requeued:
        """Queue a job that failed, was ignored or was cancelled again.

        Raises NotFound, and NotInState if the job is in another state or its payload is gone.
        """
        job_id = _parse_id("job", job)
        requeued = await self._store.requeue(job_id, action, even_if_stale=even_if_stale)
        if requeued is not None:
            return replace(requeued, note=await self._worker_note(job_id))
        status = await self._store.job_status(job_id)
        if status is None:
            raise _not_found("job", job)
        message = f"Job {job} is {status}; only {_REQUEUEABLE} jobs can be requeued."
        raise NotInState(message)

    async def _worker_note(self, job: int) -> str | None:
        """Return that no worker runs the handler of a job that was queued, if so."""
        if self._live_workers is None:
            return None
        try:
            detail = await self._store.job(job, attempts=0)
            live = await self._live_workers()
        except StoreError:  # the requeue is committed
            return None
        if detail is None or any(detail.handler in worker.handlers for worker in live):
            return None
        return (
            f"No live worker runs handler {detail.handler!r}: the job waits until one is started. "
            "A redelivery does not run a queued job."
        )

    async def cancel(self, job: str, action: OperatorAction) -> Cancelled:
        """Cancel a job that has not ended. Raises NotFound or NotInState."""
        cancelled = await self._store.cancel(_parse_id("job", job), action)
        if cancelled is None:
            raise _not_found("job", job)
        return cancelled

    async def route(self, event: str, handler: str, action: OperatorAction) -> RoutedEvent:
        """Create the job of an event for a handler that has none. Raises NotFound or NotInState."""
        event_id = _parse_id("event", event)
        _require_name(Pausable.HANDLER, handler)
        routed = await self._store.route_event(event_id, handler, action)
        if routed is None:
            raise _not_found("event", event)
        return replace(routed, note=await self._worker_note(int(routed.job)))

    async def dismiss(self, event: str, action: OperatorAction) -> Dismissed:
        """End the review of an event as ignored. Raises NotFound or NotInState."""
        dismissed = await self._store.dismiss(_parse_id("event", event), action)
        if dismissed is None:
            raise _not_found("event", event)
        return dismissed

    async def resolve(
        self, effect: str, resolution: Resolution, action: OperatorAction
    ) -> ResolvedEffect:
        """Store whether an effect happened, and queue the jobs that wait for it.

        Raises NotFound or NotInState.
        """
        resolved = await self._store.resolve_effect(_parse_id("effect", effect), resolution, action)
        if resolved is None:
            raise _not_found("effect", effect)
        return resolved

    async def forget_watermark(
        self, handler: str, key: str, action: OperatorAction
    ) -> ForgottenWatermark:
        """Delete the newest version that a handler applied for a key. Raises NotFound."""
        stored = storable_key(key)
        forgotten = None
        if not invalid_text_reason(handler):
            forgotten = await self._store.forget_watermark(handler, stored, action)
        if forgotten is None:
            raise NotFound(
                f"Handler {printable(handler[:40])} has no watermark for the key "
                f"{printable(key[:40])}. GET /admin/watermarks?handler=… lists them."
            )
        return forgotten

    async def pause(self, kind: Pausable, name: str, action: OperatorAction) -> PauseChange:
        """Let the jobs of a handler or source wait; senders to an inline source retry.

        Raises NotFound or NotInState.
        """
        _require_name(kind, name)
        change = await self._store.pause(kind, name, action)
        if change is None:
            _raise_unknown_name(kind, name)
        return replace(change, note=self._inline.note(kind, name))

    async def resume(self, kind: Pausable, name: str, action: OperatorAction) -> PauseChange:
        """Let the jobs of a handler or source run again. Raises NotFound or NotInState."""
        _require_name(kind, name)
        change = await self._store.resume(kind, name, action)
        return change or _raise_unknown_name(kind, name)

    async def verify_again(self, rejection: str, action: OperatorAction) -> ManualRecording:
        """Verify a kept request with the current secrets, and record its events.

        Timestamps are checked as of the request's arrival. Raises NotFound, and NotInState if the
        request is not kept, was received before, or still does not verify.
        """
        rejection_id = _parse_id("rejection", rejection)
        kept = await self._store.rejection(rejection_id)
        if kept is None:
            raise _not_found("rejection", rejection)
        request = _kept_request(rejection, kept)
        source = self._source(kept.source)
        arrivals = _verified_arrivals(source, request, kept.received_at.timestamp())
        return await self._store.receive_rejection(rejection_id, arrivals, action)

    async def accept_conflict(self, delivery: str, action: OperatorAction) -> ManualRecording:
        """Record a conflict as an event of its own. Raises NotFound or NotInState."""
        delivery_id = _parse_id("redelivery", delivery)
        conflict = await self._store.conflict(delivery_id)
        if conflict is None:
            raise _not_found("redelivery", delivery)
        body = _conflicting_body(delivery, conflict)
        arrival = _separate_event(conflict, body, self._identity(conflict, body))
        if (source := self._sources.get(conflict.source)) is not None:
            arrival = arrival._replace(reviewed=source.reviews_unknown)
        return await self._store.accept_conflict(delivery_id, arrival, action)

    def _identity(self, conflict: StoredDelivery, body: bytes) -> Identity:
        """Return the identity in a conflicting body; what headers identify stays as it was."""
        if conflict.source == INGEST_SOURCE:
            return identify_envelope(body)
        original = Identity(conflict.event_id, conflict.type, conflict.reference)
        return self._source(conflict.source).reidentify(body, original)

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            raise NotInState(f"Source {name} is no longer configured. Add it and try again.")
        return self._sources[name]


def _parse_id(kind: str, text: str) -> int:
    number = parse_id(text)
    if number is None:
        raise _not_found(kind, text)
    return number


def _not_found(kind: str, text: str) -> NotFound:
    return NotFound(f"There is no {kind} {text[:40]}. Check the id in its list.")


def _require_name(kind: Pausable, name: str) -> None:
    """Raise NotFound for a text that no handler or source can have as its name."""
    if invalid_text_reason(name):
        _raise_unknown_name(kind, name)


def _raise_unknown_name(kind: Pausable, name: str) -> NoReturn:
    raise NotFound(f"There is no {kind} {printable(name[:40])}. GET /admin/{kind}s lists them.")


def _kept_request(rejection: str, kept: StoredRejection) -> Request:
    """Return the request of a rejection. Raises NotInState if it is received or not kept."""
    if kept.received_as is not None:
        raise NotInState(f"Rejection {rejection} is already received as event {kept.received_as}.")
    if kept.request is None or kept.body is None:
        message = (
            f"The request of rejection {rejection} was not kept. "
            "Set keep_rejected=True on the source to keep the next ones."
        )
        raise NotInState(message)
    return unpack(kept.request, kept.body)


def _verified_arrivals(source: Source, request: Request, now: float) -> list[Arrival]:
    """Return the events of a request, verified as of `now`. Raises NotInState."""
    try:
        admitted = source.verify(request, now)
    except SignatureRejected as rejected:
        raise NotInState(
            f"The request does not verify: {rejected.check}. Correct the source."
        ) from None
    except RequestRefused as refused:
        reason = refused.message.removesuffix(".")
        raise NotInState(f"The request cannot be recorded: {reason}. Correct the source.") from None
    if isinstance(admitted, Reply):
        raise NotInState("The request is a challenge without events. Nothing is left to record.")
    return source.arrivals(admitted, request.headers)


def _conflicting_body(delivery: str, conflict: StoredDelivery) -> bytes:
    """Return the body of a conflict. Raises NotInState if it cannot be accepted."""
    if conflict.outcome is not Outcome.CONFLICT:
        message = f"Delivery {delivery} is a {conflict.outcome}; only a conflict can be accepted."
        raise NotInState(message)
    if conflict.accepted_as is not None:
        raise NotInState(
            f"Delivery {delivery} is already accepted as event {conflict.accepted_as}."
        )
    if conflict.body is None:
        raise NotInState(f"The body of delivery {delivery} is purged. Ask for a resend.")
    return conflict.body


def _separate_event(conflict: StoredDelivery, body: bytes, identity: Identity) -> Arrival:
    """Return the event that a conflict becomes. Its id is the original id and a hash."""
    event_id = conflict.event_id.encode()
    digest = hashlib.sha256(event_id + b"#" + conflict.body_sha256).hexdigest()
    suffix = f"#{digest[:CONFLICT_ID_DIGITS]}"
    head = event_id[: ID_LIMIT_BYTES - len(suffix)].decode(errors="ignore")
    return Arrival(
        source=conflict.source,
        event_id=head + suffix,
        type=identity.type,
        reference=identity.reference,
        body_sha256=conflict.body_sha256,
        headers=conflict.headers or b"{}",
        body=body,
    )
