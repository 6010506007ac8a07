"""A request on its way to be signed: selectors write to it."""

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
    """What is to be sent. Signing puts into it what proves it."""

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
        """The request as it would be received now."""
        pairs = [
            (name.lower().encode(), encode_header(value)) for name, value in self.headers.items()
        ]
        return Request(Headers(pairs), self.body, method=self.method, url=self.url)

    def put(self, selector: Selector, value: str) -> None:
        """Write a value where a selector points. Raises ConfigurationError."""
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
                raise ConfigurationError(f"{selector} follows from what is sent")

    def put_header(self, name: str, value: str) -> None:
        """Write a header, in place of one of that name."""
        others = {key: text for key, text in self.headers.items() if key.lower() != name.lower()}
        self.headers = {**others, name: value}

    def document(self) -> Any:
        """The body as JSON. Raises ConfigurationError where it is none."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ConfigurationError("the body is not JSON, and its sender's is") from None

    def _form(self) -> list[tuple[str, str]]:
        return parse_qsl(self.body.decode("latin-1"), keep_blank_values=True)


def encode_header(text: str) -> bytes:
    """A header's text as it is sent: servers read one byte for each character."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def with_parameters(url: str, parameters: Mapping[str, str]) -> str:
    """A URL with these in its query, in place of those of the same names."""
    parts = urlsplit(url)
    others = [
        field
        for field in parts.query.split("&")
        if field and unquote_plus(field.partition("=")[0]) not in parameters
    ]
    return parts._replace(query="&".join([*others, urlencode(parameters)])).geturl()


def put_member(document: Any, path: tuple[str, ...], value: str) -> None:
    """Write a value into a decoded body; where a number was, it stays one."""
    for name in path[:-1]:
        document = document.setdefault(name, {}) if isinstance(document, dict) else None
    if not isinstance(document, dict):
        raise ConfigurationError(f"the body has no place for json:{'.'.join(path)}")
    was_number = isinstance(document.get(path[-1]), int) and value.isdigit()
    document[path[-1]] = int(value) if was_number else value
