"""A request with several events is split into the exact bytes of each."""

from functools import partial

import pytest

from onceward.errors import ConfigurationError
from onceward.sources.unpacking import MAX_EVENTS, EventPaths
from tests.cpu_time import within

UNPACKED: list[tuple[str, bytes, list[bytes]]] = [
    ("json:[]", b' [ {"a": 1.0} ,{"b":"\\u00e9"}] ', [b'{"a": 1.0}', b'{"b":"\\u00e9"}']),
    ("json:events[]", b'{"x":[9],"events":[1, "2",null]}', [b"1", b'"2"', b"null"]),
    ("json:a.b[]", b'{"a":{"b":[{}]}}', [b"{}"]),
    ("json:e[].c[]", b'{"e":[{"c":[1,2]},{"c":[]},{"c":[3]}]}', [b"1", b"2", b"3"]),
    ("json:[]", b"[]", []),
    ("json:events[]", b'{"events":[]}', []),
]


def test_each_event_keeps_its_bytes(subtests: pytest.Subtests) -> None:
    for text, body, events in UNPACKED:
        with subtests.test(text=text, body=body):
            assert EventPaths(text).split(body) == events


WHOLE_BODIES: list[bytes] = [
    *(b"", b"{", b"null", b"7", b"{}", b'{"events":{}}', b'{"events":null}', b'{"events":7}'),
    *(b"[" * 100_000, b'{"events":[1', b'\xff{"events":[]}', b'{"events":[\xff'),
    b'{"events":[' + b"1," * MAX_EVENTS + b"1]}",
]


def test_a_body_that_no_path_fits_stays_whole(subtests: pytest.Subtests) -> None:
    for body in WHOLE_BODIES:
        with subtests.test(body=body[:24]):
            assert within(0.5, partial(EventPaths("json:events[]").split, body)) == [body]


def test_an_invalid_path_to_events_is_refused(subtests: pytest.Subtests) -> None:
    for text in ("", "json:", "json:events", "json:a..b[]", "header:X[]", "json:[][]", "json:.a[]"):
        with (
            subtests.test(text=text),
            pytest.raises(ConfigurationError, match="is not a path to events"),
        ):
            EventPaths(text)
