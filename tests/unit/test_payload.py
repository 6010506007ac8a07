"""A payload is decoded exactly, or rejected with a reason that names the field and no value."""

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import MalformedPayload
from onceward.sources.json_text import LONG_NUMBER
from onceward.work.payloads.models import make_decoder
from onceward.work.payloads.payload import UNDECODABLE, decode, read_document

SECRET = "hunter"


class Colour(enum.Enum):
    RED = "red"


class Item(msgspec.Struct):
    id: str
    amount: int = 0
    kind: Literal["a", "b"] = "a"


class Order(msgspec.Struct):
    item: Item
    items: list[Item] = []


class One(msgspec.Struct, tag="one"):
    pass


class Two(msgspec.Struct, tag="two"):
    pass


def fault(body: bytes, model: Any = None, *, enveloped: bool = False) -> str:
    with pytest.raises(MalformedPayload) as rejected:
        decode(body, make_decoder(model), enveloped=enveloped)
    text = str(rejected.value)
    assert text.startswith("Malformed payload: ")
    return text.removeprefix("Malformed payload: ")


DOCUMENTS: list[tuple[bytes, object]] = [
    (b"{}", {}),
    (b" [1, 2.5, null, true] ", [1, 2.5, None, True]),
    (b"12345678901234567890123", 12345678901234567890123),
    (b'"\\u00e9\\ud83d\\ude00"', "é\N{GRINNING FACE}"),
    (b'{"a": 1, "a": 2}', {"a": 2}),
    (b"null", None),
]


def test_json_is_decoded(subtests: pytest.Subtests) -> None:
    for body, expected in DOCUMENTS:
        with subtests.test(body=body):
            assert decode(body) == expected


INVALID_JSON: list[bytes] = [
    b"",
    b" ",
    b"{",
    b"{]",
    b"{} {}",
    b"nul",
    b"'a'",
    b"\xff",
    b'"\xff"',
    b'{"a": "\xc3"}',
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b"NaN",
    b'{"a": NaN}',
    b"[Infinity]",
    b'"\\ud800"',
    b'"a\x00b"',
    b"1e400",
    b"9" * 5000,
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
]


def test_invalid_json_raises_malformed_payload(subtests: pytest.Subtests) -> None:
    for body in INVALID_JSON:
        with subtests.test(body=body[:12]):
            assert fault(body)
            assert fault(body, Item)
            assert fault(b'{"payload": %s}' % body, enveloped=True)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_raise_malformed_payload(body: bytes) -> None:
    for model in (None, Item):
        try:
            decode(body, make_decoder(model))
        except MalformedPayload as error:
            assert str(error)  # noqa: PT017 - decoding may also succeed


def test_a_valid_number_is_not_blamed_for_another_fault() -> None:
    """A whole number keeps all its digits, beyond the range of a float."""
    body = b'{"n": %s, "s": "\xff"}' % (b"9" * 400)
    assert fault(body) == "s: not UTF-8"
    assert fault(body.replace(b'"\xff"', b"1e400")) == "s: number out of range"
    assert fault(body.replace(b'"\xff"', b"0." + b"1" * 500)) == f"s: {LONG_NUMBER}"


WRONG_FIELDS: list[tuple[bytes, Any, str]] = [
    (b"{}", Item, "missing id"),
    (b'{"item": {}}', Order, "missing item.id"),
    (b'{"item": {"id": "x"}, "items": [{}]}', Order, "missing items[0].id"),
    (b'{"id": 7}', Item, "id: expected str, got int"),
    (b'{"id": "x", "amount": "1"}', Item, "amount: expected int, got str"),
    (b'{"item": {"id": null}}', Order, "item.id: expected str, got null"),
    (b"[]", Item, "expected object, got array"),
    (b'{"x": 1}', dict[int, int], "[...]: expected int, got str"),
    (b'[{"x": 1}]', list[dict[int, int]], "[0][...]: expected int, got str"),
]


def test_the_error_names_the_field(subtests: pytest.Subtests) -> None:
    for body, model, expected in WRONG_FIELDS:
        with subtests.test(body=body):
            assert fault(body, model) == expected


WRONG_VALUES: list[tuple[bytes, Any]] = [
    (b'{"id": "x", "amount": "%s"}', Item),
    (b'{"id": "x", "kind": "%s"}', Item),
    (b'{"id": "x", "kind": "it\'s %s"}', Item),
    (b'{"id": "x", "kind": "\\"\' %s \' \\" %s"}', Item),
    (b'"%s"', Literal["a"]),
    (b'"%s"', Colour),
    (b'"\' %s"', Colour),
    (b'{"type": "%s"}', One | Two),
    (b'{"%s": "x"}', dict[str, int]),
    (b'"%s"', Annotated[str, msgspec.Meta(pattern="^a")]),
    (b'{"id": "%s', Item),
    (b"%s", Item),
]


def test_the_error_contains_no_value(subtests: pytest.Subtests) -> None:
    for body, model in WRONG_VALUES:
        with subtests.test(model=model, body=body):
            secret = SECRET.encode()
            assert SECRET not in fault(body.replace(b"%s", secret), model)


def test_the_error_contains_no_number() -> None:
    assert "4111" not in fault(b"4111111111111111", Literal[1, 2])
    assert "4111" not in fault(b'{"id": "x", "kind": 4111111111111111}', Item)


def test_a_payload_is_decoded_to_its_model() -> None:
    order = decode(b'{"item": {"id": "x", "amount": 5, "other": 1}}', make_decoder(Order))
    assert order == Order(Item("x", 5))


def test_the_payload_of_an_envelope_is_decoded() -> None:
    body = b'{"event_id": "1", "payload": {"id": "x", "amount": 12345678901234567890123}}'
    assert decode(body, enveloped=True) == {"id": "x", "amount": 12345678901234567890123}
    assert decode(b'{"payload": {"id": "x"}}', make_decoder(Item), enveloped=True) == Item("x")
    assert decode(b'{"payload": null}', enveloped=True) is None


def test_an_envelope_without_a_payload_is_rejected() -> None:
    assert fault(b"{}", enveloped=True) == "missing payload"
    assert fault(b"[]", enveloped=True) == "expected object, got array"
    assert fault(b'{"payload": {}}', Item, enveloped=True) == "missing id"


FORM = "application/x-www-form-urlencoded; charset=utf-8"


class Call(msgspec.Struct):
    CallSid: str
    Duration: int = 0


def test_a_form_is_decoded_to_its_fields() -> None:
    body = b"CallSid=CA1&Duration=7&Note=a+b%20c&Empty="
    fields = {"CallSid": "CA1", "Duration": "7", "Note": "a b c", "Empty": ""}
    assert decode(body, content_type=FORM) == fields
    assert decode(body, make_decoder(Call), content_type=FORM) == Call("CA1", 7)
    with pytest.raises(MalformedPayload, match="CallSid"):
        decode(b"Duration=7", make_decoder(Call), content_type=FORM)


def test_a_form_has_as_many_fields_as_a_receiver_can_afford_to_read() -> None:
    body = b"&".join(b"f%d=%%41" % number for number in range(1_000))
    assert len(decode(body, content_type=FORM)) == 1_000
    assert decode(b"a=" + b"%41" * 100_000, content_type=FORM) == {"a": "A" * 100_000}
    headers = b'{"content-type": "%s"}' % FORM.encode()
    for many in (body + b"&g=1", b"a&" * 1_000_000, b"a=%41&" * 1_000_000):
        with pytest.raises(MalformedPayload, match="more than 1,000 fields"):
            decode(many, content_type=FORM)
        assert read_document("slack", headers, many) is UNDECODABLE


def test_json_with_the_content_type_of_a_form_is_decoded_as_json() -> None:
    assert decode(b' {"a":1}', content_type=FORM) == {"a": 1}
