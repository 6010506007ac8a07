"""Twilio and Mandrill sign the URL and the form fields."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.forms import MAX_FIELDS, is_plain_form
from onceward.sources.outgoing import OutgoingRequest, with_parameters
from onceward.sources.presets.vendor_schemes.base import (
    VendorScheme,
    decode_signature,
    require_header,
)
from onceward.sources.request import MAX_PARSED_BYTES, Request
from onceward.sources.schemes import BodyCoverage, Coverage, Hmac, Key, UrlCoverage
from onceward.sources.schemes.coverage import (
    EVERY_FORM_FIELD,
    EVERY_JSON_MEMBER,
    JOINED_FORM_FIELDS,
)
from onceward.sources.schemes.encodings import encode_base64
from onceward.sources.schemes.scheme import mismatch_error, signing

BODY_HASH: Final = "bodySHA256"
_LAST_PARAMETER: Final = re.compile(rf"(?:^|&)({BODY_HASH}=([0-9A-Fa-f]{{64}}))\Z")
_PORTS: Final = {"https": 443, "http": 80}
_URL_CONTINUES: Final = (b"?", b"&", b"/", b":")


@dataclass(frozen=True, slots=True)
class UrlAndForm(VendorScheme):
    """A signature over the URL and the form fields, sorted by name.

    Nothing separates names and values, so a text with several readings is one event: its hash is
    taken from the signed text. `has_body_hash` allows bodies that are no form; their URL ends with
    the body's hash (`bodySHA256`). `only_field` is the name of the form's only field.
    """

    at: str
    digest: Literal["sha1", "sha256"] = "sha1"
    has_body_hash: bool = False
    only_field: str | None = None

    @property
    def needs_url(self) -> bool:
        """True: the signed content begins with the URL."""
        return True

    @property
    def separator_safety(self) -> str:
        """Nothing separates names and values."""
        url = "the URL is the source's own"
        if self.only_field is not None:
            return f"{url}; the form has one field"
        return f"{url}; fields are not separated, and every reading of them has the same hash"

    @property
    def coverage(self) -> Coverage:
        """The URL, the form fields, and a JSON body by its hash in the URL."""
        form = JOINED_FORM_FIELDS if self.only_field is None else EVERY_FORM_FIELD
        json_body = (EVERY_JSON_MEMBER,) if self.has_body_hash else ()
        return Coverage(BodyCoverage.FIELDS, UrlCoverage.WHOLE, (form, *json_body))

    def signed_query(self, registered: str, sent: str) -> str:
        """Return the registered query, with the body's hash if the sender added it."""
        added = _LAST_PARAMETER.search(sent) if self.has_body_hash else None
        if added is None:
            return registered
        return f"{registered}&{added[1]}" if registered else added[1]

    def event_content(self, event: Request) -> bytes:
        """Return the form fields as signed, or the body if its bytes are signed."""
        if self.only_field is not None:  # the events in it are signed byte for byte
            return event.body
        has_hash = self.has_body_hash and _body_hash(event) is not None
        return event.body if has_hash else _join(event.form)

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
        if self.has_body_hash and outgoing.body.lstrip().startswith((b"{", b"[")):
            body_hash = hashlib.sha256(outgoing.body).hexdigest()
            outgoing.url = with_parameters(outgoing.url, {BODY_HASH: body_hash})
        request = outgoing.request()
        with signing():
            content = _encode(request.url) + self._signed_body(request)
        outgoing.put_header(
            self._header_name, encode_base64(Hmac(self.digest).signer(secret)(content))
        )

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the URL and the form fields were signed."""
        signature = decode_signature(
            require_header(request, self._header_name), f"{self._header_name} header"
        )
        body = self._signed_body(request)
        for url in _port_variants(request.url):
            content = _encode(url) + body
            if any(key.verifies(content, (signature,)) for key in keys):
                return
        raise mismatch_error(len(keys))

    @property
    def _header_name(self) -> str:
        return self.at.removeprefix("header:")

    def _signed_body(self, request: Request) -> bytes:
        """Return the form fields as signed, or b"" if the URL has the body's hash.

        Raises SignatureRejected if the signature would not cover the body.
        """
        body_hash = _body_hash(request) if self.has_body_hash else None
        if body_hash is not None:
            actual = hashlib.sha256(request.body).hexdigest()
            if not hmac.compare_digest(actual, body_hash.lower()):
                raise SignatureRejected(
                    f"{BODY_HASH} in the URL does not match the body", RejectionCause.WRONG_TARGET
                )
            return b""
        if request.exceeds_form_limits:
            raise SignatureRejected(
                f"the form has more than {MAX_FIELDS} fields or {MAX_PARSED_BYTES} bytes, "
                "or many escapes and an invalid or non-ASCII one",
                RejectionCause.MALFORMED,
            )
        if self.only_field is None:
            return _join_plain_form(request)
        if [name for name, _ in request.form] != [self.only_field]:
            raise SignatureRejected(
                f"the form is not a single field {self.only_field}", RejectionCause.MALFORMED
            )
        return _join(request.form)


def _body_hash(request: Request) -> str | None:
    """Return the body's hash in the URL, or None. Raises SignatureRejected.

    The hash must be the last parameter, where the sender puts it: text of a stranger, such as a
    message, may end up in the query if it is part of the signed form.
    """
    names = [name for name, _ in request.query]
    if BODY_HASH not in names:
        return None
    last = _LAST_PARAMETER.search(urlsplit(request.url).query)
    if last is None or names.count(BODY_HASH) > 1:
        raise SignatureRejected(
            f"{BODY_HASH} is not the last parameter of the URL", RejectionCause.MALFORMED
        )
    return last[2]


def _join_plain_form(request: Request) -> bytes:
    """Return the fields of a form as signed. Raises SignatureRejected if they could be others.

    A handler reads the body with a parser of its own choice, and an unsigned header names its kind.
    Text that continues the URL was signed as a part of it: with the hash of another body.
    """
    if not is_plain_form(request.body):
        raise SignatureRejected(
            "the body is not a URL-encoded form in ASCII with valid escapes, "
            f"and the URL has no {BODY_HASH}",
            RejectionCause.MALFORMED,
        )
    text = _join(request.form)
    if text.startswith(_URL_CONTINUES):
        raise SignatureRejected("the form continues the signed URL", RejectionCause.MALFORMED)
    return text


def _join(fields: Iterable[tuple[str, str]]) -> bytes:
    return _encode("".join(name + value for name, value in sorted(set(fields))))


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


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
