"""The keys in Redis: one for each event, its value the ledger's id of the event.

A key is ``onceward:<ledger>:<event>``. Both parts are digests: of the ledger's identity, and of the
source, the event id and the hash of the body. Each key therefore has the same length, and a value
that is a number needs no memory of its own in Redis.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Final

_NAMESPACE: Final = b"onceward:"
_LEDGER_BYTES: Final = 9  # a multiple of 3: base64 without padding
_EVENT_BYTES: Final = 15
_MAX_VALUE_BYTES: Final = 19
_MAX_EVENT: Final = 2**63 - 1  # of a bigint in PostgreSQL

PROBE_KEY: Final = b"onceward:probe"
"""A key outside every ledger's prefix, to find out whether Redis accepts writes."""


def key_prefix(ledger: str) -> bytes:
    """Return the beginning of all keys of a ledger, which names its history too."""
    digest = blake2b(ledger.encode(), digest_size=_LEDGER_BYTES).digest()
    return _NAMESPACE + urlsafe_b64encode(digest) + b":"


def event_key(prefix: bytes, source: str, event_id: str, body_sha256: bytes) -> bytes:
    """Return the key of an event.

    The lengths make the digested text unambiguous: sources and ids may contain any separator.
    """
    source_name, name = source.encode(), event_id.encode()
    text = b"%d:%d:%b%b%b" % (len(source_name), len(name), source_name, name, body_sha256)
    return prefix + urlsafe_b64encode(blake2b(text, digest_size=_EVENT_BYTES).digest())


def parse_event(value: bytes | None) -> int | None:
    """Return the ledger's id in a value; None if there is none: any bytes may be there."""
    if value is None or not value.isdigit() or len(value) > _MAX_VALUE_BYTES:
        return None
    event = int(value)
    return event if 0 < event <= _MAX_EVENT else None
