"""Requests that did not verify: all are counted, a few are kept.

A flood of forged requests must not load the ledger: rejections are written once a second, and
those beyond the limits are only counted.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected, StoreError
from onceward.model.admin import Rejection
from onceward.ports import RejectionStore
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable, redact
from onceward.sources.kept_request import pack
from onceward.sources.request import Request
from onceward.sources.source import Source

_log = logging.getLogger("onceward.rejections")

FLUSH_INTERVAL_SECONDS: Final = 1.0
MAX_REASONS_PER_SOURCE: Final = 10
"""Distinct reasons listed per source and flush; further ones are counted together."""
MAX_KEPT_PER_SOURCE: Final = 10
"""Requests kept per source and flush."""
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of bodies kept per flush, over all sources."""
MAX_KEPT_BODY_BYTES: Final = 256 * 1024
"""The largest body that is kept."""
MAX_KEPT_HEADER_BYTES: Final = 16 * 1024
OTHER_REASONS: Final = "other reasons"

_Key = tuple[str, RejectionCause, str]


class Rejections:
    """Collects rejections and writes them in batches."""

    def __init__(self, store: RejectionStore, *, keep: int) -> None:
        self._store = store
        self._keep = keep
        self._counted: dict[_Key, Rejection] = {}
        self._kept: list[Rejection] = []
        self._reasons: Counter[str] = Counter()
        self._kept_per_source: Counter[str] = Counter()
        self._kept_bytes = 0

    def add(self, source: Source, request: Request, error: SignatureRejected, now: float) -> None:
        """Keep the request if its source asks for it and the limits allow; else only count it."""
        if source.keeps_rejected and self._has_room(source.name, request):
            self._keep_request(source, request, error, now)
        else:
            self.count(source.name, error.cause, error.check, now)

    def count(self, source: str, cause: RejectionCause, check: str, now: float) -> None:
        """Count a request without keeping it."""
        self._count((source, cause, printable(check)), now)

    def _has_room(self, source: str, request: Request) -> bool:
        has_bytes_left = self._kept_bytes + len(request.body) <= MAX_KEPT_BYTES
        return (
            has_bytes_left
            and self._kept_per_source[source] < MAX_KEPT_PER_SOURCE
            and _fits(request)
        )

    def _keep_request(
        self, source: Source, request: Request, error: SignatureRejected, now: float
    ) -> None:
        packed = pack(request, keep_authorization=source.has_authorization_proof)
        check = printable(error.check)
        self._kept.append(
            Rejection(source.name, error.cause, check, now, now, 1, packed, request.body)
        )
        self._kept_per_source[source.name] += 1
        self._kept_bytes += len(request.body)

    def _count(self, key: _Key, now: float) -> None:
        source, cause, _ = key
        if key not in self._counted and self._reasons[source] >= MAX_REASONS_PER_SOURCE:
            key = source, cause, OTHER_REASONS
        elif key not in self._counted:
            self._reasons[source] += 1
        entry = self._counted.get(key)
        first, count = (entry.received_at, entry.count) if entry else (now, 0)
        self._counted[key] = Rejection(*key, first, now, count + 1)

    async def flush(self) -> None:
        """Write the collected rejections. A batch that cannot be written is logged and dropped."""
        batch = [*self._counted.values(), *self._kept]
        if not batch:
            return
        self._counted, self._kept = {}, []
        self._reasons, self._kept_per_source, self._kept_bytes = Counter(), Counter(), 0
        try:
            await self._store.add_rejections(batch, keep=self._keep)
        except StoreError as error:
            count = sum(rejection.count for rejection in batch)
            reason = redact(str(error))
            fields = LogFields(count=count, error=reason)
            message = "%d rejections dropped; ledger unavailable: %s"
            _log.warning(message, count, reason, extra=fields)


def _fits(request: Request) -> bool:
    size = sum(len(name) + len(value) for name, value in request.headers.pairs)
    return len(request.body) <= MAX_KEPT_BODY_BYTES and size <= MAX_KEPT_HEADER_BYTES
