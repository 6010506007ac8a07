"""From a request to a receipt: verify, identify, record."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from onceward.errors import ProofMissing, SignatureRejected, UnknownSource
from onceward.model.events import INGEST_SOURCE, Arrival
from onceward.receive.inline_request import InlineRequest
from onceward.receive.pending import Pending
from onceward.receive.recorder import Recorder
from onceward.receive.rejections import Rejections
from onceward.receive.untyped_bodies import UntypedBodies
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.sources.challenge import Reply
from onceward.sources.configure import ALWAYS_KEPT_HEADERS
from onceward.sources.envelope import identify_envelope
from onceward.sources.request import Headers, Request, header_key
from onceward.sources.source import (
    MAX_STORED_HEADER_BYTES,
    OMITTED_HEADERS,
    Source,
    encode_headers,
)

_log = logging.getLogger("onceward.receive")

_OMITTED: Final = f'"{OMITTED_HEADERS}"'.encode()
_INGEST_HEADERS: Final = tuple((name, header_key(name)) for name in ALWAYS_KEPT_HEADERS)


class Receiver:
    """Verifies complete requests and submits their events to the recorder."""

    def __init__(
        self,
        *,
        sources: Mapping[str, Source],
        recorder: Recorder,
        clock: Clock,
        failpoints: Failpoints,
        rejections: Rejections,
        untyped_bodies: UntypedBodies,
    ) -> None:
        self._sources = sources
        self._recorder = recorder
        self._rejections = rejections
        self._untyped_bodies = untyped_bodies
        self._clock = clock
        self._failpoints = failpoints
        self._omitting: set[str] = set()
        """The sources whose events lack a header."""

    @property
    def source_names(self) -> list[str]:
        """The names of the configured sources."""
        return list(self._sources)

    @property
    def provisioned_sources(self) -> list[str]:
        """The sources whose providers may provision a secret."""
        return [name for name, source in self._sources.items() if source.provisions_secret]

    def source(self, name: str) -> Source:
        """Return the source called `name`. Raises UnknownSource."""
        try:
            return self._sources[name]
        except KeyError:
            raise UnknownSource(name, self._sources) from None

    def require_proof(self, source: Source, headers: Headers) -> None:
        """Raise ProofMissing for a request that no body can prove, and count it."""
        missing = source.missing_proof(headers)
        if missing is not None:
            now = self._clock.now()
            self._rejections.count(source.name, missing.cause, missing.check, now)
            raise ProofMissing(missing.check, missing.cause)

    @property
    def inline_sources(self) -> list[str]:
        """The sources whose handlers run within the request."""
        return [name for name, source in self._sources.items() if source.is_inline]

    def receive(self, source: Source, request: Request) -> Pending | InlineRequest | Reply:
        """Verify and identify a webhook, and record it unless its handlers run within the request.

        Raises RequestRefused; the pending result may also fail with it.
        """
        now = self._clock.now()
        try:
            events = source.verify(request, now)
        except SignatureRejected as rejected:
            self._rejections.add(source, request, rejected, now)
            raise
        if isinstance(events, Reply):
            return events
        arrivals = source.arrivals(events, request.headers)
        if arrivals and _OMITTED in arrivals[0].headers:
            self._report_omitted(source.name, arrivals[0].headers)
        self._untyped_bodies.look_at(source, arrivals)
        self._failpoints.reach("receive.verified")
        return InlineRequest(arrivals) if source.is_inline else self._recorder.submit(arrivals)

    def _report_omitted(self, source: str, headers: bytes) -> None:
        """Log the first headers of a source that are too long to be stored."""
        if source in self._omitting:
            return
        self._omitting.add(source)
        names = msgspec.json.decode(headers)[OMITTED_HEADERS]
        message = "source %r: headers above %d bytes are not stored with its events: %s"
        fields = LogFields(source=source)
        _log.warning(message, source, MAX_STORED_HEADER_BYTES, names, extra=fields)

    def ingest(self, request: Request) -> Pending:
        """Identify and record an event posted to ``/events/ingest``. Raises RequestRefused."""
        identity = identify_envelope(request.body)
        body, headers = request.body, encode_headers(_INGEST_HEADERS, request.headers)
        arrival = Arrival(INGEST_SOURCE, *identity, hashlib.sha256(body).digest(), headers, body)
        self._failpoints.reach("receive.verified")
        return self._recorder.submit([arrival])
