"""A request as it came, and the places in it: ``header:X-Id``, ``json:data.id``, ``query:id``.

A place is written as text, and several with ``|`` between: the first that is there counts. Places
are checked once, when a source is configured.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from onceward.errors import ConfigurationError, RequestRefused

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_BOUNDARY: Final = re.compile(
    rb'multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE
)
_FIELD_NAME: Final = re.compile(
    rb'^content-disposition:.*?\bname="([^"]*)"', re.IGNORECASE | re.MULTILINE
)
FIELDS_READ: Final = 1_000
PARSED_MOST: Final = 1024 * 1024
"""How large a body may be whose proof is inside it."""


class Headers:
    """A request's headers, read only. Names are asked for in lower case, as ASGI gives them."""

    __slots__ = ("_has_repeats", "_values", "pairs")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.pairs = tuple(raw)
        self._values = dict(self.pairs)
        self._has_repeats = len(self._values) != len(self.pairs)

    def get(self, name: bytes) -> bytes | None:
        """The header's value. Raises RequestRefused where it occurs more than once."""
        if self._has_repeats and len(self._all(name)) > 1:
            message = f"The header {name.decode('latin-1')} occurs more than once."
            raise RequestRefused(400, "repeated_header", message)
        return self._values.get(name)

    def joined(self, name: bytes) -> bytes | None:
        """The header's value, or its values with commas between, for what decides nothing."""
        if self._has_repeats and name in self._values:
            return b", ".join(self._all(name))
        return self._values.get(name)

    def _all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.pairs if key == name]


class Request:
    """What was sent: headers and body, and for some senders the method and the public URL."""

    __slots__ = ("__dict__", "body", "headers", "method", "url")

    def __init__(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> None:
        self.headers = headers
        self.body = body
        self.method = method
        self.url = url

    @cached_property
    def _split_url(self) -> SplitResult:
        try:
            return urlsplit(self.url)
        except ValueError:  # the Host header was no host
            return urlsplit("")

    @cached_property
    def target(self) -> str:
        """The path of the URL, with its query."""
        parts = self._split_url
        return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"

    @cached_property
    def query(self) -> list[tuple[str, str]]:
        """The parameters of the URL."""
        return _fields(self._split_url.query)

    @cached_property
    def form(self) -> list[tuple[str, str]]:
        """The fields of a body that is a form, in either of the two ways to write one.

        It may be read before anything is proved: of what is too large there are none.
        """
        if len(self.body) > PARSED_MOST:
            return []
        kind = self.headers.joined(b"content-type") or b""
        boundary = _BOUNDARY.match(kind)
        if boundary is None:
            return _fields(self.body.decode("latin-1"))
        return list(_parts(self.body, (boundary[1] or boundary[2])))

    @cached_property
    def document(self) -> Any:
        """The body as JSON; None where it is none, or so large that nobody reads it unproved."""
        if len(self.body) > PARSED_MOST:
            return None
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[str, str]]:
    """The fields of a form in parts, without the files."""
    for part in body.split(b"--" + boundary, FIELDS_READ)[1:]:
        head, blank, value = part.partition(b"\r\n\r\n")
        name = _FIELD_NAME.search(head)
        if blank and name is not None and b"filename=" not in head:
            text = value.removesuffix(b"\r\n").decode(errors="surrogateescape")
            yield name[1].decode(errors="surrogateescape"), text


def _fields(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_READ)
    except ValueError:  # more than anybody sends
        return []


def is_header_name(name: str) -> bool:
    """Whether a header can have this name."""
    return _HEADER_NAME.fullmatch(name) is not None


def header_key(name: str) -> bytes:
    """A header's name as `Headers` knows it. Raises ConfigurationError where it cannot be one."""
    if not is_header_name(name):
        raise ConfigurationError(f"{name!r} is not the name of a header")
    return name.lower().encode()


@dataclass(frozen=True, slots=True)
class HeaderPlace:
    """A value in a header."""

    name: str
    key: bytes

    def __str__(self) -> str:
        return f"header {self.name}"

    def bytes_of(self, request: Request) -> bytes | None:
        """The value as it would be signed; None where there is none. Raises RequestRefused."""
        return request.headers.get(self.key)


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A value in a JSON body, by the names that lead to it."""

    path: tuple[str, ...]
    of_struct: attrgetter[Any] = field(repr=False, compare=False)
    """Takes the value out of a struct whose fields are named by `struct_field`."""

    def __str__(self) -> str:
        return f"json:{'.'.join(self.path)}"

    def bytes_of(self, request: Request) -> bytes | None:
        """The value as it would be signed; None where there is none."""
        return _as_bytes(self.of(request.document))

    def of(self, document: Any) -> Any:
        """The value in a decoded body; UNSET where there is none."""
        for name in self.path:
            if not isinstance(document, dict) or name not in document:
                return msgspec.UNSET
            document = document[name]
        return document


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """A value in the URL's query, or in a body that is a form."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def bytes_of(self, request: Request) -> bytes | None:
        """The value as it would be signed; None where there is none."""
        fields = request.query if self.kind == "query" else request.form
        return _as_bytes(dict(fields).get(self.name))


@dataclass(frozen=True, slots=True)
class BodyPlace:
    """The hash of the body: what has nothing better is known by its bytes."""

    def __str__(self) -> str:
        return "body:sha256"

    def bytes_of(self, request: Request) -> bytes:
        """The hash, in hexadecimal digits."""
        return hashlib.sha256(request.body).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class HashPlace:
    """The hash of a token in a header, without its signature, which can be written in many ways."""

    name: str
    key: bytes

    def __str__(self) -> str:
        return f"hash:{self.name}"

    def bytes_of(self, request: Request) -> bytes | None:
        """The hash, in hexadecimal digits; None where there is no such header."""
        value = request.headers.get(self.key)
        if value is None:
            return None
        signed = value.rpartition(b".")[0] or value
        return hashlib.sha256(signed).hexdigest().encode()


Place = HeaderPlace | JsonPlace | FieldPlace | BodyPlace | HashPlace
BODY_HASH: Final = BodyPlace()


def parse_place(text: str) -> Place:
    """Read a place from its text. Raises ConfigurationError."""
    kind, _, rest = text.partition(":")
    if kind == "header":
        return HeaderPlace(rest, header_key(rest))
    if kind == "hash":
        return HashPlace(rest, header_key(rest))
    if kind in ("query", "form") and rest:
        return FieldPlace(kind, rest)
    if text == str(BODY_HASH):
        return BODY_HASH
    if kind != "json":
        raise ConfigurationError(f"{text!r} is no place: write header:Some-Name or json:some.path")
    path = tuple(rest.split("."))
    if "[" in rest:
        raise ConfigurationError(f"{text!r} points into a list; a request holds one event")
    if "" in path:
        raise ConfigurationError(f"{text!r} has an empty name in its path")
    return JsonPlace(path, attrgetter(".".join(struct_field(name) for name in path)))


def parse_places(text: str) -> tuple[Place, ...]:
    """Read the places of a text with ``|`` between. Raises ConfigurationError."""
    return tuple(parse_place(part) for part in text.split("|"))


def struct_field(name: str) -> str:
    """An attribute's name for any JSON name."""
    return f"k{name.encode(errors='surrogatepass').hex()}"


def bytes_at(places: Sequence[Place], request: Request) -> bytes | None:
    """The value of the first place that is there, as it would be signed; None where none is.

    Raises RequestRefused where a header that decides occurs twice.
    """
    for place in places:
        if (found := place.bytes_of(request)) is not None:
            return found
    return None


def _as_bytes(value: object) -> bytes | None:
    match value:
        case str():
            return value.encode(errors="surrogatepass")
        case bool():
            return b"true" if value else b"false"
        case int():
            return str(value).encode()
        case _:
            return None
