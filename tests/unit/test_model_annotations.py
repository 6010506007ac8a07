"""Models in annotations that Python keeps as strings, as this file's import makes it do."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
import msgspec
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from onceward import ConfigurationError, Event, Inbox
from onceward.work.payloads.models import make_decoder

if TYPE_CHECKING:
    from somewhere import Session  # type: ignore[import-not-found]

T = TypeVar("T")


def test_a_call_instead_of_brackets_is_refused_with_the_fix() -> None:
    async def book(event: Event(StructOrder)) -> None:  # type: ignore[valid-type]
        pass

    with pytest.raises(ConfigurationError) as refused:
        Inbox().on("a")(book)
    assert str(refused.value).endswith(
        "): Event(StructOrder) calls the class; write event: Event[StructOrder], with square "
        "brackets"
    )


class Envelope(msgspec.Struct, Generic[T]):
    data: T


class StructOrder(msgspec.Struct):
    lines: list[StructLine]


class StructLine(msgspec.Struct):
    amount: int


@dataclasses.dataclass
class DataclassOrder:
    lines: list[DataclassLine]


@dataclasses.dataclass
class DataclassLine:
    amount: int


@attrs.define
class AttrsOrder:
    lines: list[AttrsLine]


@attrs.define
class AttrsLine:
    amount: int


class DictOrder(TypedDict):
    lines: list[DictLine]


class DictLine(TypedDict):
    amount: int


class ModelOrder(BaseModel):
    lines: list[ModelLine]


class ModelLine(BaseModel):
    amount: int


def model_of(function: Any, **options: Any) -> Any:
    inbox = Inbox("sqlite:///x.db")
    inbox.on("paid", **options)(function)
    (handler,) = inbox.service().handlers.values()
    return handler.model


def test_a_model_may_refer_to_a_class_that_is_defined_later(subtests: pytest.Subtests) -> None:
    for order in (StructOrder, DataclassOrder, AttrsOrder, DictOrder, ModelOrder):
        with (
            subtests.test(order=order),
            pytest.raises(Exception, match=r"missing lines\[0\]\.amount"),
        ):
            make_decoder(order).decode_json(b'{"lines": [{}]}')


def test_the_model_of_an_annotation_is_resolved() -> None:
    def generic(event: Event[Envelope[StructOrder]]) -> None:
        pass

    def optional(event: Event[ModelOrder] | None) -> None:
        pass

    assert model_of(generic) == Envelope[StructOrder]
    assert model_of(optional) is ModelOrder


def test_another_annotation_may_be_unreadable() -> None:
    def credit(event: Event[StructOrder], session: Session = None) -> Session:
        pass

    assert model_of(credit) is StructOrder


def test_a_model_inside_a_function_is_passed_as_an_option() -> None:
    class Order(BaseModel):
        amount: int

    def credit(event: Event[Order]) -> None:
        pass

    fault = r"handler 'credit' .*: .*name 'Order' is not defined\); pass model="
    with pytest.raises(ConfigurationError, match=fault):
        model_of(credit)
    assert model_of(credit, model=Order) is Order


def test_a_model_whose_fields_are_inside_a_function_is_refused() -> None:
    class Line(msgspec.Struct):
        amount: int

    class Order(msgspec.Struct):
        lines: list[Line]

    with pytest.raises(ConfigurationError, match=r"name 'Line' is not defined.* at the top of a"):
        make_decoder(Order)


def test_an_annotation_that_is_no_python_is_refused() -> None:
    def credit(event: Any) -> None:
        pass

    credit.__annotations__["event"] = "Event["
    with pytest.raises(ConfigurationError, match="the annotation of event cannot be read"):
        model_of(credit)
