"""Selectors: text that names a value in a request.

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
    """The value of a header."""

    name: str
    key: bytes

    def __str__(self) -> str:
        return f"header {self.name}"

    def read(self, request: Request) -> bytes | None:
        """Return the header's value, or None. Raises RepeatedHeader."""
        return request.headers.get(self.key)


@dataclass(frozen=True, slots=True)
class JsonSelector:
    """A value in a JSON body, addressed by its path."""

    path: tuple[str, ...]
    find_in_struct: attrgetter[Any] = field(repr=False, compare=False)
    """Returns the value in a struct whose fields are named by `struct_field_name`."""

    def __str__(self) -> str:
        return f"json:{'.'.join(self.path)}"

    def read(self, request: Request) -> bytes | None:
        """Return the value as senders sign it, or None."""
        return _signed_bytes(self.find(request.document))

    def find(self, document: Any) -> Any:
        """Return the value in a decoded body, or UNSET."""
        for name in self.path:
            if not isinstance(document, dict) or name not in document:
                return msgspec.UNSET
            document = document[name]
        return document


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """A query parameter of the URL, or a field of a form body."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self, request: Request) -> bytes | None:
        """Return the value as senders sign it, or None."""
        fields = request.query if self.kind == "query" else request.form
        return _signed_bytes(dict(fields).get(self.name))


@dataclass(frozen=True, slots=True)
class BodyHashSelector:
    """The hash of the body, or of the signed values, for events that carry no id."""

    def __str__(self) -> str:
        return "body:sha256"

    def read(self, request: Request) -> bytes:
        """Return the hash in hexadecimal."""
        return hashlib.sha256(request.content).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class HeaderHashSelector:
    """The hash of a token in a header, without its signature.

    A signature and a prefix such as ``Bearer`` have several valid spellings; the signed part has
    only one.
    """

    name: str
    key: bytes

    def __str__(self) -> str:
        return f"hash:{self.name}"

    def read(self, request: Request) -> bytes | None:
        """Return the hash in hexadecimal, or None. Raises RepeatedHeader."""
        value = request.headers.get(self.key)
        if value is None:
            return None
        token = value.rpartition(b" ")[2]
        signed = token.rpartition(b".")[0] or token
        return hashlib.sha256(signed).hexdigest().encode()


Selector = HeaderSelector | JsonSelector | FieldSelector | BodyHashSelector | HeaderHashSelector


BODY_HASH: Final = BodyHashSelector()


def parse_selector(text: str) -> Selector:
    """Parse one selector. Raises ConfigurationError."""
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
        raise ConfigurationError(
            f"{text!r} is not a selector; write header:Some-Name or json:some.path"
        )
    path = tuple(rest.split("."))
    if "[" in rest:
        raise ConfigurationError(f"{text!r} selects from a list, not a single value")
    if "" in path:
        raise ConfigurationError(f"{text!r} has an empty name in its path")
    return JsonSelector(path, attrgetter(".".join(struct_field_name(name) for name in path)))


def parse_selectors(text: str) -> tuple[Selector, ...]:
    """Parse alternatives separated by ``|``. Raises ConfigurationError."""
    return tuple(parse_selector(part) for part in text.split("|"))


def struct_field_name(name: str) -> str:
    """Return a valid attribute name for any JSON name."""
    return f"k{name.encode(errors='surrogatepass').hex()}"


def read_first(selectors: Sequence[Selector], request: Request) -> bytes | None:
    """Return the first value present, as senders sign it, or None. Raises RepeatedHeader."""
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
