"""Keys, addresses and replies of Redis."""

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.accelerators.redis.address import parse_address
from onceward.accelerators.redis.keys import PROBE_KEY, event_key, key_prefix, parse_event
from onceward.accelerators.redis.replies import (
    MAX_ITEM_BYTES,
    MAX_SKIPPED_BYTES,
    MalformedReply,
    Reply,
    ReplyError,
    ReplyReader,
)
from onceward.errors import ConfigurationError
from support.redis_dump import LedgerEvent, unexplained_keys
from tests.cpu_time import within

EXPECTED, MAX_ITEMS = 6, 8
LONG_BYTES = MAX_SKIPPED_BYTES // 2 + 1
PREFIX = key_prefix("a ledger")
SHA256 = hashlib.sha256(b"{}").digest()


def test_every_key_has_the_same_short_length() -> None:
    keys = {event_key(PREFIX, source, event_id, SHA256)
            for source in ("s", "s" * 255) for event_id in ("é", "x" * 255)}  # fmt: skip
    assert {len(key) for key in keys} == {42}
    assert len(keys) == 4
    assert not PROBE_KEY.startswith(PREFIX)


def test_another_source_id_body_or_ledger_has_another_key() -> None:
    keys = {
        event_key(key_prefix(ledger), source, event_id, sha256)
        for ledger, source, event_id, sha256 in itertools.product(
            ("1/2", "12/"), ("a", "a:"), ("b", ":b"), (SHA256, bytes(32))
        )
    }
    assert len(keys) == 16


def test_a_separator_in_a_value_does_not_move_the_border() -> None:
    pairs = [("a", "b:c"), ("a:b", "c"), ("1:a", "b"), ("", "ab"), ("ab", ""), ("a", "b")]
    assert len({event_key(PREFIX, *pair, SHA256) for pair in pairs}) == len(pairs)


VALUES: list[tuple[bytes | None, int | None]] = [
    (b"1", 1), (b"9223372036854775807", 2**63 - 1), (b"9223372036854775808", None), (b"0", None),
    (None, None), (b"", None), (b"-1", None), (b" 1", None), (b"1\n", None), (b"1_0", None),
    (b"1" * 5_000, None),
]  # fmt: skip


def test_only_a_ledger_id_is_read_from_a_value(subtests: pytest.Subtests) -> None:
    for value, event in VALUES:
        with subtests.test(value=value):
            assert parse_event(value) == event


def test_a_key_is_explained_by_an_event_with_its_source_id_hash_and_ledger_id() -> None:
    event = LedgerEvent(7, "stripe", "evt_1", SHA256)
    key = event_key(PREFIX, *event[1:])
    cases: list[tuple[dict[bytes, bytes | None], list[LedgerEvent], int]] = [
        ({key: b"7"}, [event], 0),
        ({}, [event], 0),
        ({key: b"8"}, [event], 1),
        ({key: None}, [event], 1),
        ({key: b"7"}, [], 1),
        ({key: b"7"}, [event._replace(body_sha256=bytes(32))], 1),
    ]
    for keys, events, faults in cases:
        assert len(list(unexplained_keys(keys, "a ledger", events))) == faults


# The address.


def test_an_address_has_defaults() -> None:
    address = parse_address("redis://cache")
    assert (address.host, address.port, address.database, address.has_tls) == (
        *("cache", 6379, 0),
        False,
    )


def test_an_address_is_shown_without_user_and_password() -> None:
    address = parse_address("rediss://app:p%40ss%2Fword@[::1]:7000/3")
    assert (address.user, address.password, address.has_tls) == ("app", "p@ss/word", True)
    assert str(address) == "rediss://[::1]:7000/3"
    assert "p@ss" not in repr(address)


MALFORMED_ADDRESSES: list[str] = [
    "cache:6379", "http://cache", "redis://", "redis://:secret@", "redis://:se@cret@cache",
    "redis://:secret@cache:port", "redis://:secret@cache:99999", "redis://:secret@cache/name",
    "redis://:secret@cache?timeout=1", "redis://:sec/ret@cache", "redis://app@cache",
    "redis://[::1", "redis://:sec\nret@cache", "\tredis://:secret@cache", "redis://:secret@cache\r",
    "redis://:secret%ff@cache", "redis://:secret\udcff@cache", "redis://:secret@ca..che",
    f"redis://:secret@{'x' * 64}", "redis://:secret@cache\0", "redis://:secret@cache:0",
    f"redis://:secret@cache/{'1' * 5_000}", "redis://:secret@cache/٣", "redis+sentinel://:secret@cache",
]  # fmt: skip


def test_a_malformed_address_is_refused_without_showing_it(subtests: pytest.Subtests) -> None:
    for url in MALFORMED_ADDRESSES:
        with subtests.test(url=url):
            with pytest.raises(ConfigurationError) as error:
                parse_address(url)
            assert str(error.value).startswith("redis: ")
            assert "redis://user:password@host:6379/0" in str(error.value)
            assert not any(part in str(error.value) for part in ("secret", "cret", "sec/"))


# Replies.


@given(st.data())
def test_replies_are_read_however_their_bytes_are_split(data: st.DataObject) -> None:
    long = b"$600\r\n%b\r\n" % (b"\r\n:1\r\n" * 100)
    stream = b"+OK\r\n:-7\r\n$5\r\n1\r\n23\r\n*3\r\n$-1\r\n$0\r\n\r\n*1\r\n:1\r\n*0\r\n"
    stream += b"*2\r\n%b:8\r\n" % long
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1))))
    reader, replies = ReplyReader(), []
    for start, end in itertools.pairwise([0, *cuts, len(stream)]):
        replies += reader.feed(stream[start:end], EXPECTED, MAX_ITEMS)
    assert replies == [b"OK", -7, b"1\r\n23", [None, b"", [1]], [], [None, 8]]


def test_an_error_is_a_reply() -> None:
    (reply,) = ReplyReader().feed(b"-OOM command not allowed\r\n", EXPECTED, MAX_ITEMS)
    assert isinstance(reply, ReplyError)
    assert (reply.code, str(reply)) == ("OOM", "OOM command not allowed")


def test_a_reply_that_arrives_byte_by_byte_is_read_once() -> None:
    items = 3_000

    def read() -> list[Reply]:
        reader, replies = ReplyReader(), []
        for byte in b"*%d\r\n" % items + b":1\r\n" * items:
            replies += reader.feed(bytes([byte]), 1, items)
        return replies

    assert within(1.0, read) == [[1] * items]  # the time is linear


MALFORMED_REPLIES: list[bytes] = [
    b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n", b":\r\n", b"*1\r\n" * 5, b"\r\n",
    b"$513\r\n", b"$9999999\r\n", b"$-2\r\n", b"*-2\r\n", b"$1_0\r\n", b"$ 1\r\n",
    b":" + b"1" * 21 + b"\r\n",
    b"$1\r\n1xx", b">1\r\n", b"*99999999999\r\n", b"*9\r\n", b"+" + bytes(MAX_ITEM_BYTES),
    b"*2\r\n" + (b"$%d\r\n%b\r\n" % (LONG_BYTES, bytes(LONG_BYTES))) * 2,
    b"*2\r\n*7\r\n", b"+OK\r\n" * (EXPECTED + 1),
]  # fmt: skip


def test_other_bytes_are_refused(subtests: pytest.Subtests) -> None:
    for stream in MALFORMED_REPLIES:
        with subtests.test(stream=stream), pytest.raises(MalformedReply):
            ReplyReader().feed(stream, EXPECTED, MAX_ITEMS)
