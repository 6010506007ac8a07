"""Models: the types that a payload can be decoded into, checked when a handler is defined."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, get_origin

import msgspec

from onceward.errors import ConfigurationError
from onceward.work.payloads.decoders.decoder import Decoder
from onceward.work.payloads.decoders.msgspec_decoder import UNCHECKED, MsgspecDecoder
from onceward.work.payloads.decoders.pydantic_decoder import PydanticDecoder
from onceward.work.payloads.decoders.pydantic_schema import opaque_parts
from onceward.work.payloads.model_tree import ModelTree, library, read_tree, type_name

USE: Final = "use a dataclass, a msgspec.Struct, an attrs class, a TypedDict or a pydantic 2 model"

_DEFINE: Final = "define all its types at the top of a module"
_NO_SCHEMA: Final = re.compile(r"Unable to generate .* for <class '(?:.*\.)?(?P<name>[^'.]+)'>")
_JSON_CLASSES: Final = (dict, list, str, int, float, bool, type(None))


class _Refused(Exception):
    """Nothing can be decoded into a model. The text gives the reason and the fix."""


def make_decoder(model: Any) -> Decoder:
    """Return the decoder for a model. Raise ConfigurationError if nothing can be decoded into it.

    pydantic decodes each model that contains a part of pydantic, and msgspec the others.
    """
    if model is None:
        return UNCHECKED
    _check_is_type(model)
    try:
        tree = read_tree(model)
        _check_version(tree)
        return _pydantic_decoder(model, tree) if tree.pydantic else _msgspec_decoder(model, tree)
    except _Refused as refused:
        text = f"a payload cannot be decoded into {type_name(model)}: {refused}"
        raise ConfigurationError(text) from refused.__cause__


def _check_is_type(model: Any) -> None:
    if isinstance(model, str):
        raise ConfigurationError(f"the model is the string {model!r}; pass the class itself")
    if isinstance(model, type) or get_origin(model) is not None:
        return
    if type(model).__module__ not in {"types", "typing", "typing_extensions"}:
        name = type_name(model)
        raise ConfigurationError(f"the model is an instance of {name}; pass the class itself")


def _check_version(tree: ModelTree) -> None:
    if tree.pydantic_1:
        raise _Refused(f"{type_name(tree.pydantic_1)} is a pydantic 1 model; {USE}")


def _in_field(place: str) -> str:
    return f" (in {place})" if "." in place else ""


# With msgspec.


def _msgspec_decoder(model: Any, tree: ModelTree) -> Decoder:
    if tree.text:
        raise _Refused(f"{tree.text!r} in it is a string; write the class itself")
    if tree.unresolved:
        raise _Refused(f"{tree.unresolved[0]}; {_DEFINE}")
    if tree.constraint:
        name = type_name(tree.constraint)
        raise _Refused(f"msgspec does not check {name}; use msgspec.Meta, or a pydantic 2 model")
    try:
        decoder = MsgspecDecoder(model)
        info = msgspec.inspect.type_info(model)
    except Exception as error:
        reason = str(error).replace("`", "")
        raise _Refused(f"{reason}; change it, or use a pydantic 2 model") from error
    for place, part in _walk_info(info):
        _check_part(place, part)
    return decoder


def _walk_info(info: msgspec.inspect.Type) -> Iterator[tuple[str, msgspec.inspect.Type]]:
    """Yield each type in a type, with the field that has it."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", info)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, tuple):
            waiting += [(place, item) for item in reversed(part)]
        elif isinstance(part, msgspec.inspect.Field):
            waiting.append((f"{place}.{part.name}", part.type))
        elif isinstance(part, msgspec.inspect.Type) and id(part) not in seen:
            seen.add(id(part))
            yield place, part
            inner = type_name(part.cls) if hasattr(part, "cls") else place
            waiting += [(inner, getattr(part, name)) for name in part.__struct_fields__]


def _check_part(place: str, part: msgspec.inspect.Type) -> None:
    if isinstance(part, msgspec.inspect.CustomType) and not _accepts_json(part.cls):
        raise _Refused(
            f"msgspec does not know the class {type_name(part.cls)}{_in_field(place)}; {USE}"
        )
    for attribute in getattr(getattr(part, "cls", None), "__attrs_attrs__", ()):
        if attribute.converter is not None:
            name = f"{type_name(part.cls)}.{attribute.name}"  # type: ignore[attr-defined]
            raise _Refused(
                f"{name} has a converter, which msgspec does not run; "
                "convert in __attrs_post_init__, or use a pydantic 2 model"
            )


def _accepts_json(cls: type) -> bool:
    """Return whether a decoded JSON value can be an instance of a class, as of ``object``."""
    try:
        return any(issubclass(json, cls) for json in _JSON_CLASSES)
    except TypeError:  # a Protocol that cannot be checked at run time
        return False


# With pydantic.


def _pydantic_decoder(model: Any, tree: ModelTree) -> Decoder:
    foreign = tree.unknown_to_pydantic
    try:
        _complete(tree)
        decoder = PydanticDecoder(model)
    except Exception as error:
        raise (_mixture(tree) if foreign else _Refused(_pydantic_reason(error))) from error
    opaque = next(opaque_parts(decoder.schema), None)
    if isinstance(foreign, msgspec.Meta) or (foreign and opaque):
        raise _mixture(tree)
    if opaque:
        place, name = opaque
        raise _Refused(f"pydantic cannot make {name} from JSON{_in_field(place)}; {USE}")
    return decoder


def _complete(tree: ModelTree) -> None:
    """Resolve names that were defined after their models; pydantic before 2.10 does not."""
    for part in tree.types:
        if hasattr(part, "model_rebuild"):
            with suppress(AttributeError):  # BaseModel itself has nothing to resolve
                part.model_rebuild(raise_errors=False)


def _mixture(tree: ModelTree) -> _Refused:
    first, second = (
        f"{type_name(part)} ({library(part)})" for part in (tree.unknown_to_pydantic, tree.pydantic)
    )
    return _Refused(f"{first} does not work with {second}; declare both with one library")


def _pydantic_reason(error: Exception) -> str:
    if isinstance(error, NameError) or getattr(error, "code", "") == "class-not-fully-defined":
        return f"it names a type that is not defined; {_DEFINE}"
    reason = str(error).partition("\n")[0].replace("`", "")
    if found := _NO_SCHEMA.match(reason):
        return f"pydantic does not know the class {found['name']}; {USE}"
    return reason.rstrip(".")
