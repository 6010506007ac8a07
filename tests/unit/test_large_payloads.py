"""A large payload that does not fit its model costs little more than one that does."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict
from pydantic_core import core_schema

from tests.cpu_time import within
from tests.decoding import decoded, fault

PADDING = [[number] for number in range(100_000)]


def timed(model: Any, body: bytes) -> str:
    return within(1, lambda: fault(model, body))


@pytest.mark.parametrize("strict", [False, True])
def test_missing_fields_do_not_copy_the_body(*, strict: bool) -> None:
    fields: Any = {f"f{number}": (int, ...) for number in range(20)}
    model = pydantic.create_model("Wide", __config__=ConfigDict(strict=strict), **fields)
    body = msgspec.json.encode({"padding": PADDING})
    assert timed(model, body) == "missing f0, and 19 more"
    assert timed(list[model], b"[%s]" % body).startswith("missing [0].f0, and")  # type: ignore[valid-type]


def test_many_missing_fields_do_not_copy_a_smaller_body() -> None:
    fields: Any = {f"f{number}": (int, ...) for number in range(500)}
    body = msgspec.json.encode({"padding": PADDING[:25_000]})
    assert len(body) < 250_000
    assert timed(pydantic.create_model("Wide", **fields), body) == "missing f0, and 499 more"


class Item(BaseModel):
    price: Decimal
    items: "list[Item]" = []


def test_only_the_first_wrong_item_of_a_large_array_is_reported() -> None:
    ones = b"[%s1]" % (b"1," * 500_000)
    assert timed(list[Item], ones) == "[0]: expected object, got int"
    nested = b'{"price": 1, "items": %s}' % ones
    assert timed(Item, nested) == "items[0]: expected object, got int"


def test_the_wrong_members_of_a_large_object_are_only_counted() -> None:
    body = msgspec.json.encode({f"k{number}": 1 for number in range(100_000)})
    assert timed(dict[str, Item], body) == "100000 fields do not fit the model"


def test_a_long_key_over_a_long_array_is_named_once() -> None:
    body = b'{"%s": [%sNaN]}' % (b"k" * 400_000, b"1," * 200_000)
    assert timed(None, body) == f"{'k' * 80}…[200000]: NaN is not JSON"


def test_a_deep_field_is_named_by_both_ends_of_its_path() -> None:
    text = fault(None, b'{"a":' * 500 + b"NaN" + b"}" * 500)
    assert text.endswith("a.a: NaN is not JSON")
    assert len(text) < 300


def test_the_decoder_names_the_byte_of_a_syntax_error_in_a_large_body() -> None:
    body = b"[%sNaN]" % (b"1," * 1_000_000)
    assert timed(None, body) == "JSON is malformed: invalid character (byte 2000001)"


class Odd:
    """A class that pydantic makes from JSON only."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: Callable[[object], object]
    ) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_plain_validator_function(lambda value: cls()),
            python_schema=core_schema.is_instance_schema(cls),
        )


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: dt.datetime
    day: dt.date
    price: Decimal
    pair: tuple[int, str]
    tags: set[str]
    odd: Odd
    path: Path
    sequence: Sequence[int]
    mapping: Mapping[str, int]
    padding: list[list[int]]


class Lax(Strict):
    model_config = ConfigDict(strict=False)


PAYLOAD = {
    "at": "2026-01-01T00:00:00Z",
    "day": "2026-01-01",
    "price": "0.1234567890123456789",
    "pair": [1, "a"],
    "tags": ["a", "b"],
    "odd": 1,
    "path": "/tmp",  # noqa: S108 - no file is opened
    "sequence": [1, 2],
    "mapping": {"a": 1},
    "padding": PADDING,
}


@pytest.mark.parametrize("model", [Strict, Lax])
def test_a_large_payload_is_decoded_like_a_small_one(model: Any) -> None:
    large = decoded(model, msgspec.json.encode(PAYLOAD))
    small = decoded(model, msgspec.json.encode({**PAYLOAD, "padding": []}))
    assert large.padding == PADDING
    assert large.price == Decimal("0.1234567890123456789")
    for name in set(PAYLOAD) - {"odd", "padding"}:
        assert getattr(large, name) == getattr(small, name)


def test_a_strict_model_is_strict_with_a_large_payload() -> None:
    body = msgspec.json.encode({**PAYLOAD, "pair": ["1", "a"]})
    assert fault(Strict, body) == "pair[0]: expected int, got str"
    assert decoded(Lax, body).pair == (1, "a")


def test_errors_of_a_strict_model_that_are_too_many_are_counted() -> None:
    class Numbers(BaseModel):
        model_config = ConfigDict(strict=True)
        numbers: list[int]

    body = msgspec.json.encode({"numbers": ["1"] * 100_000})
    assert timed(Numbers, body) == "100000 fields do not fit the model"


def test_the_installed_pydantic_can_check_decoded_documents() -> None:
    """Catch a release that changes the schema or the option that the quick check needs."""
    validator = pydantic.TypeAdapter(int).validator
    assert type(validator)({"type": "int"}, _use_prebuilt=False).validate_python(1) == 1  # type: ignore[call-arg]
