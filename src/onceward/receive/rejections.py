"""What is remembered of requests that did not verify: counted all, and noted in bounds.

Whoever sends garbage must not make the ledger work: what comes within a second is noted together,
and what does not fit is counted only.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected, StoreError
from onceward.model.admin import Rejection
from onceward.ports import RejectionStore
from onceward.runtime.redact import printable, redact
from onceward.sources.kept_request import pack
from onceward.sources.request import Request
from onceward.sources.source import Source

_log = logging.getLogger("onceward.rejections")

EVERY_SECONDS: Final = 1.0
REASONS_MOST: Final = 10
"""Different reasons that are noted of a source at one time; others are counted together."""
KEPT_MOST: Final = 10
"""Requests of a source that are kept at one time."""
KEPT_BYTES_MOST: Final = 4 * 1024 * 1024
"""How many bytes of bodies, of all sources, are kept at one time."""
BODY_BYTES_MOST: Final = 256 * 1024
"""Largest body that is kept."""
HEADER_BYTES_MOST: Final = 16 * 1024
OTHERS: Final = "for various reasons"

_Key = tuple[str, RejectionCause, str]


class Rejections:
    """Takes them as they come, and writes them from time to time."""

    def __init__(self, refusals: RejectionStore, *, keep: int) -> None:
        self._refusals = refusals
        self._keep = keep
        self._alike: dict[_Key, Rejection] = {}
        self._kept: list[Rejection] = []
        self._reasons: Counter[str] = Counter()
        self._kept_of: Counter[str] = Counter()
        self._kept_bytes = 0

    def add(self, source: Source, request: Request, why: SignatureRejected, now: float) -> None:
        """Remember one. It costs little, however many there are."""
        if source.keeps_rejected and self._has_room(source.name, request):
            self._keep_one(source, request, why, now)
        else:
            self._count((source.name, why.cause, printable(why.check)), now)

    def _has_room(self, source: str, request: Request) -> bool:
        is_left = self._kept_bytes + len(request.body) <= KEPT_BYTES_MOST
        return is_left and self._kept_of[source] < KEPT_MOST and _fits(request)

    def _keep_one(
        self, source: Source, request: Request, why: SignatureRejected, now: float
    ) -> None:
        kept = pack(request, keep_authorization=source.has_authorization_proof)
        check = printable(why.check)
        self._kept.append(Rejection(source.name, why.cause, check, now, now, 1, kept, request.body))
        self._kept_of[source.name] += 1
        self._kept_bytes += len(request.body)

    def _count(self, key: _Key, now: float) -> None:
        source, cause, _ = key
        if key not in self._alike and self._reasons[source] >= REASONS_MOST:
            key = source, cause, OTHERS
        elif key not in self._alike:
            self._reasons[source] += 1
        known = self._alike.get(key)
        first, count = (known.received_at, known.count) if known else (now, 0)
        self._alike[key] = Rejection(*key, first, now, count + 1)

    async def flush(self) -> None:
        """Write what was remembered. What cannot be written now is told, and forgotten."""
        noted = [*self._alike.values(), *self._kept]
        if not noted:
            return
        self._alike, self._kept = {}, []
        self._reasons, self._kept_of, self._kept_bytes = Counter(), Counter(), 0
        try:
            await self._refusals.add_rejections(noted, keep=self._keep)
        except StoreError as error:
            count = sum(rejection.count for rejection in noted)
            _log.warning("%d rejected requests are not noted: %s", count, redact(str(error)))


def _fits(request: Request) -> bool:
    size = sum(len(name) + len(value) for name, value in request.headers.pairs)
    return len(request.body) <= BODY_BYTES_MOST and size <= HEADER_BYTES_MOST
