"""The requests that are sent: prepared and signed before any clock starts.

All requests of a file have the same length, so that a sender finds the n-th by its number.
"""

import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SECRET = "a-secret-that-every-contender-shares"  # noqa: S105 - it guards nothing
PATH = "/webhooks/bench"
SIGNATURE_HEADER = "x-signature"
EVENT_TYPE = "payment.made"
BODY_BYTES = 600
ACCOUNTS = 1_000

_TEXT = (
    "A payment of one unit was made to the account above. This text stands for what real events "
    "carry besides the fields that somebody reads: nested objects, addresses, links, metadata. "
)


@dataclass(frozen=True)
class Deliveries:
    """A file of requests, and the ids of their events."""

    file: Path
    ids: Sequence[str]
    request_bytes: int


def random_id(randomness: random.Random) -> str:
    """An id as most providers make them."""
    return f"evt_{randomness.getrandbits(128):032x}"


def ordered_id(number: int) -> str:
    """An id that sorts behind those made before it."""
    return f"evt_{number:032x}"


def random_ids(count: int, seed: int) -> list[str]:
    """Ids without order; the same for the same seed."""
    randomness = random.Random(seed)  # noqa: S311 - repeatable, not secret
    return [random_id(randomness) for _ in range(count)]


def ordered_ids(count: int, first: int) -> list[str]:
    """Ids in order."""
    return [ordered_id(number) for number in range(first, first + count)]


def body(event_id: str, number: int) -> bytes:
    """A JSON document of exactly BODY_BYTES."""
    event = {
        "id": event_id,
        "type": EVENT_TYPE,
        "account": number % ACCOUNTS,
        "amount": 1,
        "created": 1_700_000_000 + number,
        "text": "",
    }
    room = BODY_BYTES - len(json.dumps(event))
    event["text"] = (_TEXT * (room // len(_TEXT) + 1))[:room]
    return json.dumps(event).encode()


def sign(content: bytes) -> str:
    """The signature that every contender checks."""
    return hmac.digest(SECRET.encode(), content, hashlib.sha256).hex()


def is_authentic(content: bytes, signature: str | None) -> bool:
    """The check that the recipes make, as a careful engineer writes it."""
    if signature is None or not signature.isascii():
        return False
    return hmac.compare_digest(sign(content), signature)


def request(content: bytes) -> bytes:
    """The whole of an HTTP request."""
    head = (
        f"POST {PATH} HTTP/1.1\r\n"
        "host: 127.0.0.1\r\n"
        "content-type: application/json\r\n"
        f"{SIGNATURE_HEADER}: {sign(content)}\r\n"
        f"content-length: {len(content)}\r\n"
        "\r\n"
    )
    return head.encode() + content


def prepare(file: Path, ids: Sequence[str]) -> Deliveries:
    """Write a request for each id."""
    length = len(request(body(ids[0], 0)))
    with file.open("wb") as out:
        for number, event_id in enumerate(ids):
            whole = request(body(event_id, number))
            assert len(whole) == length, "all requests of a file have one length"
            out.write(whole)
    return Deliveries(file, ids, length)


# In which order the requests of a file are sent.

REPEATED_AFTER = 200


def _unique(count: int) -> Iterator[int]:
    return iter(range(count))


def _half(count: int) -> Iterator[int]:
    """Every second request repeats one that was sent a while ago."""
    for number in range(count):
        yield number
        yield max(0, number - REPEATED_AFTER)


def _storm(_: int) -> Iterator[int]:
    while True:
        yield 0


LOADS: dict[str, Callable[[int], Iterator[int]]] = {
    "unique": _unique,
    "half": _half,
    "storm": _storm,
}
