"""From a request to a receipt: verify, identify, record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from onceward.clock import Clock
from onceward.errors import RequestRefused
from onceward.failpoints import Failpoints
from onceward.handshake import Reply
from onceward.identify import identify_envelope
from onceward.model import INGEST_SOURCE, Arrival
from onceward.record import Answer, Recorder
from onceward.request import Request
from onceward.sources import Admitted, Source

Received = tuple[Sequence[Arrival], Answer]

_INGEST_HEADERS: Final = (b"content-type", b"user-agent")


class Receiver:
    """Takes whole requests; what it answers for is durable."""

    def __init__(
        self,
        *,
        sources: Mapping[str, Source],
        recorder: Recorder,
        clock: Clock,
        failpoints: Failpoints,
    ) -> None:
        self._sources = sources
        self._recorder = recorder
        self._clock = clock
        self._failpoints = failpoints

    def source(self, name: str) -> Source:
        """The source of a name. Raises RequestRefused (404)."""
        try:
            return self._sources[name]
        except KeyError:
            message = "No source has this name."
            raise RequestRefused(404, "unknown_source", message) from None

    def receive(self, source: Source, request: Request) -> Received | Reply:
        """Verify, identify and record a webhook. Raises RequestRefused, and so does the answer."""
        admitted = source.admit(request, self._clock.now())
        if isinstance(admitted, Reply):
            return admitted
        return self._record(source.name, admitted, source.kept_headers(request.headers))

    def ingest(self, request: Request) -> Received:
        """Identify and record what one of the team's own applications sends."""
        identity = identify_envelope(request.body)
        kept = {
            name.decode(): value.decode("latin-1")
            for name in _INGEST_HEADERS
            if (value := request.headers.joined(name)) is not None
        }
        admitted = [(identity, request.body)]
        return self._record(INGEST_SOURCE, admitted, msgspec.json.encode(kept))

    def _record(self, source: str, admitted: Sequence[Admitted], headers: bytes) -> Received:
        self._failpoints.reach("receive.verified")
        arrivals = [
            Arrival(
                source=source,
                event_id=identity.event_id,
                type=identity.type,
                reference=identity.reference,
                body_sha256=hashlib.sha256(body).digest(),
                headers=headers,
                body=body,
            )
            for identity, body in admitted
        ]
        return arrivals, self._recorder.submit(arrivals)
