"""A third-party verifier for the requests of one preset, and the request that tests it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oracles.keys import Keys, plain_secret

URL: Final = "https://inbox.example/webhooks/sender"
JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"


def compact_json(document: Any) -> bytes:
    """Encode JSON as most senders do: no spaces, non-ASCII characters unescaped."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


DOCUMENT: Final = {
    "id": "evt_7Rk2",
    "type": "order.paid",
    "data": {"id": "ord_31", "buyer": "Zoë Łuk", "total": "12.50 €", "note": 'a/b\\c "d"\n'},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, signed or not."""

    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = compact_json(DOCUMENT)
    url: str = URL
    method: str = "POST"

    def header(self, name: str) -> str:
        """Return a header by its case-insensitive name. Raises KeyError."""
        return self.lower_headers[name.lower()]

    @property
    def lower_headers(self) -> dict[str, str]:
        """The headers, with lower-case names."""
        return {name.lower(): value for name, value in self.headers.items()}

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def with_headers(self, **headers: str) -> Request:
        """Return a copy with more headers; ``_`` in a name stands for ``-``."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **more})


def json_request(document: Any, **headers: str) -> Request:
    """Return a request with a JSON body; ``_`` in a header's name stands for ``-``."""
    return Request(body=compact_json(document)).with_headers(Content_Type=JSON, **headers)


PLAIN_REQUEST: Final = json_request(DOCUMENT)
BODY_VARIANTS: Final = (
    json.dumps(DOCUMENT).encode(),
    json.dumps(DOCUMENT, indent="\t", ensure_ascii=False).replace("\n", "\r\n").encode(),
    PLAIN_REQUEST.body + b"\r\n",
    compact_json({**DOCUMENT, "mood": "\N{SNOWMAN} \N{GRINNING FACE} \N{LINE SEPARATOR}"}),
)
"""The document in other bytes: escaped, indented, with a trailing line break, with rare characters.
"""

Verify = Callable[[Request, str], bool]
Sign = Callable[[Request, str], Request]
Tamper = Callable[[Request], Request]


def append_space(request: Request) -> Request:
    """Return the request with a space appended to its body."""
    return replace(request, body=request.body + b" ")


def replacing(old: str, new: str) -> Tamper:
    """Return a function that replaces a text in the body, and fails when the text is missing."""

    def tamper(request: Request) -> Request:
        assert old.encode() in request.body, f"{old!r} is not in the body"
        return replace(request, body=request.body.replace(old.encode(), new.encode()))

    return tamper


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """A library's verifier for the requests of one preset and scheme."""

    preset: str
    package: str
    """The library's name on PyPI or npm."""
    verify: Verify
    """Return whether the library accepts the request; any exception counts as a rejection."""
    sign: Sign | None = None
    """Sign a request with the library at the current time; None if the library only verifies."""
    scope: str = ""
    """The part that the library verifies, if it does not verify the whole proof."""
    module: str = ""
    """The module to import, if its name differs from the package's."""
    scheme: str | None = None
    make_keys: Callable[[], Keys] = plain_secret
    request: Request = PLAIN_REQUEST
    tamper: Tamper | None = append_space
    """A change that both must reject; None if the proof or the library covers no content."""
    stale_seconds: int | None = None
    """An age that both reject; None if the library does not check the timestamp."""
    is_npm: bool = False

    def with_body(self, body: bytes) -> Verifier:
        """Return a copy that tests another body."""
        return replace(self, request=replace(self.request, body=body))

    @property
    def accepts_any_body(self) -> bool:
        """Whether any body can be tested, not only one in the sender's own format."""
        return self.request.body == PLAIN_REQUEST.body

    @property
    def name(self) -> str:
        """The name shown by pytest."""
        scheme = f"-{self.scheme}" if self.scheme else ""
        return f"{self.preset}{scheme} by {'npm ' if self.is_npm else ''}{self.package}"

    def accepts(self, request: Request, secret: str) -> bool:
        """Return whether the library accepts the request."""
        try:
            return self.verify(request, secret)
        except Exception:  # noqa: BLE001 - each library rejects with its own exception
            return False
