"""The statuses of accepted webhooks: 202 recorded, 200 processed, or as a provider requires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onceward.http.receive_app import ACCEPTED, OK
from onceward.sources.source import Source

RECORDED: Final = (
    "Recorded, and not processed in this request: the delivery is durable, as a new event, a "
    "duplicate or a conflict."
)
_PROCESSED: Final = (
    "Processed: the handlers of the inline source ran, in this request or before, and everything "
    "is committed."
)


def success_statuses(sources: Mapping[str, Source]) -> list[tuple[int, bool]]:
    """Return each success status, and whether its body is a receipt.

    A status with both kinds of body comes twice, the receipt last: it is the one documented.
    """
    responses = [source.preset.success_response for source in sources.values()] or [ACCEPTED]
    if any(source.is_inline for source in sources.values()):
        responses.append(OK)
    return sorted(
        (reply, True) if isinstance(reply, int) else (reply.status, False)
        for reply in set(responses)
    )


def success_text(status: int, sources: Mapping[str, Source]) -> str:
    """Return what a success status means."""
    if status == ACCEPTED:
        return RECORDED
    names = [name for name, source in sorted(sources.items()) if status == _success_status(source)]
    inline = [source for source in sources.values() if source.is_inline]
    texts = [_PROCESSED] if status in map(_processed_status, inline) else []
    if names:
        texts.append(f"{RECORDED} The provider requires this status: {', '.join(names)}.")
    return " ".join(texts)


def _processed_status(source: Source) -> int:
    reply = source.preset.success_response
    return OK if isinstance(reply, int) else reply.status


def _success_status(source: Source) -> int:
    reply = source.preset.success_response
    return reply if isinstance(reply, int) else reply.status
