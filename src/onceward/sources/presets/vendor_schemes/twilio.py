"""Twilio and Mandrill sign the URL and the form fields."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlencode, urlsplit

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest, with_parameters
from onceward.sources.presets.vendor_schemes.base import (
    VendorScheme,
    decode_base64,
    encode_base64,
    require_header,
)
from onceward.sources.request import Request
from onceward.sources.schemes import BodyCoverage, Coverage, Hmac, Key, UrlCoverage
from onceward.sources.schemes.coverage import EVERY_FORM_FIELD, EVERY_JSON_MEMBER
from onceward.sources.schemes.scheme import mismatch_error

BODY_HASH: Final = "bodySHA256"
_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class UrlAndForm(VendorScheme):
    """A signature over the URL and the form fields, sorted by name.

    The URL of a JSON body contains the body's hash instead (`bodySHA256`).
    """

    at: str
    digest: Literal["sha1", "sha256"] = "sha1"

    @property
    def needs_url(self) -> bool:
        """True: the signed content begins with the URL."""
        return True

    @property
    def coverage(self) -> Coverage:
        """The URL, every form field, and a JSON body by its hash in the URL."""
        values = (EVERY_FORM_FIELD, EVERY_JSON_MEMBER)
        return Coverage(BodyCoverage.FIELDS, UrlCoverage.WHOLE, values)

    def event_content(self, event: Request) -> bytes:
        """Return the form fields in one spelling, or the body if the URL contains its hash."""
        if BODY_HASH in dict(event.query):
            return event.body
        return urlencode(sorted(set(event.form)), errors="surrogatepass").encode()

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The causes of rejection, in the order of the checks."""
        return (
            RejectionCause.MISSING,
            RejectionCause.MALFORMED,
            RejectionCause.WRONG_TARGET,
            RejectionCause.MISMATCH,
        )

    @property
    def summary(self) -> str:
        """A one-line description for people."""
        name = Hmac(self.digest).name
        return f"{name} over the URL and the form fields, base64, in {self._header_name} header"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Return the key for an auth token. Raises ConfigurationError."""
        return Hmac(self.digest).keys(secret)

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:  # noqa: ARG002
        """Add the signature to the request. Raises ConfigurationError."""
        if outgoing.body.lstrip().startswith((b"{", b"[")):
            body_hash = hashlib.sha256(outgoing.body).hexdigest()
            outgoing.url = with_parameters(outgoing.url, {BODY_HASH: body_hash})
        content = outgoing.url + _form_fields(outgoing.request())
        signature = Hmac(self.digest).signer(secret)(content.encode(errors="surrogatepass"))
        outgoing.put_header(self._header_name, encode_base64(signature))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the URL and the form fields were signed."""
        signature = decode_base64(
            require_header(request, self._header_name), f"{self._header_name} header"
        )
        body_hash = dict(request.query).get(BODY_HASH)
        if body_hash is not None:
            actual = hashlib.sha256(request.body).hexdigest().encode()
            if not hmac.compare_digest(actual, body_hash.lower().encode(errors="replace")):
                raise SignatureRejected(
                    "bodySHA256 in the URL does not match the body", RejectionCause.WRONG_TARGET
                )
        fields = _form_fields(request)
        for url in _port_variants(request.url):
            content = (url + fields).encode(errors="surrogatepass")
            if any(key.verifies(content, (signature,)) for key in keys):
                return
        raise mismatch_error(len(keys))

    @property
    def _header_name(self) -> str:
        return self.at.removeprefix("header:")


def _form_fields(request: Request) -> str:
    """Return the form fields as signed, or "" when the URL contains the body's hash."""
    if BODY_HASH in dict(request.query):
        return ""
    return "".join(key + value for key, value in sorted(set(request.form)))


def _port_variants(url: str) -> Iterable[str]:
    """Yield the URL with and without its port, since providers sign either form."""
    yield url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return
    if port is not None:
        yield parts._replace(netloc=parts.netloc.removesuffix(f":{port}")).geturl()
    elif parts.scheme in _PORTS:
        yield parts._replace(netloc=f"{parts.netloc}:{_PORTS[parts.scheme]}").geturl()
