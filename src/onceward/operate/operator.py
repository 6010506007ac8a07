"""What operators do: look, requeue, verify again, accept; each act with its audit entry."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from onceward.errors import NotFound, NotInState, RequestRefused, SignatureRejected
from onceward.model.admin import Conflict, ManualRecording, OperatorAction, RejectionCount, Requeued
from onceward.model.events import (
    ID_LIMIT_BYTES,
    INGEST_SOURCE,
    Arrival,
    Identity,
    Outcome,
)
from onceward.model.jobs import REQUEUEABLE
from onceward.operate.filters import page_query, parse_id
from onceward.ports import AdminStore
from onceward.sources.challenge import Reply
from onceward.sources.envelope import identify_envelope
from onceward.sources.kept_request import unpack
from onceward.sources.request import Request
from onceward.sources.source import Source

CONFLICT_DIGITS: Final = 16
"""How much of a hash an accepted conflict has in its id."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, newest first. `next` is the `after` of the part that follows."""

    items: list[Any]
    limit: int
    next: str | None


@dataclass(frozen=True, slots=True)
class RejectionsPage(Page):
    """A part of the rejections, with the counts of all there ever were."""

    counts: list[RejectionCount]


class Operator:
    """Looks and acts for a person."""

    def __init__(self, desk: AdminStore, sources: Mapping[str, Source]) -> None:
        self._desk = desk
        self._sources = sources

    async def page(self, kind: str, parameters: Mapping[str, str]) -> Page:
        """A part of a list. Raises InvalidFilter."""
        query = page_query(kind, parameters)
        items: list[Any] = await getattr(self._desk, kind)(query)
        more = len(items) == query.limit
        following = items[-1].id if items and more else None
        if kind == "rejections":
            counts = await self._desk.rejection_counts()
            return RejectionsPage(items, query.limit, following, counts)
        return Page(items, query.limit, following)

    async def verify_again(self, rejection: str, act: OperatorAction) -> ManualRecording:
        """Verify a kept request with the secrets of now, and record it as it came then.

        Raises NotFound, and NotInState where it is not kept, was received, or does not verify.
        """
        number = parse_id(rejection)
        found = await self._desk.rejection(number) if number is not None else None
        if number is None or found is None:
            raise NotFound(f"There is no rejection {rejection[:40]}.")
        if found.received_as is not None:
            raise NotInState(f"Rejection {rejection} was received as event {found.received_as}.")
        if found.request is None or found.body is None:
            message = f"Of rejection {rejection} nothing is kept; see the source's keep_rejected."
            raise NotInState(message)
        source = self._sources.get(found.source)
        if source is None:
            raise NotInState(f"There is no source {found.source} any more.")
        request = unpack(found.request, found.body)
        arrivals = _admitted(source, request, found.received_at.timestamp())
        return await self._desk.receive_rejection(number, arrivals, act)

    async def accept_conflict(self, delivery: str, act: OperatorAction) -> ManualRecording:
        """Record a conflict as an event of its own. Raises NotFound or NotInState."""
        number = parse_id(delivery)
        found = await self._desk.conflict(number) if number is not None else None
        if number is None or found is None:
            raise NotFound(f"There is no redelivery {delivery[:40]}.")
        if found.outcome is not Outcome.CONFLICT:
            message = f"Delivery {delivery} is a {found.outcome}; only a conflict can be accepted."
            raise NotInState(message)
        if found.accepted_as is not None:
            raise NotInState(f"Delivery {delivery} was accepted as event {found.accepted_as}.")
        if found.body is None:
            raise NotInState(f"The body of delivery {delivery} is no longer kept.")
        arrival = _own_event(found, found.body, self._identity(found, found.body))
        return await self._desk.accept_conflict(number, arrival, act)

    def _identity(self, conflict: Conflict, body: bytes) -> Identity:
        """What the body of a conflict is about, as far as it says so itself."""
        known = Identity(conflict.event_id, conflict.type, conflict.reference)
        if conflict.source == INGEST_SOURCE:
            return identify_envelope(body)
        if conflict.source not in self._sources:
            raise NotInState(f"There is no source {conflict.source} any more.")
        return self._sources[conflict.source].reidentify(body, known)

    async def requeue(self, job: str, act: OperatorAction) -> Requeued:
        """Queue a failed or cancelled job again. Raises NotFound or NotInState."""
        number = parse_id(job)
        requeued = await self._desk.requeue(number, act) if number is not None else None
        if requeued is not None:
            return requeued
        status = await self._desk.job_status(number) if number is not None else None
        if status is None:
            message = f"There is no job {job[:40]}."
            raise NotFound(message)
        message = f"Job {job} is {status}; only {' or '.join(sorted(REQUEUEABLE))} can be requeued."
        raise NotInState(message)


def _admitted(source: Source, request: Request, now: float) -> list[Arrival]:
    """What a request brings that was rejected at `now`. Raises NotInState."""
    try:
        admitted = source.verify(request, now)
    except SignatureRejected as rejected:
        raise NotInState(f"It does not verify: {rejected.check}.") from None
    except RequestRefused as refused:
        raise NotInState(f"It verifies, and has no usable id: {refused.message}.") from None
    if isinstance(admitted, Reply):
        raise NotInState("It asks for an answer and tells of nothing.")
    return source.arrivals(admitted, request.headers)


def _own_event(conflict: Conflict, body: bytes, identity: Identity) -> Arrival:
    """The event that a conflict becomes: under the id of the other one, and a hash."""
    event_id = conflict.event_id.encode()
    digest = hashlib.sha256(event_id + b"#" + conflict.body_sha256).hexdigest()
    suffix = f"#{digest[:CONFLICT_DIGITS]}"
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
