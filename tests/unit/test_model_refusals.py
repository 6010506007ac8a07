"""A model that nothing can be decoded into is refused when its handler is defined."""

import collections
import dataclasses
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, List, NamedTuple, Protocol, TypedDict  # noqa: UP035 - as users do

import annotated_types
import attrs
import msgspec
import pydantic.dataclasses
import pydantic.v1.dataclasses
import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict

from onceward import ConfigurationError, Event, Inbox
from onceward.work.payloads.models import USE, make_decoder


class Client:
    def __init__(self, name: str) -> None:
        self.name = name


class Struct(msgspec.Struct):
    amount: int


class Model(BaseModel):
    amount: int


@dataclasses.dataclass
class WithClient:
    clients: list[Client]


class TupleWithClient(NamedTuple):
    client: Client | None


class StructWithModel(msgspec.Struct):
    model: Model


@attrs.define
class AttrsWithModel:
    models: list[Model]


class ModelWithClient(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    clients: list[Client]


@pydantic.dataclasses.dataclass(config=ConfigDict(arbitrary_types_allowed=True))
class PydanticDataclassWithClient:
    client: Client


class ModelWithStruct(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    struct: Struct


class ModelWithMeta(BaseModel):
    amount: Annotated[int, msgspec.Meta(gt=0)]


class ModelWithFunction(BaseModel):
    callback: Callable[[int], int]


class StructWithConstraint(msgspec.Struct):
    amount: Annotated[int, annotated_types.Gt(0)]


class OldModel(pydantic.v1.BaseModel):
    amount: int


@pydantic.v1.dataclasses.dataclass
class OldDataclass:
    amount: int


class StructWithOldModel(msgspec.Struct):
    model: OldModel


@attrs.define
class WithConverter:
    amount: int = attrs.field(converter=int)


@dataclasses.dataclass
class WithInitVar:
    amount: dataclasses.InitVar[int]


class Unresolved(msgspec.Struct):
    amount: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class UnresolvedModel(BaseModel):
    amount: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class OtherStruct(msgspec.Struct):
    total: int


class HasAmount(Protocol):
    amount: int


REFUSED: list[tuple[Any, str]] = [
    (Client, f"into Client: msgspec does not know the class Client; {USE}"),
    (list[Client], "into list[Client]: msgspec does not know the class Client; use"),
    (WithClient, "into WithClient: msgspec does not know the class Client (in WithClient.clients)"),
    (TupleWithClient, "does not know the class Client (in TupleWithClient.client)"),
    (dict[str, Client], "into dict[str, Client]: msgspec does not know the class Client; use"),
    (collections.deque[int], "into deque[int]: msgspec does not know the class deque; use"),
    (HasAmount, "into HasAmount: msgspec does not know the class HasAmount; use"),
    (
        StructWithModel,
        "StructWithModel (msgspec) does not work with Model (pydantic); declare",
    ),
    (AttrsWithModel, "AttrsWithModel (attrs) does not work with Model (pydantic); declare"),
    (ModelWithStruct, "Struct (msgspec) does not work with ModelWithStruct (pydantic); declare"),
    (ModelWithMeta, "Meta (msgspec) does not work with ModelWithMeta (pydantic); declare"),
    (
        StructWithConstraint,
        "StructWithConstraint (msgspec) does not work with Gt (annotated_",
    ),
    (ModelWithClient, "pydantic cannot make Client from JSON (in ModelWithClient.clients); use"),
    (PydanticDataclassWithClient, "from JSON (in PydanticDataclassWithClient.client); use"),
    (ModelWithFunction, "cannot make a callable from JSON (in ModelWithFunction.callback); use"),
    (Model | Client, "into Model | Client: pydantic does not know the class Client; use"),
    (OldModel, f"into OldModel: OldModel is a pydantic 1 model; {USE}"),
    (OldDataclass, "into OldDataclass: OldDataclass is a pydantic 1 model; use"),
    (StructWithOldModel, "into StructWithOldModel: OldModel is a pydantic 1 model; use"),
    (WithConverter, "WithConverter.amount has a converter, which msgspec does not run; convert in"),
    (WithInitVar, "dataclasses with InitVar fields are not supported; change it, or use"),
    (Struct | OtherStruct, "all Struct types must be tagged"),
    (Unresolved, "(name 'Nowhere' is not defined); define all its types at the top of a module"),
    (UnresolvedModel, "names a type that is not defined; define all its types at the top of a"),
    ("Struct", "the model is the string 'Struct'; pass the class itself"),
    (Struct(1), "the model is an instance of Struct; pass the class itself"),
    (Model(amount=1), "the model is an instance of Model; pass the class itself"),
    (list["Struct"], "into list['Struct']: 'Struct' in it is a string; write the class itself"),
    (List["Struct"], "'Struct' in it is a string; write the class itself"),  # noqa: UP006
]


def test_a_model_that_cannot_work_is_refused_with_the_handler_and_the_fix(
    subtests: pytest.Subtests,
) -> None:
    for model, fault in REFUSED:
        with subtests.test(fault):

            def credit(event: Event[Any]) -> None:
                pass

            with pytest.raises(ConfigurationError) as refused:
                Inbox().on("paid", model=model)(credit)
            assert re.match(
                r"handler 'credit' \(tests/unit/test_model_refusals.py:\d+\): ", str(refused.value)
            )
            assert fault in str(refused.value)


def test_a_model_in_the_annotation_is_refused_too() -> None:
    def credit(event: Event[Client]) -> None:
        pass

    with pytest.raises(
        ConfigurationError, match=r"handler 'credit' .*: .* into Client: msgspec does"
    ):
        Inbox().on("paid")(credit)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads this TypedDict there")
def test_a_typed_dict_that_pydantic_cannot_read_is_refused() -> None:
    class Order(TypedDict):
        model: Model

    with pytest.raises(ConfigurationError, match=r"use typing_extensions\.TypedDict instead"):
        make_decoder(Order)


def test_a_constraint_that_msgspec_ignores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Order:
        amount: Annotated[int, annotated_types.Gt(0)]

    monkeypatch.delitem(sys.modules, "pydantic")
    with pytest.raises(ConfigurationError, match=r"does not check Gt; use msgspec\.Meta, or a pyd"):
        make_decoder(Order)


def test_a_pydantic_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pydantic.TypeAdapter, "validate_strings")
    monkeypatch.setattr(pydantic, "VERSION", "2.4")
    with pytest.raises(ConfigurationError, match=r"pydantic 2\.4 is too old; install 2\.5"):
        make_decoder(Model)


def test_every_fault_of_a_handler_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Inbox().on("", name="credit", model=Client, max_attempts=0)(lambda event: None)
    assert len(refused.value.faults) == 3


def test_a_model_that_can_work_is_accepted(subtests: pytest.Subtests) -> None:
    for model in (
        None,
        Any,
        object,
        dict,
        dict[str, object],
        list[Any],
        int | None,
        Struct,
        Model,
        BaseModel,
    ):
        with subtests.test(model=model):
            make_decoder(model)


def test_a_class_that_a_validator_builds_is_accepted() -> None:
    class Order(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        client: Annotated[Client, BeforeValidator(Client)]

    assert make_decoder(Order).decode_json(b'{"client": "a"}').client.name == "a"


# The model and the annotation.


@pytest.mark.parametrize(("model", "name"), [(OtherStruct, "OtherStruct"), ("Other", "'Other'")])
def test_a_model_that_contradicts_the_annotation_is_refused(model: Any, name: str) -> None:
    def credit(event: Event[Struct]) -> None:
        pass

    fault = rf"handler 'credit' .*: model={name} contradicts event: Event\[Struct\]; remove one"
    with pytest.raises(ConfigurationError, match=fault):
        Inbox().on("paid", model=model)(credit)


def test_a_model_that_agrees_with_the_annotation_is_accepted() -> None:
    class SubStruct(Struct):
        total: int = 0

    def same(event: Event[Struct]) -> None:
        pass

    def anything(event: Event[Any]) -> None:
        pass

    for function, model in ((same, Struct), (same, SubStruct), (anything, Struct)):
        inbox = Inbox("sqlite:///x.db")
        inbox.on("paid", model=model)(function)
        (handler,) = inbox.service().handlers.values()
        assert handler.model is model


def test_an_event_annotated_as_its_payload_is_refused(subtests: pytest.Subtests) -> None:
    for annotation in (Struct, Model, dict, dict[str, Any]):
        with subtests.test(annotation=annotation):

            def credit(event: Any) -> None:
                pass

            credit.__annotations__["event"] = annotation
            with pytest.raises(
                ConfigurationError, match=r"event is annotated as .*; write event: Event\["
            ):
                Inbox().on("paid")(credit)


def test_an_event_without_a_model_is_accepted(subtests: pytest.Subtests) -> None:
    for annotation in (Any, object, Event, Event[Any], Event[object], HasAmount):
        with subtests.test(annotation=annotation):

            def credit(event: Any) -> None:
                pass

            credit.__annotations__["event"] = annotation
            inbox = Inbox("sqlite:///x.db")
            inbox.on("paid")(credit)
            (handler,) = inbox.service().handlers.values()
            assert handler.model is None
