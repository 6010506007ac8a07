"""The server frames requests as h11 does, for any bytes and any reads. See prove/framing.py."""

import asyncio
from dataclasses import replace

import pytest

from prove.framing import (
    MIN_ACCEPTED_SHARE,
    Expected,
    broken_rules,
    check_every_cut,
    check_streams,
    expect,
)
from prove.in_process import Message, Outcome
from prove.request_streams import ODDITIES, SMUGGLED, make_stream
from prove.shrink import Case, shrink

SEED = 20_261_118
STREAM_COUNT = 1_000

GOOD = b"POST /webhooks/a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"POST /webhooks/a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
OFFER = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


def headed(*lines: bytes, body: bytes = b"") -> bytes:
    """Return a request with these header lines."""
    head = b"".join(line + b"\r\n" for line in lines)
    return b"POST /webhooks/a HTTP/1.1\r\n" + head + b"\r\n" + body


def with_length(body: bytes, *lines: bytes) -> bytes:
    return headed(b"Host: h", *lines, b"Content-Length: %d" % len(body), body=body)


LINE_IN_BODY = b"\r\nUpgrade: h2c\r\n\r\n" + SMUGGLED

CASES = {
    "two good requests": GOOD + GOOD,
    "a good request before garbage": GOOD + b"\x00garbage\r\n\r\n",
    "an upgrade offer with a body": with_length(b"{}", OFFER[:-2]) + GOOD,
    "an upgrade offer in a body": with_length(LINE_IN_BODY, OFFER[:-2]) + GOOD,
    "an upgrade line in a body without an offer": with_length(LINE_IN_BODY) + GOOD,
    "a trailer": CHUNKED + b"2\r\n{}\r\n0\r\nX-Signature: late\r\n\r\n" + GOOD,
    "a trailer that ends the connection": CHUNKED + b"0\r\nConnection: close\r\n\r\n" + GOOD,
    "a trailer that offers an upgrade": CHUNKED + b"0\r\n" + OFFER + b"\r\n" + GOOD,
    "no host": headed() + GOOD,
    "two hosts": headed(b"Host: a", b"Host: b") + GOOD,
    "no version": b"POST /\r\nHost: h\r\n\r\n" + GOOD,
    "two spaces before the version": b"POST /  HTTP/1.1\r\nHost: h\r\n\r\n" + GOOD,
    "two spaces before the target": GOOD + GOOD.replace(b"POST ", b"POST  "),
    "two spaces in an upgrade offer": with_length(b"{}", OFFER[:-2]).replace(b"POST ", b"POST  "),
    "the protocol of streams": GOOD + GOOD.replace(b"HTTP/1.1", b"RTSP/1.0") + GOOD,
    "the protocol of radios": GOOD.replace(b"HTTP/1.1", b"ICE/1.0"),
    "a bare line feed before": b"\n" + GOOD,
    "a bare line feed between": GOOD + b"\r\n\n" + GOOD,
    "a bare return before": b"\r" + GOOD,
    "a bare return between": CHUNKED + b"2\r\n{}\r\n0\r\n\r\n\r" + GOOD,
    "a bare return after an upgrade offer": with_length(b"{}", OFFER[:-2]) + b"\r\r\n" + GOOD,
    "empty lines in chunks": CHUNKED + b"8\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n\r\n\r\n" + GOOD,
    "a tunnel": with_length(b"{}").replace(b"POST", b"CONNECT") + GOOD,
    "half a tunnel": b"CONNECT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n",
    "an unknown coding before chunked": CHUNKED.replace(b"chunked", b"gzip, chunked")
    + b"0\r\n\r\n",
    "two transfer codings": CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length and chunks": CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + GOOD,
    "two lengths": headed(b"Host: h", b"Content-Length: 2", b"Content-Length: 3", body=b"{}}"),
    "the last request": with_length(b"{}", b"Connection: close") + GOOD,
    "the last request of the previous version": GOOD.replace(b"1.1", b"1.0") + GOOD,
    "the previous version, kept alive": b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GOOD,
    "the first version": b"POST / HTTP/0.9\r\nConnection: keep-alive\r\n\r\n" + GOOD,
    "line ends before and after": b"\r\n" + GOOD + b"\r\n\r\n" + GOOD + b"\r\n",
    "an expectation": with_length(b"{}", b"Expect: 100-continue") + GOOD,
}


def test_no_read_changes_what_a_stream_contains(subtests: pytest.Subtests) -> None:
    for name, data in CASES.items():
        with subtests.test(name):
            assert not check_every_cut(data)


def test_random_streams_are_framed_as_h11_frames_them() -> None:
    result = check_streams(SEED, STREAM_COUNT)
    assert not result.broken_rules, "\n".join(map(str, result.failures))
    assert result.accepted_share >= MIN_ACCEPTED_SHARE
    assert result.messages > STREAM_COUNT
    assert result.refused_by_both > STREAM_COUNT / 10


# The comparison itself.

MESSAGE = Message(b"POST", b"/a", b"{}", ((b"host", b"h"),))
OTHER = Message(b"POST", b"/b", b"", ((b"host", b"h"),))
LABELS = [MESSAGE.label]


def outcome(*messages: Message, **more: object) -> Outcome:
    """Return the outcome of messages that all got their response."""
    return replace(
        Outcome(messages=list(messages), responses=[message.label for message in messages]),
        **more,  # type: ignore[arg-type] # the fields of an outcome
    )


BROKEN = {
    "a message that h11 does not receive": (Expected(()), outcome(MESSAGE)),
    "a message that h11 does not receive, h11: no": (
        Expected((), refusal="no"),
        outcome(MESSAGE, is_closed=True),
    ),
    "not refused, h11: no": (Expected((MESSAGE,), refusal="no"), outcome(MESSAGE)),
    "a body differs": (Expected((MESSAGE,)), outcome(MESSAGE._replace(body=b"{"))),
    "a request line differs": (Expected((MESSAGE,)), outcome(MESSAGE._replace(method=b"GET"))),
    "headers were added": (
        Expected((MESSAGE,)),
        outcome(MESSAGE._replace(headers=(*MESSAGE.headers, (b"x", b"y")))),
    ),
    "headers were changed": (Expected((MESSAGE,)), outcome(MESSAGE._replace(headers=()))),
    "the rest is not read": (Expected((MESSAGE,)), outcome(MESSAGE, is_stalled=True)),
    "the rest is not read after a refusal": (
        Expected((MESSAGE,), refusal="no"),
        outcome(MESSAGE, is_stalled=True, is_closed=True, errors=[400]),
    ),
    "open after a message that asks for a close": (
        Expected((MESSAGE,), closes=True),
        outcome(MESSAGE),
    ),
    "a message is missing": (Expected((MESSAGE, OTHER)), outcome(MESSAGE)),
    "a message got no response": (Expected((MESSAGE,)), outcome(MESSAGE, responses=[])),
    "responses are out of order": (
        Expected((MESSAGE, OTHER)),
        outcome(MESSAGE, OTHER, responses=[OTHER.label, MESSAGE.label]),
    ),
    "half a response": (Expected((MESSAGE,)), outcome(MESSAGE, unparsed=b"HTTP/1.1 2")),
    "more than one refusal": (
        Expected((MESSAGE,)),
        outcome(MESSAGE, errors=[400, 400], is_closed=True),
    ),
    "open after a refusal": (Expected((MESSAGE,)), outcome(MESSAGE, errors=[400])),
}


def test_a_broken_rule_is_found() -> None:
    for rule, (expected, seen) in BROKEN.items():
        assert set(broken_rules(expected, seen)) == {rule}


ALLOWED = {
    "received": (Expected((MESSAGE,)), outcome(MESSAGE)),
    "last": (Expected((MESSAGE,), closes=True), outcome(MESSAGE, is_closed=True)),
    "refused by both": (
        Expected((MESSAGE,), refusal="no"),
        outcome(MESSAGE, is_closed=True, errors=[400]),
    ),
    "refused here": (
        Expected((MESSAGE, OTHER)),
        outcome(MESSAGE, is_closed=True, errors=[400]),
    ),
}


def test_an_allowed_outcome_breaks_no_rule() -> None:
    for name, (expected, seen) in ALLOWED.items():
        assert not set(broken_rules(expected, seen)), name


def test_h11_sees_every_kind_of_end() -> None:
    assert [len(expect(data).messages) for data in (GOOD, GOOD + GOOD[:-1], GOOD * 3)] == [1, 1, 3]
    assert expect(GOOD + b"\x00").refusal == "illegal request line"
    assert expect(CASES["the last request"]) == replace(
        expect(with_length(b"{}", b"Connection: close")), closes=True
    )
    assert len(expect(CASES["an upgrade offer in a body"]).messages) == 2


def test_a_stream_is_made_from_its_seed_alone() -> None:
    streams = [make_stream(SEED, number) for number in range(500)]
    assert streams == [make_stream(SEED, number) for number in range(500)]
    assert streams != [make_stream(SEED + 1, number) for number in range(500)]
    seen = {oddity for stream in streams for text in stream.oddities for oddity in text.split(", ")}
    assert seen >= ODDITIES.keys()


def test_a_failing_stream_is_reduced() -> None:
    async def has_both(case: Case) -> bool:
        return b"bad" in case.data and any(
            case.data[cut - 1 : cut + 1] == b"ad" for cut in case.cuts
        )

    data = GOOD + headed(b"Host: h", b"X: bad") + GOOD
    smallest = asyncio.run(shrink(Case(data, tuple(range(1, len(data))), is_direct=True), has_both))
    assert (smallest.data, smallest.cuts) == (b"bad", (2,))
