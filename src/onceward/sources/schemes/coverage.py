"""The coverage of a proof: the parts of a request that cannot be changed without a rejection."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from onceward.sources.selectors import (
    BodyHashSelector,
    FieldSelector,
    HeaderHashSelector,
    HeaderSelector,
    JsonSelector,
    Selector,
)

EVERY_FORM_FIELD: Final = "form:*"
JOINED_FORM_FIELDS: Final = "form:+"
"""The text of all fields without separators: it can be cut into other names and values."""
EVERY_JSON_MEMBER: Final = "json:*"


class BodyCoverage(StrEnum):
    """How much of a body the proof covers."""

    BYTES = "bytes"
    """Every byte, or a cryptographic hash of all of them."""
    CHECKSUM = "checksum"
    """A checksum: another body can be made to match it."""
    FIELDS = "fields"
    """Only values, which can be written in several ways."""
    NOTHING = "nothing"


class UrlCoverage(StrEnum):
    """How much of the URL the proof covers."""

    WHOLE = "whole"
    TARGET = "target"
    """The path and the query, but not the host."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The parts of a request that a scheme's proof covers.

    `values` are the selectors of values that are covered one by one: headers, query parameters and,
    where the whole body is not covered, its fields. Fields of a body are relative to an event, as
    the selectors of an id are. A scheme that signs the first of several values states them as
    alternatives, ``header:a|header:b``.
    """

    body: BodyCoverage = BodyCoverage.NOTHING
    url: UrlCoverage = UrlCoverage.NOTHING
    values: tuple[str, ...] = ()
    has_time: bool = False
    """Whether a time is covered."""

    @property
    def is_sender_only(self) -> bool:
        """Whether the proof covers nothing of a request: it shows only who sent it."""
        return self.body is BodyCoverage.NOTHING and not self.values

    @property
    def is_whole(self) -> bool:
        """Whether the whole body is covered, by its bytes or by the text of all of its values."""
        forms = (EVERY_FORM_FIELD, JOINED_FORM_FIELDS)
        return self.body is BodyCoverage.BYTES or any(form in self.values for form in forms)

    def of_events(self, form_field: Selector | None) -> Coverage:
        """Return the coverage of events that a form field contains."""
        if form_field is not None and self.covers(form_field):
            return replace(self, body=BodyCoverage.BYTES)
        return self

    def covers(self, selector: Selector, preferred: Collection[Selector] = ()) -> bool:
        """Return whether verification detects a change of the selected value.

        `preferred` are the selectors that are read first. If the first of several values is
        signed, a later one is covered only where the earlier ones are read before it too.
        """
        match selector:
            case JsonSelector():
                whole = self.body is BodyCoverage.BYTES or EVERY_JSON_MEMBER in self.values
            case FieldSelector(kind="form"):
                whole = self.is_whole and JOINED_FORM_FIELDS not in self.values
            case BodyHashSelector():
                whole = self.is_whole
            case FieldSelector():
                whole = self.url is not UrlCoverage.NOTHING
            case HeaderSelector() | HeaderHashSelector():
                whole = False
        return whole or self._covers_value(selector, preferred)

    def _covers_value(self, selector: Selector, preferred: Collection[Selector]) -> bool:
        text, read_first = selector_key(selector), {selector_key(other) for other in preferred}
        for value in self.values:
            alternatives = value.split("|")
            if text in alternatives:
                return read_first.issuperset(alternatives[: alternatives.index(text)])
        return False

    @property
    def summary(self) -> str:
        """A one-line description."""
        parts = [_BODY_TEXTS[self.body], _URL_TEXTS[self.url], "a time" if self.has_time else ""]
        values = ", ".join(_VALUE_TEXTS.get(value, f"`{value}`") for value in self.values)
        return ", ".join([part for part in (*parts, values) if part]) or "nothing"


_BODY_TEXTS: Final = {
    BodyCoverage.BYTES: "the body",
    BodyCoverage.CHECKSUM: "a checksum of the body",
    BodyCoverage.FIELDS: "",
    BodyCoverage.NOTHING: "",
}
_URL_TEXTS: Final = {
    UrlCoverage.WHOLE: "the URL",
    UrlCoverage.TARGET: "the path and query",
    UrlCoverage.NOTHING: "",
}
_VALUE_TEXTS: Final = {
    EVERY_FORM_FIELD: "every form field",
    JOINED_FORM_FIELDS: "the text of all form fields",
    EVERY_JSON_MEMBER: "a JSON body",
}


def selector_key(selector: Selector) -> str:
    """Return the text of a selector, with the name of a header in lower case."""
    match selector:
        case HeaderSelector():
            return f"header:{selector.name.lower()}"
        case HeaderHashSelector():
            return f"hash:{selector.name.lower()}"
        case _:
            return str(selector)
