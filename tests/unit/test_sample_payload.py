"""The request that the banner suggests fits the model of its handler."""

import dataclasses
import datetime as dt
from typing import Any, Literal

import attrs
import msgspec
import pytest
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from onceward.cli._sample_payload import sample_payload
from onceward.work.payloads.models import make_decoder


class StructLine(msgspec.Struct):
    amount: int


class StructOrder(msgspec.Struct):
    order_id: str
    kind: Literal["a", "b"]
    line: StructLine
    lines: list[StructLine]
    paid: bool | None
    note: str = ""


@dataclasses.dataclass
class DataclassOrder:
    order_id: str
    line: StructLine


@attrs.define
class AttrsOrder:
    order_id: str
    line: StructLine


class ModelLine(BaseModel):
    amount: int


class ModelOrder(BaseModel):
    order_id: str
    kind: Literal["a", "b"]
    line: ModelLine
    at: dt.datetime
    lines: list[ModelLine]
    paid: bool | None
    note: str = ""


class DictOrder(TypedDict):
    order_id: str
    line: ModelLine


class StructComment(msgspec.Struct):
    comment_id: str
    parent: "StructComment | None"


class ModelComment(BaseModel):
    comment_id: str
    parent: "ModelComment | None"


class EndlessComment(BaseModel):
    parent: "EndlessComment"


def test_a_sample_fits_its_model(subtests: pytest.Subtests) -> None:
    for model in (StructOrder, DataclassOrder, AttrsOrder, ModelOrder, DictOrder, ModelOrder | int):
        with subtests.test(model=model):
            decoder = make_decoder(model)
            payload = sample_payload(decoder)
            assert payload["order_id"] == "order_123"
            assert payload["line"] == {"amount": 123}
            assert "note" not in payload
            decoder.decode_json(msgspec.json.encode(payload))


def test_a_model_without_fields_has_an_empty_sample(subtests: pytest.Subtests) -> None:
    for model in (None, Any, dict[str, object], dict):
        with subtests.test(model=model):
            assert sample_payload(make_decoder(model)) == {}


@pytest.mark.parametrize("model", [StructComment, ModelComment])
def test_a_model_that_contains_itself_ends_where_it_can(model: Any) -> None:
    decoder = make_decoder(model)
    payload = sample_payload(decoder)
    assert payload == {"comment_id": "comment_123", "parent": None}
    decoder.decode_json(msgspec.json.encode(payload))


def test_a_model_that_no_payload_fits_has_an_empty_sample() -> None:
    assert sample_payload(make_decoder(EndlessComment)) == {}


def test_a_schema_of_the_users_own_may_be_unusable() -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(json_schema_extra={"required": ["missing"]})

    assert sample_payload(make_decoder(Odd)) == {}


class StructNode(msgspec.Struct):
    name: str
    next: "StructNode | None"
    children: "list[StructNode]"


class ModelNode(BaseModel):
    name: str
    next: "ModelNode | None"
    children: "list[ModelNode]"


@pytest.mark.parametrize("model", [StructNode, ModelNode])
def test_the_sample_of_a_recursive_model_ends(model: Any) -> None:
    decoder = make_decoder(model)
    payload = sample_payload(decoder)
    assert payload == {"name": "name_123", "next": None, "children": []}
    decoder.decode_json(msgspec.json.encode(payload))


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/Missing"}, {"anyOf": [True]}, {"enum": 5}])
def test_an_odd_schema_has_an_empty_sample(schema: dict[str, Any]) -> None:
    class Odd:
        def json_schema(self) -> dict[str, Any]:
            return schema

    assert sample_payload(Odd()) == {}  # type: ignore[arg-type] # decodes nothing
