"""Every kind of model decodes the same payloads, and rejects the others with the same words."""

import dataclasses
import datetime as dt
import enum
import subprocess
import sys
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from onceward.errors import MalformedPayload
from onceward.work.payloads.payload import FORM
from tests.decoding import decoded, fault, get


class Colour(enum.Enum):
    RED = "red"


def declare_plain(decorate: Any) -> Any:
    """Declare the model with a decorator of dataclasses, attrs or pydantic."""

    @decorate
    class Item:
        price: Decimal
        quantity: int = 1

    @decorate
    class Data:
        amount: int
        items: list[Item] = dataclasses.field(default_factory=list)

    @decorate
    class Order:
        subscription_id: str
        data: Data
        kind: Literal["a", "b"] = "a"
        colour: Colour = Colour.RED
        totals: dict[str, int] | None = None
        at: dt.datetime | None = None
        key: uuid.UUID | None = None
        size: int | str | None = None

    return Order


class StructItem(msgspec.Struct):
    price: Decimal
    quantity: int = 1


class StructData(msgspec.Struct):
    amount: int
    items: list[StructItem] = []


class StructOrder(msgspec.Struct):
    subscription_id: str
    data: StructData
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    totals: dict[str, int] | None = None
    at: dt.datetime | None = None
    key: uuid.UUID | None = None
    size: int | str | None = None


class DictItem(typing_extensions.TypedDict):
    price: Decimal
    quantity: NotRequired[int]


class DictData(typing_extensions.TypedDict):
    amount: int
    items: NotRequired[list[DictItem]]


class DictOrder(typing_extensions.TypedDict):
    subscription_id: str
    data: DictData
    kind: NotRequired[Literal["a", "b"]]
    colour: NotRequired[Colour]
    totals: NotRequired[dict[str, int] | None]
    at: NotRequired[dt.datetime | None]
    key: NotRequired[uuid.UUID | None]
    size: NotRequired[int | str | None]


@attrs.define
class AttrsItem:
    price: Decimal
    quantity: int = 1


@attrs.define
class AttrsData:
    amount: int
    items: list[AttrsItem] = attrs.field(factory=list)


@attrs.define
class AttrsOrder:
    subscription_id: str
    data: AttrsData
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    totals: dict[str, int] | None = None
    at: dt.datetime | None = None
    key: uuid.UUID | None = None
    size: int | str | None = None


class PydanticItem(BaseModel):
    price: Decimal
    quantity: int = 1


class PydanticData(BaseModel):
    amount: int
    items: list[PydanticItem] = []


class PydanticOrder(BaseModel):
    subscription_id: str
    data: PydanticData
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    totals: dict[str, int] | None = None
    at: dt.datetime | None = None
    key: uuid.UUID | None = None
    size: int | str | None = None


class StrictOrder(PydanticOrder):
    model_config = ConfigDict(strict=True)
    data: PydanticData


ORDERS = {
    "struct": StructOrder,
    "dataclass": declare_plain(dataclasses.dataclass),
    "attrs": AttrsOrder,
    "typed dict": DictOrder,
    "pydantic": PydanticOrder,
    "strict pydantic": StrictOrder,
    "pydantic dataclass": declare_plain(pydantic.dataclasses.dataclass),
    "annotated typed dict": Annotated[DictOrder, Field(description="decoded by pydantic")],
}


# Each kind of model.


def test_a_payload_is_decoded_to_its_model(subtests: pytest.Subtests) -> None:
    body = (
        b'{"subscription_id": "s", "data": {"amount": 5, "items": [{"price": 0.1}]}, "other": 1,'
        b' "at": "2026-01-02T03:04:05Z", "key": "00000000-0000-0000-0000-000000000001"}'
    )
    for name, order in ORDERS.items():
        with subtests.test(name):
            value = decoded(order, body)
            assert get(value, "subscription_id") == "s"
            assert get(value, "data", "amount") == 5
            assert get(value, "at") == dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
            assert get(value, "key") == uuid.UUID(int=1)
            enveloped = decoded(order, b'{"payload": %s}' % body, enveloped=True)
            assert enveloped == value


LONG = "0.1000000000000000000000000000000001"


def test_a_decimal_is_exact(subtests: pytest.Subtests) -> None:
    for name, order in ORDERS.items():
        for digits in ("0.1", "1234567890123.45", f'"{LONG}"', "9" * 40):
            with subtests.test(name, digits=digits):
                body = b'{"subscription_id": "s", "data": {"amount": 5, "items": [{"price": %s}]}}'
                (item,) = get(decoded(order, body % digits.encode()), "data", "items")
                assert get(item, "price") == Decimal(digits.strip('"'))


def test_a_decimal_is_exact_at_any_length_without_pydantic() -> None:
    assert decoded(StructItem, f'{{"price": {LONG}}}'.encode()).price == Decimal(LONG)


FAULTS: list[tuple[bytes, str]] = [
    (b'{"data": {"amount": 1}}', "missing subscription_id"),
    (b'{"subscription_id": "s", "data": {}}', "missing data.amount"),
    (
        b'{"subscription_id": "s", "data": {"amount": 1, "items": [{"price": 1}, {}]}}',
        "missing data.items[1].price",
    ),
    (
        b'{"subscription_id": "s", "data": {"amount": "hunter"}}',
        "data.amount: expected int, got str",
    ),
    (
        b'{"subscription_id": "s", "data": {"amount": 1.5}}',
        "data.amount: expected int, got float",
    ),
    (b'{"subscription_id": "s", "data": []}', "data: expected object, got array"),
    (
        b'{"subscription_id": null, "data": {"amount": 1}}',
        "subscription_id: expected str, got null",
    ),
    (b"[]", "expected object, got array"),
    (b"null", "expected object, got null"),
]


def test_an_error_names_the_field(subtests: pytest.Subtests) -> None:
    for name, order in ORDERS.items():
        for body, expected in FAULTS:
            with subtests.test(name, body=body):
                assert fault(order, body) == expected


WRONG_MEMBERS: list[tuple[bytes, str]] = [
    (b'"kind": "hunter"', "kind: not an allowed value"),
    (b'"colour": "hunter"', "colour: not an allowed value"),
    (b'"totals": {"hunter": "x"}', "totals[...]: expected int, got str"),
    (b'"at": "hunter"', "at: invalid datetime"),
    (b'"key": "hunter"', "key: invalid uuid"),
    (b'"data": {"amount": 1, "items": [{"price": "hunter"}]}', "invalid decimal"),
    (b'"data": {"amount": 1, "items": {}}', "data.items: expected array, got object"),
]


def test_an_error_contains_no_value(subtests: pytest.Subtests) -> None:
    for name, order in ORDERS.items():
        for member, expected in WRONG_MEMBERS:
            with subtests.test(name, member=member):
                body = b'{"subscription_id": "s", "data": {"amount": 1}, %s}' % member
                assert fault(order, body).endswith(expected)


INVALID_JSON: list[bytes] = [
    b"",
    b"{",
    b"{} {}",
    b"\xff",
    b'{"data": "\xc3"}',
    b"\xef\xbb\xbf{}",
    b"NaN",
    b'{"data": {"amount": NaN}}',
    b'{"data": {"amount": -Infinity}}',
    b'{"subscription_id": "\\ud800"}',
    b'{"subscription_id": "a\x00b"}',
    b'{"data": {"amount": 1e400}}',
    b"9" * 5000,
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
]


def test_every_decoder_refuses_the_same_json_with_the_same_words(subtests: pytest.Subtests) -> None:
    for body in INVALID_JSON:
        with subtests.test(body=body[:24]):
            words = fault(None, body)
            for name in ("pydantic", "strict pydantic", "pydantic dataclass"):
                assert fault(ORDERS[name], body) == words
            unknown = b'{"subscription_id": "s", "data": {"amount": 1}, "x": NaN}'
            assert (
                fault(PydanticOrder, unknown) == fault(StructOrder, unknown) == "x: NaN is not JSON"
            )


def test_an_escaped_control_character_is_no_fault(subtests: pytest.Subtests) -> None:
    for name, order in ORDERS.items():
        with subtests.test(name):
            text = b'"note": "a\\nb\\u0000c"'
            assert fault(order, b'{%s, "x": NaN}' % text) == "x: NaN is not JSON"
            assert fault(order, b'{%s, "x": "a\nb"}' % text) == "x: contains a control character"
            assert fault(order, b'{%s, "x": "a\0b"}' % text) == "x: contains a NUL"
            assert fault(order, b'{\n%s,\n"x": "\\ud800"}' % text) == "x: contains a lone surrogate"


def test_json_that_is_too_deep_for_pydantic_is_refused() -> None:
    body = b'{"x": %s}' % (b"[" * 250 + b"]" * 250)
    assert fault(PydanticOrder, body) == "nested too deeply"


@given(body=st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def assert_malformed(order: Any, body: bytes) -> None:
    with pytest.raises(MalformedPayload):
        decoded(order, body)


def test_any_bytes_are_decoded_or_raise_malformed_payload(subtests: pytest.Subtests) -> None:
    for name, order in ORDERS.items():
        with subtests.test(name):
            assert_malformed(order)


def test_onceward_imports_neither_pydantic_nor_attrs() -> None:
    program = "import onceward, sys; print({'pydantic', 'attrs'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout.strip() == b"set()"


# Forms.


@dataclasses.dataclass
class DataclassCall:
    CallSid: str
    Duration: int = 0


@attrs.define
class AttrsCall:
    CallSid: str
    Duration: int = 0


class PydanticCall(BaseModel):
    model_config = ConfigDict(strict=True)
    CallSid: str
    Duration: int = 0


class DictCall(TypedDict):
    CallSid: str
    Duration: NotRequired[int]


def test_the_fields_of_a_form_are_converted(subtests: pytest.Subtests) -> None:
    for call in (DataclassCall, AttrsCall, PydanticCall, DictCall):
        with subtests.test(call=call):
            value = decoded(call, b"CallSid=CA1&Duration=7", content_type=FORM)
            assert (get(value, "CallSid"), get(value, "Duration")) == ("CA1", 7)
            assert fault(call, b"Duration=7", content_type=FORM) == "missing CallSid"
            wrong = fault(call, b"CallSid=x&Duration=hunter", content_type=FORM)
            assert wrong == "Duration: expected int, got str"
