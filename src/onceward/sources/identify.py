"""The identity of an event: its id, type and reference, read by selectors.

Only the selected fields of a JSON body are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from onceward.errors import ConfigurationError, NoEventId
from onceward.model.events import Identity, invalid_text_reason
from onceward.sources.json_text import TOO_DEEP, is_too_deep
from onceward.sources.request import Request
from onceward.sources.schemes.coverage import Coverage
from onceward.sources.selectors import (
    BODY_HASH,
    HeaderSelector,
    JsonSelector,
    Selector,
    parse_selectors,
    struct_field_name,
)

Alternatives = tuple[Selector, ...]
"""Selectors in order of preference: the first value present is used."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """The reason why a selector yields no usable text, or why a body cannot be decoded."""

    reason: str
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class IdentitySelectors:
    """The selectors of a source's id, type and reference. Ids and types may have several parts."""

    id: tuple[Alternatives, ...]
    type: tuple[Alternatives, ...]
    reference: Alternatives | None
    has_hash_fallback: bool
    """Whether the hash of the body replaces an unusable id."""
    decoder: msgspec.json.Decoder[Any] | None
    """Decodes the selected fields of a body; None if no selector reads the body."""

    def covers_id(self, coverage: Coverage) -> bool:
        """Return whether a proof covers every value that may become a part of the id."""
        return _are_covered(self.id, coverage)

    def uncovered(self, coverage: Coverage) -> list[str]:
        """Return which of id, type and reference may come from content that is not covered."""
        reference = () if self.reference is None else (self.reference,)
        parts = {"id": self.id, "type": self.type, "reference": reference}
        return [name for name, read in parts.items() if not _are_covered(read, coverage)]

    def under(self, coverage: Coverage) -> IdentitySelectors:
        """Return the selectors as they apply to requests with this coverage.

        Of an id's alternatives, the covered ones are preferred. If single values are covered and
        the id is among them, no hash replaces it: one signed id has several spellings, and an
        unusable one among them would make another event.
        """
        covers_only_id = not coverage.is_whole and self.covers_id(coverage)
        return replace(
            self,
            id=tuple(_covered_first(part, coverage) for part in self.id),
            has_hash_fallback=self.has_hash_fallback and not covers_only_id,
        )


def parse_identity_selectors(
    id: Sequence[str], type: Sequence[str], reference: str | None, *, is_batch: bool = False
) -> IdentitySelectors:
    """Parse the selectors of a source. Raises ConfigurationError with every fault.

    An id of several parts, or the id of one event among several (`is_batch`), may be unusable in a
    request that is otherwise valid. The hash of the body then replaces the id.
    """
    texts = [*id, *type] if reference is None else [*id, *type, reference]
    parsed: dict[str, Alternatives] = {}
    faults: list[str] = [] if id else ["there is no selector for the id"]
    for text in texts:
        try:
            parsed[text] = parse_selectors(text)
        except ConfigurationError as error:
            faults.extend(error.faults)
    selectors = [selector for alternatives in parsed.values() for selector in alternatives]
    json_selectors = [selector for selector in selectors if isinstance(selector, JsonSelector)]
    paths = list(dict.fromkeys(selector.path for selector in json_selectors))
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


def _are_covered(parts: Sequence[Alternatives], coverage: Coverage) -> bool:
    return all(
        coverage.covers(selector, part[:position])
        for part in parts
        for position, selector in enumerate(part)
    )


def _covered_first(part: Alternatives, coverage: Coverage) -> Alternatives:
    """Return alternatives with the covered ones first, and a hash of the body still last."""
    covered = [
        selector
        for position, selector in enumerate(part)
        if selector != BODY_HASH and coverage.covers(selector, part[:position])
    ]
    return (*covered, *[selector for selector in part if selector not in covered])


def _overlap_faults(paths: Iterable[tuple[str, ...]]) -> list[str]:
    """Report paths inside other paths: a decoder reads either a field or its members."""
    all_paths = set(paths)
    return [
        f"json:{'.'.join(path)} is inside json:{'.'.join(path[:length])}; select one or the other"
        for path in sorted(all_paths)
        for length in range(1, len(path))
        if path[:length] in all_paths
    ]


def _body_struct(paths: Iterable[tuple[str, ...]]) -> type[msgspec.Struct]:
    """Define a struct with the selected fields, so that the decoder skips all others."""
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
    """Return the identity of the event in a verified request.

    Raises NoEventId if the id is unusable. An unusable type becomes "" and an unusable reference
    None: a verified request is not refused because of them.
    """
    document = _document(selectors, request)
    event_id = _event_id(selectors.id, request, document)
    if isinstance(event_id, ReadFailure):
        if not selectors.has_hash_fallback:
            raise NoEventId(event_id.reason)
        event_id = BODY_HASH.read(request).decode()
    return _make_identity(event_id, selectors, request, document)


def identify_as(event_id: str, selectors: IdentitySelectors, request: Request) -> Identity:
    """Return the identity of an event under a given id."""
    return _make_identity(event_id, selectors, request, _document(selectors, request))


def reads_headers(parts: Sequence[Alternatives]) -> bool:
    """Return whether a selector reads a header."""
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
    """Read the parts of an id and join them with ``|``."""
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
    """Escape ``|`` in a part, so that different parts never join to the same id."""
    return text.replace("%", "%25").replace("|", "%7C")


def _event_type(parts: Sequence[Alternatives], request: Request, document: Any) -> str:
    """Read the parts of a type and join them with dots. Only the first part is required."""
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
    """Return the first text present, or the failure of the preferred selector."""
    failure: ReadFailure | None = None
    for selector in alternatives:
        text = usable_text(selector, _read_value(selector, request, document))
        if isinstance(text, str):
            return text
        failure = failure or _with_body_failure(text, selector, document)
        if not text.is_missing:
            break
    return failure or ReadFailure("there is no selector", is_missing=True)


def _with_body_failure(failure: ReadFailure, selector: Selector, document: Any) -> ReadFailure:
    if isinstance(selector, JsonSelector) and isinstance(document, ReadFailure):
        return ReadFailure(f"{selector} is missing: {document.reason}", is_missing=True)
    return failure


def _read_value(selector: Selector, request: Request, document: Any) -> object:
    if isinstance(selector, JsonSelector):
        try:
            return selector.find_in_struct(document)
        except AttributeError:  # an object on the path is null, or the document is a dict
            return selector.find(document)
    value = selector.read(request)
    return msgspec.UNSET if value is None else value.decode(errors="surrogateescape")


def usable_text(label: object, value: object) -> str | ReadFailure:
    """Return a value as text that can be stored, or why it cannot."""
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


_NOT_DECODED: Final = ReadFailure("the body was not decoded")
BODY_TOO_DEEP: Final = ReadFailure(f"the body is {TOO_DEEP}")


def _document(selectors: IdentitySelectors, request: Request) -> Any:
    """Decode the body: to a struct, else leniently to a dict, else to the reason it fails."""
    if selectors.decoder is None:
        return _NOT_DECODED
    if is_too_deep(request.body):
        return BODY_TOO_DEEP
    try:
        return selectors.decoder.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode_leniently(request.body)


def _integer_text(digits: str) -> str:
    """Return an integer as `str` would write it, of which int() might refuse so many digits."""
    return "0" if digits == "-0" else digits


_LENIENT: Final = json.JSONDecoder(strict=False, parse_int=_integer_text)


def decode_leniently(body: bytes) -> dict[str, Any] | ReadFailure:
    """Decode a body that the strict decoder rejects, or return why it is not a JSON object.

    The body must not be too deep. Invalid UTF-8 becomes lone surrogates, which an id cannot
    contain. Two ids that differ only in invalid bytes are therefore both refused, not taken for
    one id.
    """
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        document = _LENIENT.decode(text)
    except json.JSONDecodeError as error:
        return ReadFailure(f"the body is not JSON (at character {error.pos})")
    if not isinstance(document, dict):
        return ReadFailure(f"the body is {_json_kind(document)}, not an object")
    return document
