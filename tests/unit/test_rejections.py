"""All rejected requests are counted, some are kept, and credentials never are."""

from collections.abc import Sequence
from typing import Any

from onceward.errors import RejectionCause, SignatureRejected, StoreUnavailable
from onceward.model.admin import Rejection
from onceward.receive.rejections import MAX_KEPT_BODY_BYTES, Rejections
from onceward.sources.configure import make_source
from onceward.sources.kept_request import unpack
from onceward.sources.request import Headers, Request
from onceward.sources.source import Source

HEADERS = [
    (b"host", b"shop.example"),
    (b"x-signature", b"00"),
    (b"x-signature", b"11"),
    (b"cookie", b"session=1"),
    (b"authorization", b"Bearer a-token"),
    (b"proxy-authorization", b"Basic eA=="),
]


class FakeStore:
    """Collects the rejections that are written."""

    def __init__(self, *, is_down: bool = False) -> None:
        self.rejections: list[Rejection] = []
        self.is_down = is_down

    async def add_rejections(self, rejections: Sequence[Rejection], *, keep: int) -> None:
        assert keep == 7
        if self.is_down:
            raise StoreUnavailable("connection refused")
        self.rejections += rejections


def source(**options: Any) -> Source:
    defaults: Any = {"preset": "hmac", "secrets": ["partner-secret"], "keep_rejected": True}
    return make_source("partner", **defaults | options)


def request(body: bytes = b"{}") -> Request:
    return Request(Headers(HEADERS), body, url="https://shop.example/webhooks/partner")


def error(check: str = "no signature matched") -> SignatureRejected:
    return SignatureRejected(check, RejectionCause.MISMATCH)


async def test_a_kept_request_loses_only_its_credentials() -> None:
    store = FakeStore()
    rejections = Rejections(store, keep=7)
    rejections.add(source(), request(), error(), 5.0)
    await rejections.flush()
    (kept,) = store.rejections
    assert kept.request is not None
    assert kept.body is not None
    unpacked = unpack(kept.request, kept.body)
    assert unpacked.headers.pairs == tuple(HEADERS[:3])
    assert (unpacked.body, unpacked.url, unpacked.method) == (b"{}", request().url, "POST")


async def test_the_verify_token_of_a_source_is_not_kept() -> None:
    store = FakeStore()
    rejections = Rejections(store, keep=7)
    url = "/webhooks/asana?a=1&verify_token=a-token&verify%5Ftoken=a-token&hub.verify_token=a&b"
    sent = Request(Headers([*HEADERS, (b"x-hook-secret", b"a-token-2")]), b"{}", url=url)
    rejections.add(source(preset="asana", verify_token="a-token-1"), sent, error(), 5.0)
    await rejections.flush()
    (kept,) = store.rejections
    assert b"a-token" not in (kept.request or b"")
    assert unpack(kept.request or b"", b"").url == "/webhooks/asana?a=1&b"


async def test_a_token_is_kept_if_it_is_the_proof() -> None:
    store = FakeStore()
    rejections = Rejections(store, keep=7)
    rejections.add(source(preset="cloudevents"), request(), error(), 5.0)
    await rejections.flush()
    unpacked = unpack(store.rejections[0].request or b"", b"")
    assert dict(unpacked.headers.pairs).keys() == {b"host", b"x-signature", b"authorization"}


async def test_a_flood_is_counted_completely_in_few_rows() -> None:
    store = FakeStore()
    rejections = Rejections(store, keep=7)
    for number in range(5000):
        rejections.add(source(), request(), error(f"timestamp {number} s off"), float(number))
    await rejections.flush()
    kept = [rejection for rejection in store.rejections if rejection.body is not None]
    counted = [rejection for rejection in store.rejections if rejection.body is None]
    assert (len(kept), len(counted)) == (10, 11)
    assert sum(rejection.count for rejection in store.rejections) == 5000
    assert max(rejection.last_at for rejection in counted) == 4999.0


async def test_a_large_body_is_not_kept() -> None:
    store = FakeStore()
    rejections = Rejections(store, keep=7)
    rejections.add(source(), request(b"x" * (MAX_KEPT_BODY_BYTES + 1)), error(), 5.0)
    await rejections.flush()
    assert store.rejections[0].body is None


async def test_a_batch_is_dropped_while_the_store_is_down() -> None:
    store = FakeStore(is_down=True)
    rejections = Rejections(store, keep=7)
    rejections.add(source(), request(), error(), 5.0)
    await rejections.flush()
    store.is_down = False
    await rejections.flush()
    assert store.rejections == []
