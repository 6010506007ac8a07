import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from onceward.errors import ConfigurationError, RequestRefused
from onceward.http.errors import status_of
from onceward.model.events import Identity
from onceward.sources import identify as identification
from onceward.sources.envelope import identify_envelope
from onceward.sources.identify import IdentitySelectors, parse_identity_selectors
from onceward.sources.request import Headers, Request

IN_BODY = parse_identity_selectors(["json:id"], ["json:type"], "json:data.object.id")
IN_HEADER = parse_identity_selectors(
    ["header:X-GitHub-Delivery"],
    ["header:X-GitHub-Event", "json:action"],
    "json:repository.full_name",
)
NO_HEADERS = Headers([])


def identify(locators: IdentitySelectors, headers: Headers, body: bytes) -> Identity:
    return identification.identify(locators, Request(headers, body))


def github(event: bytes = b"issues", **others: bytes) -> Headers:
    named: Mapping[bytes, bytes] = {k.replace("_", "-").encode(): v for k, v in others.items()}
    return Headers([(b"x-github-delivery", b"d1"), (b"x-github-event", event), *named.items()])


def refusal(body: bytes, locators: Any = IN_BODY, headers: Headers = NO_HEADERS) -> str:
    with pytest.raises(RequestRefused) as caught:
        identify(locators, headers, body)
    assert (status_of(caught.value), caught.value.code) == (422, "no_event_id")
    return caught.value.message


def test_id_type_and_reference_are_found_in_the_body() -> None:
    body = b'{"id":"evt_1","type":"invoice.paid","data":{"object":{"id":"in_1"}}}'
    assert identify(IN_BODY, NO_HEADERS, body) == Identity("evt_1", "invoice.paid", "in_1")


def test_id_and_type_are_found_in_headers() -> None:
    body = b'{"action":"opened","repository":{"full_name":"octo/hello"}}'
    assert identify(IN_HEADER, github(), body) == Identity("d1", "issues.opened", "octo/hello")


def test_a_later_part_of_the_type_may_be_absent() -> None:
    assert identify(IN_HEADER, github(b"push"), b"{}").type == "push"
    assert identify(IN_HEADER, github(b"push"), b'{"action":null}').type == "push"


def test_the_first_part_of_the_type_may_not_be_absent() -> None:
    headers = Headers([(b"x-github-delivery", b"d1")])
    assert identify(IN_HEADER, headers, b'{"action":"opened"}').type == ""


@pytest.mark.parametrize("action", ["", "a\0b", "a" * 256, 1.5, True, {}, [], "a" * 250])
def test_a_part_of_the_type_that_is_unusable_spoils_the_type(action: object) -> None:
    assert identify(IN_HEADER, github(), json.dumps({"action": action}).encode()).type == ""


@pytest.mark.parametrize("spoilt", [None, "", "a\0b", "a" * 256, "\ud800", 1.5, True, {}, [1]])
def test_a_type_or_reference_that_is_unusable_refuses_nothing(spoilt: object) -> None:
    body = json.dumps({"id": "evt_1", "type": spoilt, "data": {"object": {"id": spoilt}}})
    assert identify(IN_BODY, NO_HEADERS, body.encode()) == Identity("evt_1", "", None)


@pytest.mark.parametrize(
    "rest",
    [
        b'"data":null',
        b'"data":"text"',
        b'"data":[]',
        b'"data":{"object":5}',
        b'"data":{"object":null}',
        b'"x":NaN',
        b'"x":-Infinity',
        b'"x":' + b"9" * 5000,
        b'"x":1e100000',
        b'"x":"\\ud800"',
        b'"x":"\xff\xfe"',
        b'"x":"a\0b\x01"',
        b'"x":' + b"[" * 500 + b"]" * 500,
    ],
)
def test_odd_content_beside_the_id_refuses_nothing(rest: bytes) -> None:
    body = b'{"id":"evt_1","type":"a",' + rest + b"}"
    assert identify(IN_BODY, NO_HEADERS, body) == Identity("evt_1", "a", None)


def test_a_byte_order_mark_refuses_nothing() -> None:
    body = b'\xef\xbb\xbf{"id":"evt_1","type":"a"}'
    assert identify(IN_BODY, NO_HEADERS, body) == Identity("evt_1", "a")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"\0", b"NaN", b"[" * 100_000, b'{"action":' * 9999],
)
def test_where_the_id_is_in_a_header_no_body_is_refused(body: bytes) -> None:
    assert identify(IN_HEADER, github(), body) == Identity("d1", "issues", None)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"null", "json:id is null; it must be a string"),
        (b"[1]", "json:id is a list; it must be a string"),
        (b"{}", "json:id is an object; it must be a string"),
        (b"true", "json:id is a boolean; it must be a string"),
        (b"1.5", "json:id is a number with a fraction; it must be a string"),
        (b"NaN", "json:id is a number with a fraction; it must be a string"),
        (b'""', "json:id is empty"),
        (b'"a\\u0000b"', "json:id contains a NUL"),
        (b'"\\ud800"', "json:id is not valid Unicode"),
        (b'"\xff"', "json:id is not valid Unicode"),
        (b'"' + b"a" * 256 + b'"', "json:id is 256 bytes long; the limit is 255"),
        ('"{}"'.format("é" * 128).encode(), "json:id is 256 bytes long; the limit is 255"),
        (b"9" * 256, "json:id is 256 bytes long; the limit is 255"),
        (b"9" * 4300, "json:id is 4300 bytes long; the limit is 255"),
        (b"9" * 100_000, "json:id is 100000 bytes long; the limit is 255"),
    ],
)
def test_an_unusable_id_is_refused_with_the_reason(value: bytes, fault: str) -> None:
    assert refusal(b'{"type":"a","id":' + value + b"}") == fault


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"{}", "json:id is missing"),
        (b"", "json:id is missing: the body is not JSON (at character 0)"),
        (b'{"id":"evt_1"', "json:id is missing: the body is not JSON (at character 13)"),
        (b"[]", "json:id is missing: the body is a list, not an object"),
        (b"null", "json:id is missing: the body is null, not an object"),
        (b"5", "json:id is missing: the body is a string or a number, not an object"),
        (b'{"id":' + b"[" * 100_000, "json:id is missing: the body is nested too deeply"),
    ],
)
def test_a_body_without_an_id_is_refused_with_the_reason(body: bytes, fault: str) -> None:
    assert refusal(body) == fault


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (None, "header X-GitHub-Delivery is missing"),
        (b"", "header X-GitHub-Delivery is empty"),
        (b"a" * 300, "header X-GitHub-Delivery is 300 bytes long; the limit is 255"),
        (b"a\0b", "header X-GitHub-Delivery contains a NUL"),
        (b"\xe9", "header X-GitHub-Delivery is not valid Unicode"),
    ],
)
def test_an_unusable_id_in_a_header_is_refused_with_the_reason(
    value: bytes | None, fault: str
) -> None:
    headers = Headers([] if value is None else [(b"x-github-delivery", value)])
    assert refusal(b"{}", IN_HEADER, headers) == fault


def test_a_header_asked_for_may_not_be_repeated() -> None:
    headers = Headers([(b"x-github-delivery", b"a"), (b"x-github-delivery", b"b")])
    with pytest.raises(RequestRefused) as caught:
        identify(IN_HEADER, headers, b"{}")
    assert (status_of(caught.value), caught.value.code) == (400, "repeated_header")


@pytest.mark.parametrize("value", [0, -7, 42, 2**64, 10**254])
def test_a_whole_number_is_an_id_also_where_the_body_is_odd(value: int) -> None:
    for rest in ("", ',"data":"text"', ',"x":NaN'):
        body = f'{{"id":{value}{rest}}}'.encode()
        assert identify(IN_BODY, NO_HEADERS, body).event_id == str(value)


@pytest.mark.parametrize("rest", [b"", b',"x":NaN', b',"data":1'])
def test_of_a_repeated_name_the_last_counts_however_the_body_is_read(rest: bytes) -> None:
    body = b'{"id":"first","id":"last"' + rest + b"}"
    assert identify(IN_BODY, NO_HEADERS, body).event_id == "last"


def test_any_name_can_be_part_of_a_path() -> None:
    locators = parse_identity_selectors(["json:event-data.some id.ü"], ["json:class"], None)
    body = '{"event-data":{"some id":{"ü":"x"}},"class":"y"}'.encode()
    assert identify(locators, NO_HEADERS, body) == Identity("x", "y")


def test_one_place_can_serve_twice() -> None:
    locators = parse_identity_selectors(["json:a.b"], ["json:a.c"], "json:a.b")
    assert identify(locators, NO_HEADERS, b'{"a":{"b":1,"c":"t"}}') == Identity("1", "t", "1")


def test_the_body_is_not_read_where_nothing_in_it_is_asked_for() -> None:
    locators = parse_identity_selectors(["header:X-Id"], [], None)
    assert identify(locators, Headers([(b"x-id", b"1")]), b"{") == Identity("1", "")


def test_a_hostile_body_takes_no_long_time() -> None:
    started = time.perf_counter()
    for body in (b'{"id":' + b"9" * 1_000_000 + b"}", b'{"id":"' + b"\\u00e9" * 170_000 + b'"}'):
        refusal(body)
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    ("selectors", "faults"),
    [
        (["id"], ["'id' is no place: write header:Some-Name or json:some.path"]),
        (["xml:a/b"], ["'xml:a/b' is no place: write header:Some-Name or json:some.path"]),
        (["json:"], ["'json:' has an empty name in its path"]),
        (["json:a..b"], ["'json:a..b' has an empty name in its path"]),
        (["json:a[].b"], ["'json:a[].b' points into a list; a request holds one event"]),
        (["header:"], ["'' is not the name of a header"]),
        (["json:a", "json:a.b"], ["json:a.b lies inside json:a; one of them is wrong"]),
        (
            ["header:X Y", "json:."],
            ["'X Y' is not the name of a header", "'json:.' has an empty name in its path"],
        ),
    ],
)
def test_places_that_cannot_work_are_named_all_at_once(
    selectors: Sequence[str], faults: Sequence[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_identity_selectors(selectors[:1], selectors[1:], None)
    assert list(caught.value.faults) == faults


def test_an_envelope_says_what_it_is_about() -> None:
    body = b'{"event_id":"e1","event_type":"order.shipped","payload":{"a":[1,2]},"reference":"o1"}'
    assert identify_envelope(body) == Identity("e1", "order.shipped", "o1")


@pytest.mark.parametrize("payload", [b"null", b"[]", b'"text"', b"9" * 5000, b'{"a":"\xff"}'])
def test_an_envelopes_payload_may_be_any_json(payload: bytes) -> None:
    body = b'{"event_id":7,"event_type":"a","reference":null,"payload":' + payload + b"}"
    assert identify_envelope(body) == Identity("7", "a", None)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b"", "invalid_json", "the body is not JSON"),
        (b"{", "invalid_json", "the body is not JSON"),
        (b'{"event_id":"\xff"}', "invalid_json", "the body is not JSON"),
        (b"[]", "invalid_json", "the body is a list, not an object"),
        (b'{"payload":' + b"[" * 100_000, "invalid_json", "the body is nested too deeply"),
        (
            b'{"event_id":' + b"9" * 5000 + b"}",
            "no_event_id",
            "event_id is 5000 bytes long; the limit is 255",
        ),
        (
            b'{"event_id":1e999}',
            "no_event_id",
            "event_id is a number with a fraction; it must be a string",
        ),
        (b"{}", "no_event_id", "event_id is missing"),
        (b'{"event_id":null}', "no_event_id", "event_id is null; it must be a string"),
        (b'{"event_id":[]}', "no_event_id", "event_id is a list; it must be a string"),
        (b'{"event_id":""}', "no_event_id", "event_id is empty"),
        (b'{"event_id":"a"}', "no_event_type", "event_type is missing"),
        (b'{"event_id":"a","event_type":""}', "no_event_type", "event_type is empty"),
        (b'{"event_id":"a","event_type":"b"}', "no_payload", "payload is missing"),
        (
            b'{"event_id":"a","event_type":"b","payload":1,"reference":{}}',
            "bad_reference",
            "reference is an object; it must be a string",
        ),
    ],
)
def test_each_fault_of_an_envelope_has_its_code(body: bytes, code: str, message: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        identify_envelope(body)
    assert (status_of(caught.value), caught.value.code, caught.value.message) == (
        422,
        code,
        message,
    )
