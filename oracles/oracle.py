"""An oracle: somebody else's verifier for the requests of one sender, and what it is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oracles.keys import Keys, text

URL: Final = "https://inbox.example/webhooks/sender"
JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"


def compact(document: Any) -> bytes:
    """JSON as most senders write it: without spaces, and with letters as they are."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


DOCUMENT: Final = {
    "id": "evt_7Rk2",
    "type": "order.paid",
    "data": {"id": "ord_31", "buyer": "Zoë Łuk", "total": "12.50 €", "note": 'a/b\\c "d"\n'},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, signed or yet to be."""

    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = compact(DOCUMENT)
    url: str = URL
    method: str = "POST"

    def header(self, name: str) -> str:
        """A header's value, however its name is written. Raises KeyError."""
        return self.lower[name.lower()]

    @property
    def lower(self) -> dict[str, str]:
        """The headers by their names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def adding(self, **headers: str) -> Request:
        """The same with more headers, with ``_`` for ``-`` in their names."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **more})


def of_json(document: Any, **headers: str) -> Request:
    """A request with a JSON body, and headers with ``_`` for ``-`` in their names."""
    return Request(body=compact(document)).adding(Content_Type=JSON, **headers)


PLAIN: Final = of_json(DOCUMENT)
RENDERINGS: Final = (
    json.dumps(DOCUMENT).encode(),
    json.dumps(DOCUMENT, indent="\t", ensure_ascii=False).replace("\n", "\r\n").encode(),
    PLAIN.body + b"\r\n",
    compact({**DOCUMENT, "mood": "\N{SNOWMAN} \N{GRINNING FACE} \N{LINE SEPARATOR}"}),
)
"""The same in other bytes: escaped, on many lines, with a line break behind, with rarer letters."""

Verifies = Callable[[Request, str], bool]
Signs = Callable[[Request, str], Request]
Alters = Callable[[Request], Request]


def longer(request: Request) -> Request:
    """The request with a space behind its body."""
    return replace(request, body=request.body + b" ")


def swapping(old: str, new: str) -> Alters:
    """Change one text of the body for another, which must be there."""

    def alters(request: Request) -> Request:
        assert old.encode() in request.body, f"{old!r} is not in the body"
        return replace(request, body=request.body.replace(old.encode(), new.encode()))

    return alters


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """A library's verifier of the requests that one preset is for."""

    preset: str
    package: str
    """The library's name, where it is published."""
    verifies: Verifies
    """Whether the library takes the request for genuine; raising anything is a no."""
    signs: Signs | None = None
    """Signs a request by the library, where it can, at the present time."""
    only: str = ""
    """What of the verdict is the library's, where it is not all of it."""
    module: str = ""
    """What is imported, where it is not called as the package is."""
    scheme: str | None = None
    keys: Callable[[], Keys] = text
    request: Request = PLAIN
    altered: Alters | None = longer
    """A change that both must notice; None where the proof, or the library, covers none."""
    stale_seconds: int | None = None
    """How old a request is that both find too old; None where the library does not look."""
    is_npm: bool = False

    def asked_about(self, body: bytes) -> Oracle:
        """The oracle with another body to be asked about."""
        return replace(self, request=replace(self.request, body=body))

    @property
    def takes_any_body(self) -> bool:
        """Whether the body is nothing that only this sender would send."""
        return self.request.body == PLAIN.body

    @property
    def name(self) -> str:
        """The oracle's name among the tests."""
        scheme = f"-{self.scheme}" if self.scheme else ""
        return f"{self.preset}{scheme} by {'npm ' if self.is_npm else ''}{self.package}"

    def accepts(self, request: Request, secret: str) -> bool:
        """Whether the library takes the request for genuine."""
        try:
            return self.verifies(request, secret)
        except Exception:  # noqa: BLE001 - each library refuses in its own way
            return False
