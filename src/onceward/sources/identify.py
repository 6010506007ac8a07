"""Where the id, the type and the reference are in a request.

Selectors are written as text, as in `onceward.sources.selectors`. Of a body only what is asked for
is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from onceward.errors import ConfigurationError, NoEventId
from onceward.model.events import Identity, invalid_text_reason
from onceward.sources.request import Request
from onceward.sources.selectors import (
    BODY_HASH,
    HeaderSelector,
    JsonSelector,
    Selector,
    parse_selectors,
    struct_field_name,
)

Alternatives = tuple[Selector, ...]
"""Selectors of which the first that is there counts."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """Why a selector leads to no usable text, or why a body cannot be decoded."""

    reason: str
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class IdentitySelectors:
    """Where a source's requests keep their id, type and reference."""

    id: tuple[Alternatives, ...]
    type: tuple[Alternatives, ...]
    reference: Alternatives | None
    has_hash_fallback: bool
    """Whether the body's hash stands for an id that is not there."""
    decoder: msgspec.json.Decoder[Any] | None
    """Decodes what is asked for of a body; None where nothing is."""


def parse_identity_selectors(
    id: Sequence[str], type: Sequence[str], reference: str | None, *, is_batch: bool = False
) -> IdentitySelectors:
    """Read selectors from their texts. Raises ConfigurationError with every fault found.

    Where an id has several parts, and where a request holds several events (`is_batch`), an id that
    is not there is no reason to refuse what was signed.
    """
    texts = [*id, *type] if reference is None else [*id, *type, reference]
    parsed: dict[str, Alternatives] = {}
    faults: list[str] = [] if id else ["it has no place for the id"]
    for text in texts:
        try:
            parsed[text] = parse_selectors(text)
        except ConfigurationError as error:
            faults.extend(error.faults)
    selectors = [selector for alternatives in parsed.values() for selector in alternatives]
    paths = list(dict.fromkeys(it.path for it in selectors if isinstance(it, JsonSelector)))
    faults.extend(_overlap_faults(paths))
    if faults:
        raise ConfigurationError(faults)
    return IdentitySelectors(
        id=tuple(parsed[text] for text in id),
        type=tuple(parsed[text] for text in type),
        reference=None if reference is None else parsed[reference],
        has_hash_fallback=is_batch or len(id) > 1,
        decoder=msgspec.json.Decoder(_body_struct(paths)) if paths else None,
    )


def _overlap_faults(paths: Iterable[tuple[str, ...]]) -> list[str]:
    """A selector inside another can never be read together with it."""
    all_paths = set(paths)
    return [
        f"json:{'.'.join(path)} lies inside json:{'.'.join(path[:length])}; one of them is wrong"
        for path in sorted(all_paths)
        for length in range(1, len(path))
        if path[:length] in all_paths
    ]


def _body_struct(paths: Iterable[tuple[str, ...]]) -> type[msgspec.Struct]:
    """A struct that holds what the paths lead to and lets the rest of a body pass undecoded."""
    inner_paths: dict[str, list[tuple[str, ...]]] = {}
    for name, *rest in paths:
        inner_paths.setdefault(name, []).append(tuple(rest))
    fields: list[tuple[str, Any, Any]] = [
        (struct_field_name(name), _body_struct(inner) | None, None)
        if any(inner)
        else (struct_field_name(name), Any, msgspec.UNSET)
        for name, inner in inner_paths.items()
    ]
    return msgspec.defstruct(
        "Body", fields, rename={struct_field_name(name): name for name in inner_paths}, gc=False
    )


def identify(selectors: IdentitySelectors, request: Request) -> Identity:
    """Say what a request is about.

    Raises NoEventId where there is no usable id. A type that is not usable becomes "",
    a reference None: what was signed is not refused for those.
    """
    document = _document(selectors, request)
    event_id = _event_id(selectors.id, request, document)
    if isinstance(event_id, ReadFailure):
        if not selectors.has_hash_fallback:
            raise NoEventId(event_id.reason)
        event_id = BODY_HASH.read(request).decode()
    return _make_identity(event_id, selectors, request, document)


def identify_as(event_id: str, selectors: IdentitySelectors, request: Request) -> Identity:
    """Say what a request is about whose id is known."""
    return _make_identity(event_id, selectors, request, _document(selectors, request))


def reads_headers(parts: Sequence[Alternatives]) -> bool:
    """Whether one of the selectors is in a header."""
    return any(isinstance(selector, HeaderSelector) for part in parts for selector in part)


def _make_identity(
    event_id: str, selectors: IdentitySelectors, request: Request, document: Any
) -> Identity:
    event_type = _event_type(selectors.type, request, document)
    if selectors.reference is None:
        return Identity(event_id, event_type)
    reference = _read_text(selectors.reference, request, document)
    return Identity(event_id, event_type, None if isinstance(reference, ReadFailure) else reference)


def _event_id(parts: Sequence[Alternatives], request: Request, document: Any) -> str | ReadFailure:
    """The id, of one part or of several with ``|`` between."""
    if len(parts) == 1:
        return _read_text(parts[0], request, document)
    texts = []
    for part in parts:
        text = _read_text(part, request, document)
        if isinstance(text, ReadFailure):
            return text
        texts.append(_escape_separator(text))
    joined = "|".join(texts)
    reason = invalid_text_reason(joined)
    return joined if reason is None else ReadFailure(f"the id {reason}")


def _escape_separator(text: str) -> str:
    """A part of an id in which nothing looks like the end of it."""
    return text.replace("%", "%25").replace("|", "%7C")


def _event_type(parts: Sequence[Alternatives], request: Request, document: Any) -> str:
    """The type, of one part or of several with dots between; later parts may be absent."""
    texts: list[str] = []
    for part in parts:
        text = _read_text(part, request, document)
        if isinstance(text, str):
            texts.append(text)
        elif not texts or not text.is_missing:
            return ""
    joined = ".".join(texts)
    return joined if len(texts) == 1 or invalid_text_reason(joined) is None else ""


def _read_text(alternatives: Alternatives, request: Request, document: Any) -> str | ReadFailure:
    """The text in the first of the selectors that is there; the first's failure, where none is."""
    first: ReadFailure | None = None
    for selector in alternatives:
        text = usable_text(selector, _read_value(selector, request, document))
        if isinstance(text, str):
            return text
        first = first or _with_body_failure(text, selector, document)
        if not text.is_missing:
            break
    return first or ReadFailure("there is no place to look", is_missing=True)


def _with_body_failure(failure: ReadFailure, selector: Selector, document: Any) -> ReadFailure:
    if isinstance(selector, JsonSelector) and isinstance(document, ReadFailure):
        return ReadFailure(f"{selector} is missing: {document.reason}", is_missing=True)
    return failure


def _read_value(selector: Selector, request: Request, document: Any) -> object:
    if isinstance(selector, JsonSelector):
        try:
            return selector.find_in_struct(document)
        except AttributeError:  # the way there is null, or the document is not a struct
            return selector.find(document)
    value = selector.read(request)
    return msgspec.UNSET if value is None else value.decode(errors="surrogateescape")


def usable_text(label: object, value: object) -> str | ReadFailure:
    """The value as a text that can be stored, or why it is none."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, int) and not isinstance(value, bool):
        text = str(value)
    elif value is msgspec.UNSET:
        return ReadFailure(f"{label} is missing", is_missing=True)
    else:
        reason = f"{label} is {_json_kind(value)}; it must be a string"
        return ReadFailure(reason, is_missing=value is None)
    invalid = invalid_text_reason(text)
    return text if invalid is None else ReadFailure(f"{label} {invalid}")


def _json_kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case dict():
            return "an object"
        case list():
            return "a list"
        case float():
            return "a number with a fraction"
        case _:
            return "a string or a number"


_NOT_DECODED: Final = ReadFailure("the body was not read")


def _document(selectors: IdentitySelectors, request: Request) -> Any:
    """What is asked for of the body, as a struct; else all of it, as a dict; else the failure."""
    if selectors.decoder is None:
        return _NOT_DECODED
    try:
        return selectors.decoder.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_leniently(request.body)


# Whole numbers stay text: that is what an id becomes, and there is no limit on their digits.
_LENIENT: Final = json.JSONDecoder(strict=False, parse_int=str)


def decode_leniently(body: bytes) -> dict[str, Any] | ReadFailure:
    """Read a body that does not fit, or that only a tolerant reader takes for JSON.

    Bytes that are not UTF-8 become lone surrogates, which no id may hold: two ids that differ only
    in such bytes are refused and never taken for one.
    """
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        document = _LENIENT.decode(text)
    except RecursionError:
        return ReadFailure("the body is nested too deeply")
    except json.JSONDecodeError as error:
        return ReadFailure(f"the body is not JSON (at character {error.pos})")
    if not isinstance(document, dict):
        return ReadFailure(f"the body is {_json_kind(document)}, not an object")
    return document
