"""The types and annotations that a model is made of, whichever library declares it."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    ForwardRef,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

_CHECKED_BY_PYDANTIC: Final = {"pydantic", "annotated_types"}
_PYDANTIC_MARKS: Final = (
    "__get_pydantic_core_schema__",
    "__pydantic_fields__",
    "__pydantic_config__",
)
_MODULE_PREFIX: Final = re.compile(r"(?:[\w<>]+\.)+(?=\w)")


@dataclass(slots=True)
class ModelTree:
    """The types in a model, their metadata, and the reasons why annotations cannot be read."""

    types: list[Any] = field(default_factory=list)
    metadata: list[Any] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)

    @property
    def pydantic(self) -> Any:
        """A part that only pydantic understands, or None."""
        return next((part for part in self._parts() if _is_pydantic(part)), None)

    @property
    def pydantic_1(self) -> Any:
        """A class of pydantic 1, or None."""
        return next((part for part in self.types if _is_pydantic_1(part)), None)

    @property
    def unknown_to_pydantic(self) -> Any:
        """A part that pydantic refuses or ignores, or None."""
        return next((part for part in self._parts() if _is_unknown_to_pydantic(part)), None)

    @property
    def constraint(self) -> Any:
        """A constraint that msgspec ignores, or None."""
        return next((part for part in self.metadata if library(part) == "annotated_types"), None)

    @property
    def text(self) -> str | None:
        """A type that is written as a string which nothing resolves, or None."""
        for part in self.types:
            if isinstance(part, str | ForwardRef):
                return part if isinstance(part, str) else part.__forward_arg__
        return None

    def _parts(self) -> Iterator[Any]:
        yield from self.types
        yield from self.metadata


def read_tree(model: Any) -> ModelTree:
    """Return the tree of a model."""
    tree = ModelTree()
    seen: set[int] = set()
    waiting = [model]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))  # the list keeps the object, so that no other gets its id
            tree.types.append(part)
            waiting += _parts_of(part, tree)
    return tree


def type_name(model: Any) -> str:
    """Return a type as a user writes it, and an object by the name of its type only."""
    if isinstance(model, type) and get_origin(model) is None:
        return model.__name__
    if isinstance(model, str):
        return repr(model)
    if get_origin(model) is not None or type(model).__module__ in {"typing", "typing_extensions"}:
        return _MODULE_PREFIX.sub("", repr(model))
    return type(model).__name__


def library(part: Any) -> str:
    """Return the library that gives a class or an annotation its meaning."""
    if hasattr(part, "__attrs_attrs__"):
        return "attrs"
    if _is_struct(part):
        return "msgspec"
    if any(hasattr(part, mark) for mark in _PYDANTIC_MARKS):
        return "pydantic"
    origin = part if isinstance(part, type) else type(part)
    name = str(origin.__module__).partition(".")[0]
    return "pydantic" if name == "pydantic_core" else name


def _is_pydantic(part: Any) -> bool:
    is_loaded = "pydantic" in sys.modules
    return is_loaded and library(part) in _CHECKED_BY_PYDANTIC and not _is_pydantic_1(part)


def _is_pydantic_1(part: Any) -> bool:
    if not isinstance(part, type) or hasattr(part, "__get_pydantic_core_schema__"):
        return False
    return hasattr(part, "__pydantic_model__") or any(
        base.__name__ == "BaseModel" and library(base) == "pydantic" for base in part.__mro__
    )


def _is_unknown_to_pydantic(part: Any) -> bool:
    if isinstance(part, msgspec.Meta):
        return True
    is_foreign = library(part) in {"attrs", "msgspec"} and isinstance(part, type)
    return is_foreign and not hasattr(part, "__get_pydantic_core_schema__")


def _is_struct(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, msgspec.Struct)


def _parts_of(part: Any, tree: ModelTree) -> list[Any]:
    """Return the types that a type directly consists of; add its annotations to the tree."""
    origin = get_origin(part)
    if origin in {Literal, ClassVar}:
        return []
    if origin is Annotated:
        tree.metadata += part.__metadata__
        return [part.__origin__]
    if origin is not None:
        return [origin, *get_args(part)]
    for aliased in ("__value__", "__supertype__"):  # of a type alias and of a NewType
        if not isinstance(part, type) and hasattr(part, aliased):
            return [getattr(part, aliased)]
    return _field_types(part, tree) if isinstance(part, type) else []


def _field_types(owner: type, tree: ModelTree) -> list[Any]:
    fields = getattr(owner, "__pydantic_fields__", None) or getattr(owner, "model_fields", None)
    if isinstance(fields, dict):
        tree.metadata += [note for entry in fields.values() for note in entry.metadata]
        return [entry.annotation for entry in fields.values()]
    if dataclasses.is_dataclass(owner):
        tree.metadata += [entry.default for entry in dataclasses.fields(owner)]
    elif not _has_fields(owner):
        return []
    try:
        return list(get_type_hints(owner, include_extras=True).values())
    except Exception as error:  # noqa: BLE001 - annotations are user code
        tree.unresolved.append(f"the annotations of {owner.__name__} cannot be read ({error})")
        return []


def _has_fields(owner: type) -> bool:
    is_named_tuple = issubclass(owner, tuple) and hasattr(owner, "_fields")
    return (
        _is_struct(owner)
        or is_named_tuple
        or hasattr(owner, "__required_keys__")
        or hasattr(owner, "__attrs_attrs__")
    )
