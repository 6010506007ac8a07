"""What a model checks itself is reported with the field, in one form."""

import dataclasses
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, TypeVar

import annotated_types
import attrs
import msgspec
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from tests.cpu_time import within
from tests.decoding import decoded, fault, get

T = TypeVar("T")


# Constraints, validators and code.


class StructLimits(msgspec.Struct, forbid_unknown_fields=True):
    amount: Annotated[int, msgspec.Meta(ge=1)] = 1
    name: Annotated[str, msgspec.Meta(max_length=2, pattern="^a")] = "a"
    lines: Annotated[list[int], msgspec.Meta(max_length=2)] = []


class PydanticLimits(BaseModel):
    model_config = ConfigDict(extra="forbid")
    amount: int = Field(1, ge=1)
    name: str = Field("a", max_length=2, pattern="^a")
    lines: Annotated[list[int], annotated_types.MaxLen(2)] = []


BROKEN_LIMITS: list[tuple[bytes, str]] = [
    (b'{"amount": 0}', "amount: expected int >= 1"),
    (b'{"name": "ahunter"}', "name: expected str of length <= 2"),
    (b'{"name": "b"}', "name: expected str matching regex '^a'"),
    (b'{"lines": [1, 2, 3]}', "lines: expected array of length <= 2"),
    (b'{"extra": "hunter"}', "unexpected extra"),
    (b'{"%s": 1}' % (b"x" * 1000), f"unexpected {'x' * 80}…"),
]


def test_a_constraint_is_named(subtests: pytest.Subtests) -> None:
    for model in (StructLimits, PydanticLimits):
        for body, expected in BROKEN_LIMITS:
            with subtests.test(model=model, body=body):
                assert fault(model, body) == expected


def test_a_dataclass_may_have_constraints_of_pydantic() -> None:
    @dataclasses.dataclass
    class Order:
        amount: Annotated[int, Field(gt=0)]
        count: pydantic.PositiveInt = 1

    assert decoded(Order, b'{"amount": 2}') == Order(2, 1)
    assert fault(Order, b'{"amount": 0}') == "amount: expected int > 0"
    assert fault(Order, b'{"amount": 1, "count": 0}') == "count: expected int > 0"


def test_a_dataclass_may_have_a_default_of_pydantic() -> None:
    @dataclasses.dataclass
    class Order:
        amount: int = Field(default=1, lt=9)

    assert decoded(Order, b"{}").amount == 1
    assert fault(Order, b'{"amount": 9}') == "amount: expected int < 9"


@dataclasses.dataclass
class PostInitDataclass:
    plan: str

    def __post_init__(self) -> None:
        if self.plan != "pro":
            raise ValueError(f"no plan {self.plan} (or '{self.plan}')")


class PostInitStruct(msgspec.Struct):
    plan: str

    def __post_init__(self) -> None:
        if self.plan != "pro":
            raise TypeError(f"no plan {self.plan} (or '{self.plan}')")


@dataclasses.dataclass
class AssertingDataclass:
    plan: str

    def __post_init__(self) -> None:
        assert self.plan == "pro", f"no plan {self.plan} (or '{self.plan}')"


@attrs.define
class PostInitAttrs:
    plan: str

    def __attrs_post_init__(self) -> None:
        if self.plan != "pro":
            raise ValueError(f"no plan {self.plan} (or '{self.plan}')")


class RootValidator(BaseModel):
    plan: str

    @pydantic.model_validator(mode="after")
    def check(self) -> "RootValidator":
        if self.plan != "pro":
            raise ValueError(f"no plan {self.plan} (or '{self.plan}')")
        return self


class AssertingValidator(BaseModel):
    plan: str

    @pydantic.model_validator(mode="after")
    def check(self) -> "AssertingValidator":
        assert self.plan == "pro", f"no plan {self.plan} (or '{self.plan}')"
        return self


CHECKED: list[Any] = [
    PostInitDataclass,
    PostInitStruct,
    AssertingDataclass,
    PostInitAttrs,
    RootValidator,
    AssertingValidator,
]


def test_the_message_of_a_models_own_check_is_the_users_text(subtests: pytest.Subtests) -> None:
    for model in CHECKED:
        with subtests.test(model.__name__):
            assert get(decoded(model, b'{"plan": "pro"}'), "plan") == "pro"
            text = "no plan the free (or '…' (8 characters))"
            assert fault(model, b'{"plan": "the free"}').removesuffix(" …") == text
            assert fault(model, b'{"plan": "a\\nb"}') == "no plan a …"
            assert "no plan [redacted] (or" in fault(model, b'{"plan": "sk_live_123456"}')
            assert len(fault(model, b'{"plan": "%s"}' % (b"x " * 500_000))) < 600


@pytest.mark.parametrize("model", [PostInitStruct, AssertingDataclass, AssertingValidator])
def test_a_models_own_check_of_a_form_is_the_users_text(model: Any) -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    text = fault(model, b"plan=the+free", **form)
    assert text.removesuffix(" …") == "no plan the free (or '…' (8 characters))"


def test_a_check_of_the_models_own_is_found_where_it_is() -> None:
    for model in (PostInitStruct, RootValidator):
        assert fault(list[model], b'[{"plan": "a"}]').startswith("[0]: no plan a (")  # type: ignore[valid-type]


def test_a_value_cannot_forge_the_path_of_a_check() -> None:
    forged = b'{"plan": "a - at `$.x`"}'
    text = "no plan a - at `$.x` (or '…' (12 characters))"
    assert fault(PostInitStruct, forged) == text
    assert fault(list[PostInitStruct], b"[%s]" % forged) == f"[0]: {text}"


class TailStruct(msgspec.Struct):
    plan: str

    def __post_init__(self) -> None:
        raise ValueError(f"no {self.plan}")


def test_a_value_at_the_end_of_a_message_cannot_forge_the_path() -> None:
    assert fault(TailStruct, b'{"plan": "a - at `$.x`"}') == "no a - at `$.x`"


def test_the_time_of_a_failed_check_does_not_grow_with_the_square_of_the_body() -> None:
    class Order(BaseModel):
        items: list[str]

        @pydantic.model_validator(mode="after")
        def check(self) -> "Order":
            raise ValueError(f"too many items: {self.items}")

    body = msgspec.json.encode({"items": [f"v{number}" for number in range(100_000)]})
    assert within(2, lambda: fault(Order, body)).startswith("too many items: ['…' (")


def test_validators_of_attrs_run() -> None:
    @attrs.define
    class Order:
        amount: int = attrs.field(validator=attrs.validators.gt(0))
        name: str = attrs.field(default="", validator=attrs.validators.max_len(3))
        text: Any = attrs.field(default="", validator=attrs.validators.instance_of(str))

    assert decoded(Order, b'{"amount": 1}') == Order(1)
    assert fault(Order, b'{"amount": -5}') == "'amount' must be > 0: … (2 characters)"
    assert fault(list[Order], b'[{"amount": -5}]').startswith("[0]: 'amount' must be > 0: …")
    assert fault(Order, b'{"amount": 1, "name": "long"}').startswith("Length of 'name' must be <=")
    assert fault(Order, b'{"amount": 1, "text": 7}').startswith("'text' must be <class 'str'>")


@pytest.mark.parametrize("kind", ["plan", "greater_than"])
def test_a_custom_error_of_pydantic_is_named_by_its_type(kind: Any) -> None:
    class Order(BaseModel):
        plan: str

        @pydantic.field_validator("plan")
        @classmethod
        def check(cls, plan: str) -> str:
            raise PydanticCustomError(kind, "no {plan} here", {"plan": plan})

    assert fault(Order, b'{"plan": "hunter"}') == f"plan: invalid ({kind})"


PYDANTIC_ERRORS: list[tuple[Any, str, str]] = [
    (pydantic.ByteSize, "12 hunter", "invalid (byte_size_unit)"),
    (pydantic.Base64Bytes, "hunter", "invalid (base64_decode)"),
    (pydantic.FilePath, "/hunter", "invalid (path_not_file)"),
    (pydantic.ImportString, "hunter.x", "invalid (import_error)"),
    (pydantic.PastDate, "2999-01-01", "invalid (date_past)"),
    (pydantic.HttpUrl, "http://hunter:999999", "invalid url"),
    (pydantic.Json, "hunter", "not JSON"),
]


def faults_in_field_and_root(model: Any, value: str) -> tuple[str, str]:
    class Order(BaseModel):
        field: model

    in_field = fault(Order, msgspec.json.encode({"field": value}))
    return in_field, fault(pydantic.RootModel[model], msgspec.json.encode(value))


def test_the_messages_of_pydantic_itself_do_not_appear(subtests: pytest.Subtests) -> None:
    for model, value, expected in PYDANTIC_ERRORS:
        with subtests.test(model=model):
            assert faults_in_field_and_root(model, value) == (f"field: {expected}", expected)


# Where pydantic reports an error.


class Card(BaseModel):
    type: Literal["card"]
    number: int
    card: dict[str, Any] = {}


class Bank(BaseModel):
    type: Literal["bank"]
    iban: str = Field(alias="IBAN")


class Payment(BaseModel):
    method: Annotated[Card | Bank, Field(discriminator="type")]
    other: Card | Bank | None = None
    size: int | list[int] = 0


PAYMENT_FAULTS: list[tuple[bytes, str]] = [
    (b'{"method": {}}', "missing method.type"),
    (b'{"method": {"type": "hunter"}}', "method.type: not an allowed value"),
    (b'{"method": {"type": "card"}}', "missing method.number"),
    (b'{"method": {"type": "card", "card": {}}}', "missing method.number"),
    (
        b'{"method": {"type": "card", "number": "hunter"}}',
        "method.number: expected int, got str",
    ),
    (b'{"method": {"type": "bank"}}', "missing method.IBAN"),
    (
        b'{"method": {"type": "card", "number": 1}, "other": {"type": "card"}}',
        "missing other.number, and 2 more",
    ),
    (
        b'{"method": {"type": "card", "number": 1}, "size": {}}',
        "size: expected int | array, got object",
    ),
    (
        b'{"method": {"type": "card", "number": 1}, "size": ["hunter"]}',
        "size: expected int, got array, and 1 more",
    ),
    (b'{"size": "hunter"}', "missing method, and 1 more"),
]


def test_a_union_of_pydantic_is_no_part_of_the_path(subtests: pytest.Subtests) -> None:
    for body, expected in PAYMENT_FAULTS:
        with subtests.test(body=body):
            assert fault(Payment, body) == expected


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (int | Annotated[int, Field(gt=3)], b'"hunter"', "expected int, got str"),
        (int | Literal["a"], b'"hunter"', "not an allowed value"),
        (int | Annotated[str, Field(max_length=2)], b'"hunter"', "expected str of length <= 2"),
    ],
)
def test_a_union_at_one_place_has_one_fault(model: Any, body: bytes, expected: str) -> None:
    assert fault(pydantic.RootModel[model], body) == expected


class Basket(BaseModel):
    sizes: list[int]


def test_an_index_is_read_in_its_own_array() -> None:
    body = b'[{"sizes": [1, 2, "hunter"]}]'
    assert fault(list[Basket], body) == "[0].sizes[2]: expected int, got str"


def test_all_errors_of_a_large_body_are_counted() -> None:
    words = "[0]: expected object, got int, and 2000 more"
    assert fault(list[Card], b"[%s1]" % (b"1," * 2_000)) == words


# Types that contain models, and models in odd places.


class StructItem(msgspec.Struct):
    price: Decimal


class PydanticItem(BaseModel):
    price: Decimal


class Wrapped(msgspec.Struct, Generic[T]):
    data: T


class PydanticWrapped(BaseModel, Generic[T]):
    data: T


class Pair(NamedTuple):
    first: int
    second: PydanticItem


@dataclasses.dataclass
class Node:
    value: int
    next: "Node | None" = None


class PydanticNode(BaseModel):
    value: int
    next: "PydanticNode | None" = None


NESTED_FAULTS: list[tuple[Any, bytes, str]] = [
    (Wrapped[StructItem], b'{"data": {}}', "missing data.price"),
    (PydanticWrapped[PydanticItem], b'{"data": {}}', "missing data.price"),
    (list[PydanticItem], b"[{}]", "missing [0].price"),
    (dict[str, PydanticItem], b'{"hunter": {}}', "missing [...].price"),
    (PydanticItem | int, b'"hunter"', "expected object | int, got str"),
    (Pair, b'[1, {"price": []}]', "[1].price: expected decimal, got array"),
    (Node, b'{"value": 1, "next": {"value": "x"}}', "next.value: expected int, got str"),
    (
        PydanticNode,
        b'{"value": 1, "next": {"value": "x"}}',
        "next.value: expected int, got str",
    ),
    (dict[str, object], b"[]", "expected object, got array"),
]


def test_models_are_found_inside_other_types(subtests: pytest.Subtests) -> None:
    for model, body, expected in NESTED_FAULTS:
        with subtests.test(model=model):
            assert fault(model, body) == expected


@dataclasses.dataclass
class Page(Generic[T]):
    item: PydanticItem
    data: T


ITEM = PydanticItem(price=Decimal(1))
ItemName = NewType("ItemName", PydanticItem)
ItemAlias = TypeAliasType("ItemAlias", list[PydanticItem])


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (list[ItemName], b'[{"price": "1"}]', [PydanticItem(price=Decimal(1))]),
        (ItemAlias, b'[{"price": "1"}]', [PydanticItem(price=Decimal(1))]),
        (
            Page[int],
            b'{"item": {"price": "1"}, "data": 2}',
            Page(PydanticItem(price=Decimal(1)), 2),
        ),
    ],
)
def test_models_of_pydantic_are_found_behind_other_names(
    model: Any, body: bytes, expected: Any
) -> None:
    assert decoded(model, body) == expected


def test_a_struct_may_have_a_pydantic_model_in_a_class_variable() -> None:
    class Order(msgspec.Struct):
        items: ClassVar[dict[str, PydanticItem]] = {}
        amount: int

    assert decoded(Order, b'{"amount": 1}') == Order(1)


def test_a_dataclass_may_contain_a_pydantic_model() -> None:
    @dataclasses.dataclass
    class Order:
        item: PydanticItem

    assert decoded(Order, b'{"item": {"price": 1}}') == Order(PydanticItem(price=Decimal(1)))
    assert fault(Order, b'{"item": {}}') == "missing item.price"
