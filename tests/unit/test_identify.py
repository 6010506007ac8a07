"""The id, type and reference of an event are read from headers and bodies of any quality."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from onceward.errors import ConfigurationError, RequestRefused
from onceward.http.errors import status_of
from onceward.model.events import Identity
from onceward.sources import identify as identification
from onceward.sources.envelope import identify_envelope
from onceward.sources.identify import IdentitySelectors, parse_identity_selectors
from onceward.sources.json_text import TOO_DEEP
from onceward.sources.request import Headers, Request
from tests.cpu_time import within

BODY_SELECTORS = parse_identity_selectors(["json:id"], ["json:type"], "json:data.object.id")
HEADER_SELECTORS = parse_identity_selectors(
    ["header:X-GitHub-Delivery"],
    ["header:X-GitHub-Event", "json:action"],
    "json:repository.full_name",
)
NO_HEADERS = Headers([])


def identify(selectors: IdentitySelectors, headers: Headers, body: bytes) -> Identity:
    return identification.identify(selectors, Request(headers, body))


def github(event: bytes = b"issues", **others: bytes) -> Headers:
    named: Mapping[bytes, bytes] = {k.replace("_", "-").encode(): v for k, v in others.items()}
    return Headers([(b"x-github-delivery", b"d1"), (b"x-github-event", event), *named.items()])


def refusal_message(
    body: bytes, selectors: Any = BODY_SELECTORS, headers: Headers = NO_HEADERS
) -> str:
    with pytest.raises(RequestRefused) as caught:
        identify(selectors, headers, body)
    assert (status_of(caught.value), caught.value.code) == (422, "no_event_id")
    return caught.value.message


def test_id_type_and_reference_are_read_from_the_body() -> None:
    body = b'{"id":"evt_1","type":"invoice.paid","data":{"object":{"id":"in_1"}}}'
    assert identify(BODY_SELECTORS, NO_HEADERS, body) == Identity("evt_1", "invoice.paid", "in_1")


def test_id_and_type_are_read_from_headers() -> None:
    body = b'{"action":"opened","repository":{"full_name":"octo/hello"}}'
    assert identify(HEADER_SELECTORS, github(), body) == Identity(
        "d1", "issues.opened", "octo/hello"
    )


def test_a_later_part_of_the_type_is_optional() -> None:
    assert identify(HEADER_SELECTORS, github(b"push"), b"{}").type == "push"
    assert identify(HEADER_SELECTORS, github(b"push"), b'{"action":null}').type == "push"


def test_the_type_is_empty_without_its_first_part() -> None:
    headers = Headers([(b"x-github-delivery", b"d1")])
    assert identify(HEADER_SELECTORS, headers, b'{"action":"opened"}').type == ""


UNUSABLE: list[object] = ["", "a\0b", "a" * 256, 1.5, True, {}]


def test_the_type_is_empty_if_a_part_is_unusable(subtests: pytest.Subtests) -> None:
    for action in (*UNUSABLE, [], "a" * 250):
        with subtests.test(action=action):
            body = json.dumps({"action": action}).encode()
            assert identify(HEADER_SELECTORS, github(), body).type == ""


def test_an_event_with_an_unusable_type_or_reference_is_accepted(subtests: pytest.Subtests) -> None:
    for value in (*UNUSABLE, None, "\ud800", [1]):
        with subtests.test(value=value):
            body = json.dumps({"id": "evt_1", "type": value, "data": {"object": {"id": value}}})
            found = identify(BODY_SELECTORS, NO_HEADERS, body.encode())
            assert found == Identity("evt_1", "", None)


ODD_CONTENT = [
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
    b'"x":' + b"[" * 499 + b"]" * 499,
]


def test_odd_content_beside_the_id_is_accepted(subtests: pytest.Subtests) -> None:
    for rest in ODD_CONTENT:
        with subtests.test(rest=rest):
            body = b'{"id":"evt_1","type":"a",' + rest + b"}"
            assert identify(BODY_SELECTORS, NO_HEADERS, body) == Identity("evt_1", "a", None)


def test_a_byte_order_mark_is_accepted() -> None:
    body = b'\xef\xbb\xbf{"id":"evt_1","type":"a"}'
    assert identify(BODY_SELECTORS, NO_HEADERS, body) == Identity("evt_1", "a")


ANY_BODIES = [
    b"",
    b"{",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b"\0",
    b"NaN",
    b"[" * 100_000,
    b'{"action":' * 9999,
]


def test_any_body_is_accepted_if_the_id_is_in_a_header(subtests: pytest.Subtests) -> None:
    for body in ANY_BODIES:
        with subtests.test(body=body):
            assert identify(HEADER_SELECTORS, github(), body) == Identity("d1", "issues", None)


UNUSABLE_IDS = [
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
]


def test_an_unusable_id_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for value, message in UNUSABLE_IDS:
        with subtests.test(message, value=value):
            assert refusal_message(b'{"type":"a","id":' + value + b"}") == message


def test_a_body_without_an_id_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for body, message in [
        (b"{}", "json:id is missing"),
        (b"", "json:id is missing: the body is not JSON (at character 0)"),
        (b'{"id":"evt_1"', "json:id is missing: the body is not JSON (at character 13)"),
        (b"[]", "json:id is missing: the body is a list, not an object"),
        (b"null", "json:id is missing: the body is null, not an object"),
        (b"5", "json:id is missing: the body is a string or a number, not an object"),
        (b'{"id":' + b"[" * 100_000, f"json:id is missing: the body is {TOO_DEEP}"),
    ]:
        with subtests.test(body=body):
            assert refusal_message(body) == message


def test_an_unusable_id_in_a_header_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for value, message in [
        (None, "header X-GitHub-Delivery is missing"),
        (b"", "header X-GitHub-Delivery is empty"),
        (b"a" * 300, "header X-GitHub-Delivery is 300 bytes long; the limit is 255"),
        (b"a\0b", "header X-GitHub-Delivery contains a NUL"),
        (b"\xe9", "header X-GitHub-Delivery is not valid Unicode"),
    ]:
        with subtests.test(value=value):
            headers = Headers([] if value is None else [(b"x-github-delivery", value)])
            assert refusal_message(b"{}", HEADER_SELECTORS, headers) == message


def test_an_unusable_id_is_not_replaced_by_an_alternative(subtests: pytest.Subtests) -> None:
    for value in (b'""', b"1.5", b"true", b'"a\\u0000b"', b"{}", b"[]"):
        with subtests.test(value=value):
            selectors = parse_identity_selectors(["json:id|json:number|body:sha256"], [], None)
            body = b'{"id":%b,"number":7}'
            assert identify(selectors, NO_HEADERS, body % b"null").event_id == "7"
            assert "json:id" in refusal_message(body % value, selectors)


def test_different_parts_never_join_to_the_same_id() -> None:
    selectors = parse_identity_selectors(["json:a", "json:b"], [], None)
    pairs = [("a|b", "c"), ("a", "b|c"), ("a%7Cb", "c"), ("a%257Cb", "c"), ("a%", "7Cb|c")]
    bodies = [json.dumps({"a": first, "b": second}).encode() for first, second in pairs]
    ids = [identify(selectors, NO_HEADERS, body).event_id for body in bodies]
    assert ids == ["a%7Cb|c", "a|b%7Cc", "a%257Cb|c", "a%25257Cb|c", "a%25|7Cb%7Cc"]


def test_a_repeated_header_with_the_id_is_refused() -> None:
    headers = Headers([(b"x-github-delivery", b"a"), (b"x-github-delivery", b"b")])
    with pytest.raises(RequestRefused) as caught:
        identify(HEADER_SELECTORS, headers, b"{}")
    assert (status_of(caught.value), caught.value.code) == (400, "repeated_header")


def test_an_integer_is_an_id_even_in_an_odd_body(subtests: pytest.Subtests) -> None:
    for value in (0, -7, 42, 2**64, 10**254):
        with subtests.test(value=value):
            for rest in ("", ',"data":"text"', ',"x":NaN'):
                body = f'{{"id":{value}{rest}}}'.encode()
                assert identify(BODY_SELECTORS, NO_HEADERS, body).event_id == str(value)


@pytest.mark.parametrize("rest", [b"", b',"x":NaN', b',"data":1'])
def test_the_last_of_repeated_names_is_used_by_both_decoders(rest: bytes) -> None:
    body = b'{"id":"first","id":"last"' + rest + b"}"
    assert identify(BODY_SELECTORS, NO_HEADERS, body).event_id == "last"


def test_a_path_can_contain_any_name() -> None:
    selectors = parse_identity_selectors(["json:event-data.some id.ü"], ["json:class"], None)
    body = '{"event-data":{"some id":{"ü":"x"}},"class":"y"}'.encode()
    assert identify(selectors, NO_HEADERS, body) == Identity("x", "y")


def test_a_selector_can_be_used_twice() -> None:
    selectors = parse_identity_selectors(["json:a.b"], ["json:a.c"], "json:a.b")
    assert identify(selectors, NO_HEADERS, b'{"a":{"b":1,"c":"t"}}') == Identity("1", "t", "1")


def test_a_body_that_no_selector_reads_is_not_decoded() -> None:
    selectors = parse_identity_selectors(["header:X-Id"], [], None)
    assert identify(selectors, Headers([(b"x-id", b"1")]), b"{") == Identity("1", "")


def test_a_hostile_body_is_refused_quickly() -> None:
    for body in (b'{"id":' + b"9" * 1_000_000 + b"}", b'{"id":"' + b"\\u00e9" * 170_000 + b'"}'):
        within(0.25, partial(refusal_message, body))


INVALID_SELECTORS: list[tuple[Sequence[str], Sequence[str]]] = [
    (["id"], ["'id' is not a selector; write header:Some-Name or json:some.path"]),
    (["xml:a/b"], ["'xml:a/b' is not a selector; write header:Some-Name or json:some.path"]),
    (["json:"], ["'json:' has an empty name in its path"]),
    (["json:a..b"], ["'json:a..b' has an empty name in its path"]),
    (["json:a[].b"], ["'json:a[].b' selects from a list, not a single value"]),
    (["header:"], ["'' is not a valid header name"]),
    (["json:a", "json:a.b"], ["json:a.b is inside json:a; select one or the other"]),
    (
        ["header:X Y", "json:."],
        ["'X Y' is not a valid header name", "'json:.' has an empty name in its path"],
    ),
]


def test_all_invalid_selectors_are_reported_at_once(subtests: pytest.Subtests) -> None:
    for selectors, faults in INVALID_SELECTORS:
        with subtests.test(selectors=selectors):
            with pytest.raises(ConfigurationError) as caught:
                parse_identity_selectors(selectors[:1], selectors[1:], None)
            assert list(caught.value.faults) == faults


def test_the_identity_is_read_from_an_envelope() -> None:
    body = b'{"event_id":"e1","event_type":"order.shipped","payload":{"a":[1,2]},"reference":"o1"}'
    assert identify_envelope(body) == Identity("e1", "order.shipped", "o1")


def test_the_payload_of_an_envelope_may_be_any_json(subtests: pytest.Subtests) -> None:
    for payload in (b"null", b"[]", b'"text"', b"9" * 5000, b'{"a":"\xff"}'):
        with subtests.test(payload=payload):
            body = b'{"event_id":7,"event_type":"a","reference":null,"payload":' + payload + b"}"
            assert identify_envelope(body) == Identity("7", "a", None)


INVALID_ENVELOPES = [
    (b"", "invalid_json", "the body is not JSON"),
    (b"{", "invalid_json", "the body is not JSON"),
    (b'{"event_id":"\xff"}', "invalid_json", "the body is not JSON"),
    (b"[]", "invalid_json", "the body is a list, not an object"),
    (b'{"payload":' + b"[" * 100_000, "invalid_json", f"the body is {TOO_DEEP}"),
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
]


def test_an_invalid_envelope_is_refused_with_a_code(subtests: pytest.Subtests) -> None:
    for body, code, message in INVALID_ENVELOPES:
        with subtests.test(body=body):
            with pytest.raises(RequestRefused) as caught:
                identify_envelope(body)
            assert (status_of(caught.value), caught.value.code, caught.value.message) == (
                422,
                code,
                message,
            )
