"""A request with several events is split into the exact bytes of each."""

import pytest

from onceward.errors import ConfigurationError
from onceward.sources.unpacking import MAX_EVENTS, EventPaths
from tests.cpu_time import within


@pytest.mark.parametrize(
    ("text", "body", "events"),
    [
        ("json:[]", b' [ {"a": 1.0} ,{"b":"\\u00e9"}] ', [b'{"a": 1.0}', b'{"b":"\\u00e9"}']),
        ("json:events[]", b'{"x":[9],"events":[1, "2",null]}', [b"1", b'"2"', b"null"]),
        ("json:a.b[]", b'{"a":{"b":[{}]}}', [b"{}"]),
        ("json:e[].c[]", b'{"e":[{"c":[1,2]},{"c":[]},{"c":[3]}]}', [b"1", b"2", b"3"]),
        ("json:[]", b"[]", []),
        ("json:events[]", b'{"events":[]}', []),
    ],
)
def test_each_event_keeps_its_bytes(text: str, body: bytes, events: list[bytes]) -> None:
    assert EventPaths(text).split(body) == events


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"null", b"7", b"{}", b'{"events":{}}', b'{"events":null}', b'{"events":7}'),
        *(b"[" * 100_000, b'{"events":[1', b'\xff{"events":[]}', b'{"events":[\xff'),
        b'{"events":[' + b"1," * MAX_EVENTS + b"1]}",
    ],
)
def test_a_body_that_no_path_fits_stays_whole(body: bytes) -> None:
    assert within(0.5, lambda: EventPaths("json:events[]").split(body)) == [body]


@pytest.mark.parametrize(
    "text", ["", "json:", "json:events", "json:a..b[]", "header:X[]", "json:[][]", "json:.a[]"]
)
def test_an_invalid_path_to_events_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a path to events"):
        EventPaths(text)
