"""Outgoing requests, as a sender builds and signs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import msgspec

from onceward.errors import ConfigurationError
from onceward.sources.request import Headers, Request
from onceward.sources.selectors import (
    BodyHashSelector,
    FieldSelector,
    HeaderHashSelector,
    HeaderSelector,
    JsonSelector,
    Selector,
)


class OutgoingRequest:
    """A request to send. Signing writes the signature into its headers, body or URL."""

    def __init__(
        self,
        headers: Mapping[str, str],
        body: bytes,
        *,
        url: str = "",
        method: str = "POST",
    ) -> None:
        self.headers = dict(headers)
        self.body = body
        self.url = url
        self.method = method

    def request(self) -> Request:
        """Return the request as its receiver would see it."""
        pairs = [
            (name.lower().encode(), encode_header(value)) for name, value in self.headers.items()
        ]
        return Request(Headers(pairs), self.body, method=self.method, url=self.url)

    def put(self, selector: Selector, value: str) -> None:
        """Write a value to the header, field or member that a selector names.

        Raises ConfigurationError if the body has no such member or the value is computed.
        """
        match selector:
            case HeaderSelector():
                self.put_header(selector.name, value)
            case JsonSelector():
                document = self.document()
                put_member(document, selector.path, value)
                self.body = msgspec.json.encode(document)
            case FieldSelector(kind="form"):
                fields = dict(self._form()) | {selector.name: value}
                self.body = urlencode(fields).encode()
            case FieldSelector():
                self.url = with_parameters(self.url, {selector.name: value})
            case BodyHashSelector() | HeaderHashSelector():
                raise ConfigurationError(
                    f"{selector} is computed from the request and cannot be set"
                )

    def put_header(self, name: str, value: str) -> None:
        """Set a header, replacing one of the same name."""
        others = {key: text for key, text in self.headers.items() if key.lower() != name.lower()}
        self.headers = {**others, name: value}

    def document(self) -> Any:
        """Return the decoded JSON body. Raises ConfigurationError if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ConfigurationError("the body is not JSON, but the provider sends JSON") from None

    def _form(self) -> list[tuple[str, str]]:
        return parse_qsl(self.body.decode("latin-1"), keep_blank_values=True)


def encode_header(text: str) -> bytes:
    """Encode header text as HTTP clients do: Latin-1 if possible, else UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def with_parameters(url: str, parameters: Mapping[str, str]) -> str:
    """Return a URL with query parameters set, replacing those of the same names."""
    parts = urlsplit(url)
    others = [
        field
        for field in parts.query.split("&")
        if field and unquote_plus(field.partition("=")[0]) not in parameters
    ]
    return parts._replace(query="&".join([*others, urlencode(parameters)])).geturl()


def put_member(document: Any, path: tuple[str, ...], value: str) -> None:
    """Set a member of a decoded body; a numeric value that replaces an integer becomes one.

    Raises ConfigurationError if the path leads through a value that is not an object.
    """
    for name in path[:-1]:
        document = document.setdefault(name, {}) if isinstance(document, dict) else None
    if not isinstance(document, dict):
        raise ConfigurationError(f"json:{'.'.join(path)} cannot be set in this body")
    is_integer = isinstance(document.get(path[-1]), int) and value.isdigit()
    document[path[-1]] = int(value) if is_integer else value
