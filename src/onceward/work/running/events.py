"""The events of jobs, and the arguments of handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from onceward.model.events import INGEST_SOURCE, Event
from onceward.model.jobs import Job
from onceward.work.definition.arguments import Attempt, Build
from onceward.work.definition.handlers import Handler
from onceward.work.payloads.decoders.decoder import Decoder
from onceward.work.payloads.decoders.msgspec_decoder import UNCHECKED
from onceward.work.payloads.payload import decode, decode_headers


def make_event(job: Job, body: bytes, handler: Handler) -> Event[Any]:
    """Build the event. Raise PermanentError if the payload does not fit the handler."""
    event = _build(job, body, handler.decoder)
    if handler.requires_payload:
        event.payload  # noqa: B018 - validates before the handler starts
    return event


def make_failed_event(job: Job, body: bytes | None, handler: Handler) -> Event[Any]:
    """Build the event of a job that failed. Its payload is decoded as far as it can be.

    That is without the model if the payload does not fit, and None if the body cannot be decoded
    or is no longer stored.
    """

    def decode_any() -> Any:
        for decoder in (handler.decoder, UNCHECKED):
            with suppress(Exception):  # a model may be user code
                return _build(job, body or b"", decoder).payload
        return None

    return _build(job, body or b"", UNCHECKED, decode_any)


def make_arguments(arguments: Sequence[tuple[str, Build]], attempt: Attempt) -> Mapping[str, Any]:
    """Build the arguments of one call."""
    return {name: build(attempt) for name, build in arguments}


def _build(
    job: Job, body: bytes, decoder: Decoder, decode_body: Callable[[], Any] | None = None
) -> Event[Any]:
    headers = decode_headers(job.headers)
    return Event(
        id=job.event_id,
        source=job.source,
        type=job.type,
        reference=job.reference,
        received_at=job.received_at,
        body=body,
        headers=MappingProxyType(headers),
        _decode=decode_body
        or partial(
            decode,
            body,
            decoder,
            enveloped=job.source == INGEST_SOURCE,
            content_type=headers.get("content-type", ""),
        ),
    )
