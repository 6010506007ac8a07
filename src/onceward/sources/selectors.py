"""Selectors: where in a request a value is, written as text.

``header:X-Id``, ``json:data.id``, ``query:id``, ``form:id``, ``hash:Authorization`` and
``body:sha256``. Alternatives are separated by ``|``: the first one present is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import msgspec

from onceward.errors import ConfigurationError
from onceward.sources.request import Request, header_key


@dataclass(frozen=True, slots=True)
class HeaderSelector:
    """A value in a header."""

    name: str
    key: bytes

    def __str__(self) -> str:
        return f"header {self.name}"

    def read(self, request: Request) -> bytes | None:
        """The value as it would be signed; None where there is none. Raises RepeatedHeader."""
        return request.headers.get(self.key)


@dataclass(frozen=True, slots=True)
class JsonSelector:
    """A value in a JSON body, by the names that lead to it."""

    path: tuple[str, ...]
    find_in_struct: attrgetter[Any] = field(repr=False, compare=False)
    """Takes the value out of a struct whose fields are named by `struct_field_name`."""

    def __str__(self) -> str:
        return f"json:{'.'.join(self.path)}"

    def read(self, request: Request) -> bytes | None:
        """The value as it would be signed; None where there is none."""
        return _signed_bytes(self.find(request.document))

    def find(self, document: Any) -> Any:
        """The value in a decoded body; UNSET where there is none."""
        for name in self.path:
            if not isinstance(document, dict) or name not in document:
                return msgspec.UNSET
            document = document[name]
        return document


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """A value in the URL's query, or in a body that is a form."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self, request: Request) -> bytes | None:
        """The value as it would be signed; None where there is none."""
        fields = request.query if self.kind == "query" else request.form
        return _signed_bytes(dict(fields).get(self.name))


@dataclass(frozen=True, slots=True)
class BodyHashSelector:
    """The hash of the body: what has nothing better is known by its bytes."""

    def __str__(self) -> str:
        return "body:sha256"

    def read(self, request: Request) -> bytes:
        """The hash, in hexadecimal digits."""
        return hashlib.sha256(request.body).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class HeaderHashSelector:
    """The hash of a token in a header, without its signature, which can be written in many ways."""

    name: str
    key: bytes

    def __str__(self) -> str:
        return f"hash:{self.name}"

    def read(self, request: Request) -> bytes | None:
        """The hash, in hexadecimal digits; None where there is no such header."""
        value = request.headers.get(self.key)
        if value is None:
            return None
        signed = value.rpartition(b".")[0] or value
        return hashlib.sha256(signed).hexdigest().encode()


Selector = HeaderSelector | JsonSelector | FieldSelector | BodyHashSelector | HeaderHashSelector


BODY_HASH: Final = BodyHashSelector()


def parse_selector(text: str) -> Selector:
    """Read a selector from its text. Raises ConfigurationError."""
    kind, _, rest = text.partition(":")
    if kind == "header":
        return HeaderSelector(rest, header_key(rest))
    if kind == "hash":
        return HeaderHashSelector(rest, header_key(rest))
    if kind in ("query", "form") and rest:
        return FieldSelector(kind, rest)
    if text == str(BODY_HASH):
        return BODY_HASH
    if kind != "json":
        raise ConfigurationError(f"{text!r} is no place: write header:Some-Name or json:some.path")
    path = tuple(rest.split("."))
    if "[" in rest:
        raise ConfigurationError(f"{text!r} points into a list; a request holds one event")
    if "" in path:
        raise ConfigurationError(f"{text!r} has an empty name in its path")
    return JsonSelector(path, attrgetter(".".join(struct_field_name(name) for name in path)))


def parse_selectors(text: str) -> tuple[Selector, ...]:
    """Read the selectors of a text with ``|`` between. Raises ConfigurationError."""
    return tuple(parse_selector(part) for part in text.split("|"))


def struct_field_name(name: str) -> str:
    """An attribute's name for any JSON name."""
    return f"k{name.encode(errors='surrogatepass').hex()}"


def read_first(selectors: Sequence[Selector], request: Request) -> bytes | None:
    """The value of the first selector that is there, as it would be signed; None where none is.

    Raises RepeatedHeader where a header that decides occurs twice.
    """
    for selector in selectors:
        if (value := selector.read(request)) is not None:
            return value
    return None


def _signed_bytes(value: object) -> bytes | None:
    match value:
        case str():
            return value.encode(errors="surrogatepass")
        case bool():
            return b"true" if value else b"false"
        case int():
            return str(value).encode()
        case _:
            return None
