"""Schemes that a template cannot say: each is what one sender, or two, does."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from onceward.errors import SignatureRejected
from onceward.request import Request, header_key
from onceward.schemes import RSA_SHA1, RSA_SHA256, Hmac, Key, Signature, Token
from onceward.schemes.algorithms import Algorithm, as_base64, as_hex
from onceward.schemes.interface import require_match

HEADERS_SIGNED_MOST: Final = 50
_PORTS: Final = {"https": 443, "http": 80}


def _text(value: object) -> str:
    """A JSON value as the senders write it into what they sign."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _base64(text: bytes, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SignatureRejected(f"the signature in the {what} is badly encoded") from None


def _header(request: Request, name: str) -> bytes:
    found = request.headers.get(header_key(name))
    if found is None:
        raise SignatureRejected(f"no {name} header")
    return found


class _OwnScheme:
    """What the schemes here have in common, unless they say otherwise."""

    __slots__ = ()

    @property
    def tolerance_seconds(self) -> int | None:
        """No time is signed."""
        return None

    @property
    def needs_url(self) -> bool:
        """The public URL is not signed."""
        return False

    @property
    def covers_body(self) -> bool:
        """A body that was changed on its way is found out."""
        return True


@dataclass(frozen=True, slots=True)
class UrlAndForm(_OwnScheme):
    """The URL, and the fields of the form in the order of their names (Twilio, Mandrill).

    A body that is not a form is named by its hash in the URL (`bodySHA256`).
    """

    at: str
    digest: Literal["sha1", "sha256"] = "sha1"

    @property
    def needs_url(self) -> bool:
        """It begins with it."""
        return True

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return f"{Hmac(self.digest).name} over the URL and the form's fields, base64"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The account's token. Raises ConfigurationError."""
        return Hmac(self.digest).keys(secret)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the URL and the form were signed."""
        name = self.at.removeprefix("header:")
        signature = _base64(_header(request, name), f"{name} header")
        body_hash = dict(request.query).get("bodySHA256")
        if body_hash is None:
            fields = "".join(key + value for key, value in sorted(set(request.form)))
        else:
            fields = ""
            actual = hashlib.sha256(request.body).hexdigest().encode()
            if not hmac.compare_digest(actual, body_hash.lower().encode(errors="replace")):
                raise SignatureRejected("the URL is for another body")
        for url in _with_and_without_port(request.url):
            content = (url + fields).encode(errors="surrogatepass")
            if any(key.made(content, (signature,)) for key in keys):
                return
        raise SignatureRejected(f"no signature matched any of {len(keys)} secrets")


def _with_and_without_port(url: str) -> Iterable[str]:
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


@dataclass(frozen=True, slots=True)
class AdyenItems(_OwnScheme):
    """Each item of a standard notification carries a signature over eight of its fields."""

    at: str = "json:notificationItems"

    @property
    def covers_body(self) -> bool:
        """Eight fields of each item are covered, and nothing else."""
        return False

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return "HMAC-SHA256 over eight fields of each item, base64, in the item"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The key, in hexadecimal digits. Raises ConfigurationError."""
        return Hmac(written=as_hex).keys(secret)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless every item was signed."""
        document = request.document
        items = document.get("notificationItems") if isinstance(document, dict) else None
        if not isinstance(items, list) or not items:
            raise SignatureRejected("no notificationItems in the body")
        for holder in items:
            item = holder.get("NotificationRequestItem") if isinstance(holder, dict) else None
            if not isinstance(item, dict):
                raise SignatureRejected("an item has no NotificationRequestItem")
            self._verify(keys, item)

    @staticmethod
    def _verify(keys: Sequence[Key], item: dict[str, Any]) -> None:
        data, amount = item.get("additionalData"), item.get("amount")
        sent = data.get("hmacSignature") if isinstance(data, dict) else None
        if not isinstance(sent, str):
            raise SignatureRejected("an item has no additionalData.hmacSignature")
        amount = amount if isinstance(amount, dict) else {}
        fields = [
            item.get("pspReference"),
            item.get("originalReference"),
            item.get("merchantAccountCode"),
            item.get("merchantReference"),
            amount.get("value"),
            amount.get("currency"),
            item.get("eventCode"),
            item.get("success"),
        ]
        content = ":".join(_text(value) for value in fields).encode(errors="surrogatepass")
        signature = _base64(sent.encode(errors="replace"), "hmacSignature")
        require_match(keys, content, (signature,))


@dataclass(frozen=True, slots=True)
class Sns(_OwnScheme):
    """Named fields of the body, each on two lines, signed by RSA. The secret is the certificate."""

    at: str = "json:Signature"
    version: Literal["1", "2"] = "1"

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return f"{self._algorithm.name} over named fields of the body, base64, in json:Signature"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Amazon's certificate, in PEM. Raises ConfigurationError."""
        return self._algorithm.keys(secret)

    @property
    def _algorithm(self) -> Algorithm:
        return RSA_SHA1 if self.version == "1" else RSA_SHA256

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the fields were signed."""
        message = request.document if isinstance(request.document, dict) else {}
        if message.get("SignatureVersion") != self.version:
            raise SignatureRejected(f"the signature is not of version {self.version}")
        sent = message.get("Signature")
        if not isinstance(sent, str):
            raise SignatureRejected("no json:Signature")
        signature = _base64(sent.encode(errors="replace"), "Signature")
        require_match(keys, self._content(message), (signature,))

    @staticmethod
    def _content(message: dict[str, Any]) -> bytes:
        is_notification = message.get("Type") == "Notification"
        names = ["Message", "MessageId", "Subject" if is_notification else "SubscribeURL"]
        names += ["Timestamp"] if is_notification else ["Timestamp", "Token"]
        lines = []
        for name in [*names, "TopicArn", "Type"]:
            value = message.get(name)
            if name == "Subject" and value is None:
                continue
            if not isinstance(value, str):
                raise SignatureRejected(f"no json:{name}, which is signed")
            lines.append(f"{name}\n{value}\n")
        return "".join(lines).encode(errors="surrogatepass")


@dataclass(frozen=True, slots=True)
class MercadoPago(_OwnScheme):
    """The id in the URL, the id of the request, and a time; what is missing is left out."""

    at: str = "header:x-signature"

    @property
    def needs_url(self) -> bool:
        """The id is in it."""
        return True

    @property
    def covers_body(self) -> bool:
        """Nothing of the body is covered."""
        return False

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return "HMAC-SHA256 over an id, the request's id and a time, hex, in x-signature header"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The secret. Raises ConfigurationError."""
        return Hmac().keys(secret)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """The signed time; raises SignatureRejected unless these were signed."""
        timestamp, at, signatures = _MERCADO_PAGO.claims(request, now)
        signed = {
            b"id": dict(request.query).get("data.id", "").lower().encode(errors="surrogatepass"),
            b"request-id": request.headers.get(b"x-request-id") or b"",
            b"ts": timestamp,
        }
        content = b"".join([b"%b:%b;" % (name, value) for name, value in signed.items() if value])
        require_match(keys, content, signatures)
        return at


_MERCADO_PAGO: Final = Signature(
    at="header:x-signature", separator=",", prefix="v1=", timestamp="list:ts="
)


@dataclass(frozen=True, slots=True)
class _NamedHeaders(_OwnScheme):
    """Headers are signed that the request names itself."""

    signature: Signature

    @property
    def at(self) -> str:
        """Where the proof is."""
        return self.signature.at

    @property
    def tolerance_seconds(self) -> int | None:
        """A time is signed."""
        return self.signature.tolerance_seconds

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return f"HMAC-SHA256 over headers that the request names, and the body, hex, in {self.at}"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The secret. Raises ConfigurationError."""
        return self.signature.keys(secret)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """The signed time; raises SignatureRejected unless all that is named was signed."""
        timestamp, at, signatures = self.signature.claims(request, now)
        require_match(keys, self._content(request, timestamp), signatures)
        return at

    def _content(self, request: Request, timestamp: bytes) -> bytes:
        raise NotImplementedError


class Hook0(_NamedHeaders):
    """A time, the names of some headers, their values, and the body."""

    __slots__ = ()

    def _content(self, request: Request, timestamp: bytes) -> bytes:
        items = _header(request, "X-Hook0-Signature").split(b",")
        listed = [item[2:] for item in items if item.startswith(b"h=")]
        if len(listed) != 1:
            raise SignatureRejected("one list of signed headers is needed")
        values = _values(request, listed[0].split(b" "))
        return b".".join([timestamp, listed[0], *values, request.body])


class Contentful(_NamedHeaders):
    """The method, the path, some headers by their names, and the body."""

    __slots__ = ()

    @property
    def needs_url(self) -> bool:
        """The path is signed."""
        return True

    def _content(self, request: Request, timestamp: bytes) -> bytes:  # noqa: ARG002 - a header
        listed = _header(request, "x-contentful-signed-headers").split(b",")
        names = sorted([name.strip().lower() for name in listed])
        if b"x-contentful-timestamp" not in names:
            raise SignatureRejected("the timestamp is not signed")
        values = zip(names, _values(request, names), strict=True)
        target = request.target.encode(errors="surrogatepass")
        headers = b";".join([b"%b:%b" % pair for pair in values])
        return b"\n".join([request.method.encode(), target, headers, request.body])


def _values(request: Request, names: Sequence[bytes]) -> list[bytes]:
    if len(names) > HEADERS_SIGNED_MOST:
        raise SignatureRejected("too many headers are signed")
    values = [request.headers.get(name.lower()) for name in names]
    if None in values:
        raise SignatureRejected("a header that is signed is missing")
    return [value for value in values if value is not None]


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
SINCH: Final = Signature(
    at="header:Authorization",
    separator=":",
    encoding="base64",
    timestamp="header:x-timestamp",
    time_format="iso",
    content=("{method}\n{body:md5}\n{header:content-type}\nx-timestamp:{timestamp}\n{target}"),
    algorithm=Hmac(written=as_base64),
)
"""``application KEY:SIGNATURE``: what is before the colon is no signature, and passed over."""


@dataclass(frozen=True, slots=True)
class ClientState(_OwnScheme):
    """A secret text in each of the notifications of a body (Microsoft Graph)."""

    at: str = "json:value"

    @property
    def covers_body(self) -> bool:
        """Nothing is covered."""
        return False

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return "a token in each notification"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The client state. Raises ConfigurationError."""
        return Token(at="json:clientState").keys(secret)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless every notification has it."""
        document = request.document
        items = document.get("value") if isinstance(document, dict) else None
        if not isinstance(items, list) or not items:
            raise SignatureRejected("no notifications in the body")
        for item in items:
            state = item.get("clientState") if isinstance(item, dict) else None
            sent = state.encode(errors="surrogatepass") if isinstance(state, str) else b""
            if not any(key.made(b"", (sent,)) for key in keys):
                raise SignatureRejected("a notification has another clientState")
