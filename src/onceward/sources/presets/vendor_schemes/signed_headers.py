"""Hook0 and Contentful list the headers that they sign in the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import WrappedSignature, require_header
from onceward.sources.request import Request
from onceward.sources.schemes import BodyCoverage, Coverage, Key, Signature, UrlCoverage
from onceward.sources.schemes.scheme import require_match, signing

MAX_SIGNED_HEADERS: Final = 50
_EVENT_ID: Final = b"x-event-id"
_EVENT_TYPE: Final = b"x-event-type"
_DOTS_OF_A_TYPE: Final = 2
"""A type of Hook0 is ``service.resource.verb``."""
_HEADER_LIST: Final = "x-contentful-signed-headers"
_TIMESTAMP: Final = b"x-contentful-timestamp"
_UNRESERVED: Final = "-_.!~*'()"
_RESERVED: Final = ";,/?:@&=+$#"


@dataclass(frozen=True, slots=True)
class _SignedHeaders(WrappedSignature):
    @property
    def summary(self) -> str:
        """A one-line description for people."""
        return f"HMAC-SHA256 over listed headers and the body, hex, in {self._header_name} header"

    @property
    def _header_name(self) -> str:
        return self.at.removeprefix("header:")

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time. Raises SignatureRejected unless headers and body were signed."""
        timestamp, signed_at, signatures = self.signature.claims(request, now)
        require_match(keys, self._signed_content(request, timestamp), signatures)
        return signed_at

    def _signed_content(self, request: Request, timestamp: bytes) -> bytes:
        raise NotImplementedError


class Hook0(_SignedHeaders):
    """A signature over the time, the names and values of the listed headers, and the body.

    Dots separate them. The number of dots in each value is fixed, so that the text can be cut in no
    other way. The id and the type must be listed.
    """

    __slots__ = ()

    @property
    def separator_safety(self) -> str:
        """The dots between the values."""
        return "each value before the body has a fixed number of dots"

    @property
    def coverage(self) -> Coverage:
        """The body, the time, and the headers that identify the event."""
        headers = ("header:x-event-id", "header:x-event-type")
        return Coverage(BodyCoverage.BYTES, values=headers, has_time=True)

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Sign all headers of the request. Raises ConfigurationError."""
        timestamp = self.signature.put_time(outgoing, now)
        names = " ".join(sorted(name.lower() for name in outgoing.headers))
        with signing():
            content = _hook0_content(outgoing.request(), timestamp.encode(), names.encode())
        signature = self.signature.algorithm.signer(secret)(content)
        self.signature.put_signature(outgoing, timestamp, signature, f"h={names}")

    def _signed_content(self, request: Request, timestamp: bytes) -> bytes:
        items = require_header(request, "X-Hook0-Signature").split(b",")
        lists = [item[2:] for item in items if item.startswith(b"h=")]
        if len(lists) != 1:
            raise SignatureRejected(
                "the signature header must list the signed headers once", RejectionCause.MALFORMED
            )
        return _hook0_content(request, timestamp, lists[0])


def _hook0_content(request: Request, timestamp: bytes, names: bytes) -> bytes:
    listed = names.split(b" ")
    if _EVENT_ID not in listed or _EVENT_TYPE not in listed or b"." in names:
        raise SignatureRejected(
            "X-Event-Id or X-Event-Type is not signed", RejectionCause.MALFORMED
        )
    values = _header_values(request, listed)
    for name, value in zip(listed, values, strict=True):
        if value.count(b".") != (_DOTS_OF_A_TYPE if name == _EVENT_TYPE else 0):
            raise SignatureRejected(
                f"the signed header {name.decode('latin-1')} has too many or too few dots",
                RejectionCause.MALFORMED,
            )
    return b".".join([timestamp, names, *values, request.body])


class Hook0V0(Signature):
    """A signature over the time and the body, as version 1 has it without headers.

    The same secret signs version 1: its headers and body, taken together, are no body of version 0.
    """

    __slots__ = ()

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time. Raises SignatureRejected, also for content of version 1."""
        signed_at = super().verify(keys, request, now)
        if _EVENT_ID in request.body.partition(b".")[0].split(b" "):
            raise SignatureRejected("the body was signed as version 1", RejectionCause.MALFORMED)
        return signed_at


class Contentful(_SignedHeaders):
    """A signature over the method, the path, the listed headers and the body.

    The list must be signed too: a shorter one would read several headers as one.
    """

    __slots__ = ()

    @property
    def separator_safety(self) -> str:
        """The line breaks, and the list of headers."""
        return "only the body may contain line breaks; headers are listed in a signed header"

    @property
    def coverage(self) -> Coverage:
        """The body, the target and the time; each request lists which headers it signs."""
        return Coverage(BodyCoverage.BYTES, UrlCoverage.TARGET, has_time=True)

    @property
    def needs_url(self) -> bool:
        """True: the path is signed."""
        return True

    def signed_query(self, registered: str, sent: str) -> str:  # noqa: ARG002 - required by Scheme
        """Return the registered query."""
        return registered

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Sign all headers of the request. Raises ConfigurationError."""
        timestamp = self.signature.put_time(outgoing, now)
        names = [_HEADER_LIST, *(name.lower() for name in outgoing.headers)]
        outgoing.put_header(_HEADER_LIST, ",".join(sorted(names)))
        with signing():
            content = self._signed_content(outgoing.request(), timestamp.encode())
        self.signature.put_signature(
            outgoing, timestamp, self.signature.algorithm.signer(secret)(content)
        )

    def _signed_content(self, request: Request, timestamp: bytes) -> bytes:  # noqa: ARG002 - signed as a header
        listed = require_header(request, _HEADER_LIST).split(b",")
        names = sorted({name.strip().lower() for name in listed})
        if _TIMESTAMP not in names or _HEADER_LIST.encode() not in names:
            raise SignatureRejected(
                "the timestamp or the list of signed headers is not signed",
                RejectionCause.MALFORMED,
            )
        target = _escape_target(request.target).encode()
        pairs = [
            b"%b:%b" % pair for pair in zip(names, _header_values(request, names), strict=True)
        ]
        headers = b";".join(pairs)
        if any((b";" + headers).count(b";%b:" % name) > 1 for name in names):
            raise SignatureRejected(
                "a signed header contains another one", RejectionCause.MALFORMED
            )
        return b"\n".join([request.method.encode(), target, headers, request.body])


def _escape_target(target: str) -> str:
    """Escape a target as Contentful does before signing: the path once more, the query twice."""
    path, mark, query = target.partition("?")
    once = quote(query, safe=_UNRESERVED, errors="surrogatepass")
    return quote(f"{path}{mark}{once}", safe=_RESERVED + _UNRESERVED, errors="surrogatepass")


def _header_values(request: Request, names: Sequence[bytes]) -> list[bytes]:
    if len(names) > MAX_SIGNED_HEADERS:
        raise SignatureRejected(
            f"more than {MAX_SIGNED_HEADERS} headers are signed", RejectionCause.MALFORMED
        )
    values = [request.headers.get(name.lower()) for name in names]
    if None in values:
        raise SignatureRejected("a signed header is missing", RejectionCause.MISSING)
    return [value for value in values if value is not None]


HOOK0_V0: Final = Hook0V0(
    at="header:X-Hook0-Signature",
    separator=",",
    prefix="v0=",
    timestamp="list:t=",
    content="{timestamp}.{body}",
    tolerance_seconds=300,
)
HOOK0: Final = Hook0(
    Signature(
        at="header:X-Hook0-Signature",
        separator=",",
        prefix="v1=",
        timestamp="list:t=",
        tolerance_seconds=300,
    )
)
CONTENTFUL: Final = Contentful(
    Signature(
        at="header:x-contentful-signature",
        timestamp="header:x-contentful-timestamp",
        time_format="milliseconds",
        tolerance_seconds=30,
    )
)
