"""Twilio and Mandrill sign the URL and the fields of the form."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest, with_parameters
from onceward.sources.presets.vendor_schemes.base import (
    VendorScheme,
    decode_base64,
    encode_base64,
    mismatch_error,
    require_header,
)
from onceward.sources.request import Request
from onceward.sources.schemes import Hmac, Key

BODY_HASH: Final = "bodySHA256"
_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class UrlAndForm(VendorScheme):
    """The URL, and the fields of the form in the order of their names.

    A body that is not a form is named by its hash in the URL (`bodySHA256`).
    """

    at: str
    digest: Literal["sha1", "sha256"] = "sha1"

    @property
    def needs_url(self) -> bool:
        """It begins with it."""
        return True

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """What is checked, in its order."""
        return (
            RejectionCause.MISSING,
            RejectionCause.MALFORMED,
            RejectionCause.WRONG_TARGET,
            RejectionCause.MISMATCH,
        )

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return f"{Hmac(self.digest).name} over the URL and the form's fields, base64"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The account's token. Raises ConfigurationError."""
        return Hmac(self.digest).keys(secret)

    def sign(self, secret: str | bytes, draft: OutgoingRequest, now: float) -> None:  # noqa: ARG002
        """Put the signature into a draft. Raises ConfigurationError."""
        if draft.body.lstrip().startswith((b"{", b"[")):
            body_hash = hashlib.sha256(draft.body).hexdigest()
            draft.url = with_parameters(draft.url, {BODY_HASH: body_hash})
        content = draft.url + _form_fields(draft.request())
        signature = Hmac(self.digest).signer(secret)(content.encode(errors="surrogatepass"))
        draft.put_header(self._header_name, encode_base64(signature))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the URL and the form were signed."""
        signature = decode_base64(
            require_header(request, self._header_name), f"{self._header_name} header"
        )
        body_hash = dict(request.query).get(BODY_HASH)
        if body_hash is not None:
            actual = hashlib.sha256(request.body).hexdigest().encode()
            if not hmac.compare_digest(actual, body_hash.lower().encode(errors="replace")):
                raise SignatureRejected("the URL is for another body", RejectionCause.WRONG_TARGET)
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
    """The fields of a form, as they are signed; "" where the URL names the body."""
    if BODY_HASH in dict(request.query):
        return ""
    return "".join(key + value for key, value in sorted(set(request.form)))


def _port_variants(url: str) -> Iterable[str]:
    """The sender may sign the URL with its usual port, or without."""
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
