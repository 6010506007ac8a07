"""Hook Mesh signs a body with or without an id and a time before it, with one secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.presets.vendor_schemes.base import require_header
from onceward.sources.request import Request
from onceward.sources.schemes import Hmac, Key, Signature


class HookMeshV1(Signature):
    """A signature over the id, the time and the body, as Standard Webhooks has it.

    A signed body with a time in some text could be cut there: its beginning is not an id.
    """

    __slots__ = ()

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time. Raises SignatureRejected, also for a body without an id."""
        signed_at = super().verify(keys, request, now)
        if require_header(request, "webhook-id").startswith(b"{"):
            raise SignatureRejected(
                "webhook-id is the beginning of a JSON body", RejectionCause.MALFORMED
            )
        return signed_at


HOOK_MESH_V1: Final = HookMeshV1(
    at="header:webhook-signature",
    separator=" ",
    prefix="v1,",
    encoding="base64",
    timestamp="header:webhook-timestamp",
    content="{header:webhook-id}.{timestamp}.{body}",
    algorithm=Hmac(),
    tolerance_seconds=300,
)
