"""What is remembered of a request that did not verify, and what never is."""

from collections.abc import Sequence
from typing import Any

from onceward.errors import RejectionCause, SignatureRejected, StoreUnavailable
from onceward.model.admin import Rejection
from onceward.receive.rejections import MAX_KEPT_BODY_BYTES, Rejections
from onceward.sources.configure import make_source
from onceward.sources.kept_request import unpack
from onceward.sources.request import Headers, Request
from onceward.sources.source import Source

SENT = [
    (b"host", b"shop.example"),
    (b"x-signature", b"00"),
    (b"x-signature", b"11"),
    (b"cookie", b"session=1"),
    (b"authorization", b"Bearer a-token"),
    (b"proxy-authorization", b"Basic eA=="),
]


class Noted:
    """Where rejections end up."""

    def __init__(self, *, is_away: bool = False) -> None:
        self.rejections: list[Rejection] = []
        self.is_away = is_away

    async def add_rejections(self, rejections: Sequence[Rejection], *, keep: int) -> None:
        assert keep == 7
        if self.is_away:
            raise StoreUnavailable("it is away")
        self.rejections += rejections


def source(**options: Any) -> Source:
    return make_source("partner", secrets=["a-secret-of-ours"], keep_rejected=True, **options)


def request(body: bytes = b"{}") -> Request:
    return Request(Headers(SENT), body, url="https://shop.example/webhooks/partner")


def why(check: str = "no signature matched") -> SignatureRejected:
    return SignatureRejected(check, RejectionCause.MISMATCH)


async def test_a_kept_request_comes_back_as_it_was_but_for_credentials() -> None:
    noted = Noted()
    rejections = Rejections(noted, keep=7)
    rejections.add(source(), request(), why(), 5.0)
    await rejections.flush()
    (kept,) = noted.rejections
    assert kept.request is not None
    assert kept.body is not None
    again = unpack(kept.request, kept.body)
    assert again.headers.pairs == tuple(SENT[:3])
    assert (again.body, again.url, again.method) == (b"{}", request().url, "POST")


async def test_a_token_is_kept_where_it_is_the_proof() -> None:
    noted = Noted()
    rejections = Rejections(noted, keep=7)
    rejections.add(source(preset="cloudevents"), request(), why(), 5.0)
    await rejections.flush()
    again = unpack(noted.rejections[0].request or b"", b"")
    assert dict(again.headers.pairs).keys() == {b"host", b"x-signature", b"authorization"}


async def test_however_many_there_are_a_few_are_noted_and_all_are_counted() -> None:
    noted = Noted()
    rejections = Rejections(noted, keep=7)
    for number in range(5000):
        rejections.add(source(), request(), why(f"timestamp {number} s off"), float(number))
    await rejections.flush()
    kept = [it for it in noted.rejections if it.body is not None]
    alike = [it for it in noted.rejections if it.body is None]
    assert (len(kept), len(alike)) == (10, 11)
    assert sum(it.count for it in noted.rejections) == 5000
    assert max(it.last_at for it in alike) == 4999.0


async def test_a_large_body_is_not_kept() -> None:
    noted = Noted()
    rejections = Rejections(noted, keep=7)
    rejections.add(source(), request(b"x" * (MAX_KEPT_BODY_BYTES + 1)), why(), 5.0)
    await rejections.flush()
    assert noted.rejections[0].body is None


async def test_a_ledger_that_is_away_loses_the_note_and_nothing_else() -> None:
    noted = Noted(is_away=True)
    rejections = Rejections(noted, keep=7)
    rejections.add(source(), request(), why(), 5.0)
    await rejections.flush()
    noted.is_away = False
    await rejections.flush()
    assert noted.rejections == []
