"""The requests that are sent: prepared and signed before any clock starts.

All requests of a file have the same length, so that a sender finds each one by its number.
"""

import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SECRET = "a-secret-that-every-contender-shares"  # noqa: S105 - guards nothing
PATH = "/webhooks/bench"
SIGNATURE_HEADER = "x-signature"
EVENT_TYPE = "payment.made"
BODY_BYTES = 600
ACCOUNTS = 1_000

_FILLER = (
    "A payment of one unit was made to the account above. Real events also carry nested objects, "
    "addresses, links and metadata that no handler reads, and this text stands in for them. "
)


@dataclass(frozen=True)
class Deliveries:
    """A file of requests, and the ids of their events."""

    file: Path
    ids: Sequence[str]
    request_bytes: int


def random_id(generator: random.Random) -> str:
    """Return an id without order, like those of most providers."""
    return f"evt_{generator.getrandbits(128):032x}"


def ordered_id(number: int) -> str:
    """Return an id that sorts after the ids of smaller numbers."""
    return f"evt_{number:032x}"


def random_ids(count: int, seed: int) -> list[str]:
    """Return ids without order, the same for the same seed."""
    generator = random.Random(seed)  # noqa: S311 - repeatable, not secret
    return [random_id(generator) for _ in range(count)]


def ordered_ids(count: int, first: int) -> list[str]:
    """Return ids in ascending order."""
    return [ordered_id(number) for number in range(first, first + count)]


def make_body(event_id: str, number: int) -> bytes:
    """Return a JSON document of exactly BODY_BYTES."""
    event = {
        "id": event_id,
        "type": EVENT_TYPE,
        "account": number % ACCOUNTS,
        "amount": 1,
        "created": 1_700_000_000 + number,
        "text": "",
    }
    missing = BODY_BYTES - len(json.dumps(event))
    event["text"] = (_FILLER * (missing // len(_FILLER) + 1))[:missing]
    return json.dumps(event).encode()


def sign(body: bytes) -> str:
    """Return the signature that every contender verifies."""
    return hmac.digest(SECRET.encode(), body, hashlib.sha256).hex()


def is_authentic(body: bytes, signature: str | None) -> bool:
    """Return whether a signature is valid, as a careful engineer checks it."""
    if signature is None or not signature.isascii():
        return False
    return hmac.compare_digest(sign(body), signature)


def make_request(body: bytes) -> bytes:
    """Return a whole HTTP request."""
    head = (
        f"POST {PATH} HTTP/1.1\r\n"
        "host: 127.0.0.1\r\n"
        "content-type: application/json\r\n"
        f"{SIGNATURE_HEADER}: {sign(body)}\r\n"
        f"content-length: {len(body)}\r\n"
        "\r\n"
    )
    return head.encode() + body


def prepare(file: Path, ids: Sequence[str]) -> Deliveries:
    """Write one request for each id."""
    length = len(make_request(make_body(ids[0], 0)))
    with file.open("wb") as out:
        for number, event_id in enumerate(ids):
            request = make_request(make_body(event_id, number))
            assert len(request) == length, "all requests of a file have the same length"
            out.write(request)
    return Deliveries(file, ids, length)


# The order in which the requests of a file are sent.

UNIQUE, HALF_DUPLICATES, ONE_ID = "unique ids", "half duplicates", "one id"
STORM = "storm"
DUPLICATES_DISTANCE = 66
"""Events before the duplicate of one: more than the 64 requests that are in flight at once."""
STORM_GROUP = 400
"""As above, for 256 requests in flight."""
STORM_DELIVERIES = 8


def _unique(count: int) -> Iterator[int]:
    return iter(range(count))


def _half_duplicates(count: int) -> Iterator[int]:
    """Follow each new event, but the first few, by one that was sent before."""
    for number in range(count + DUPLICATES_DISTANCE):
        if number < count:
            yield number
        if number >= DUPLICATES_DISTANCE:
            yield number - DUPLICATES_DISTANCE


def _storm(count: int) -> Iterator[int]:
    """Send the events of a group in order, STORM_DELIVERIES times, before those of the next."""
    for start in range(0, count, STORM_GROUP):
        for _ in range(STORM_DELIVERIES):
            yield from range(start, min(start + STORM_GROUP, count))


def _one_id(_: int) -> Iterator[int]:
    while True:
        yield 0


LOADS: dict[str, Callable[[int], Iterator[int]]] = {
    UNIQUE: _unique,
    HALF_DUPLICATES: _half_duplicates,
    ONE_ID: _one_id,
}

ORDERS = LOADS | {STORM: _storm}
"""The loads of ingest, and those of other benchmarks."""
