"""JSON Web Tokens whose claims include the hash of the body, or an audience."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self
from uuid import uuid4

import msgspec

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.request import Request
from onceward.sources.schemes.algorithms import ECDSA_P256, RSA_SHA256, Algorithm, Hmac
from onceward.sources.schemes.coverage import BodyCoverage, Coverage, UrlCoverage
from onceward.sources.schemes.encodings import decode_base64url, encode_base64, encode_base64url
from onceward.sources.schemes.labelled_keys import key_id, key_name
from onceward.sources.schemes.named_secrets import make_named_keys, split_named_secret
from onceward.sources.schemes.scheme import Key, mismatch_error
from onceward.sources.selectors import HeaderSelector, Selector, parse_selectors, read_first

MAX_TOKEN_BYTES: Final = 16_384
LEEWAY_SECONDS: Final = 60
VALIDITY_SECONDS: Final = 300
"""How long a token from `sign` is valid."""
MAX_TIME_SECONDS: Final = 10**12
_ES256_SIGNATURE_BYTES: Final = 64

JwtAlgorithm = Literal["HS256", "HS384", "HS512", "ES256", "RS256"]
_ALGORITHMS: Final[dict[JwtAlgorithm, Algorithm]] = {
    "HS256": Hmac("sha256"),
    "HS384": Hmac("sha384"),
    "HS512": Hmac("sha512"),
    "ES256": ECDSA_P256,
    "RS256": RSA_SHA256,
}


def _issuers(issuer: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if issuer is None else (issuer,) if isinstance(issuer, str) else issuer


@dataclass(frozen=True, slots=True)
class Jwt:
    """A JWT in a header. The source fixes the algorithm; the token cannot choose it."""

    at: str
    algorithm: JwtAlgorithm = "HS256"
    prefix: str = ""
    body_claim: str | None = None
    """The claim with the SHA-256 of the body."""
    body_encoding: Literal["hex", "base64"] = "hex"
    url_claim: str | None = None
    """The claim with the SHA-256 of the URL, in hexadecimal."""
    empty_has_no_claim: bool = False
    """Whether the token of a request without a body may omit the body claim."""
    issuer: str | tuple[str, ...] | None = None
    """The accepted issuer, or several."""
    named: str | None = None
    """The claim that must equal the name in the secret, which has the form ``name:secret``."""
    must_expire: bool = False
    """Whether a token without an expiry is rejected."""
    audience_is_url: bool = False
    """Whether the audience must be the public URL."""
    has_time: bool = True
    """Whether the provider's tokens contain a time."""
    tolerance_seconds: int | None = None
    """How far `iat`, else `nbf`, may be off; None if neither is checked."""
    _selectors: tuple[Selector, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_selectors", parse_selectors(self.at))

    def with_tolerance(self, seconds: int | None) -> Self:
        """Return the scheme with another tolerance of the time of issue; None checks none."""
        return replace(self, tolerance_seconds=seconds)

    @property
    def separator_safety(self) -> str:
        """Claims have names."""
        return "claims are members of a JSON object"

    @property
    def needs_url(self) -> bool:
        """Whether a claim contains the URL."""
        return self.url_claim is not None or self.audience_is_url

    def signed_query(self, registered: str, sent: str) -> str:
        """Return the registered query for an audience; a hash of the URL covers any query."""
        return registered if self.audience_is_url else sent

    @property
    def coverage(self) -> Coverage:
        """The token, and the body and the URL if claims contain their hashes.

        Without such a claim, one token serves for many requests.
        """
        url = UrlCoverage.WHOLE if self.needs_url else UrlCoverage.NOTHING
        if self.body_claim is None:
            return Coverage(url=url, has_time=self.has_time)
        headers = [item for item in self._selectors if isinstance(item, HeaderSelector)]
        tokens = tuple(f"hash:{selector.name.lower()}" for selector in headers)
        return Coverage(BodyCoverage.BYTES, url, tokens, has_time=self.has_time)

    def event_content(self, event: Request) -> bytes:
        """Return the body, after the URL if a claim has its hash: it may carry the whole event."""
        if self.url_claim is None:
            return event.body
        return event.url.encode(errors="surrogatepass") + b"\n" + event.body

    @property
    def summary(self) -> str:
        """A one-line description."""
        claim = "the body's hash" if self.body_claim is not None else "an audience"
        return f"JWT by {self.algorithm} with {claim}, in {self._selectors[0]}"

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The possible causes of a rejection, in the order of the checks."""
        return (
            RejectionCause.MISSING,
            RejectionCause.MALFORMED,
            RejectionCause.MISMATCH,
            RejectionCause.TIMESTAMP,
            RejectionCause.WRONG_TARGET,
        )

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Parse a configured secret into keys. Raises ConfigurationError."""
        keys = _ALGORITHMS[self.algorithm].keys
        return (
            keys(secret) if self.named is None else make_named_keys(secret, self._secret_form, keys)
        )

    @property
    def _secret_form(self) -> str:
        return f"{self.named}:secret"

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Write a token for this body and URL to a request. Raises ConfigurationError."""
        header = {"alg": self.algorithm, "typ": "JWT"}
        issued_at = int(now)
        claims: dict[str, Any] = {
            "iat": issued_at,
            "nbf": issued_at,
            "exp": issued_at + VALIDITY_SECONDS,
            "jti": uuid4().hex,
        }
        if issuers := _issuers(self.issuer):
            claims["iss"] = issuers[0]
        if self.named is not None:
            name, secret = split_named_secret(secret, self._secret_form)
            claims |= {self.named: name, f"{self.named}_verified": True}
        if self.audience_is_url:
            claims["aud"] = outgoing.url
        if self.body_claim is not None:
            claims[self.body_claim] = self._body_hash(outgoing.body)
        if self.url_claim is not None:
            claims[self.url_claim] = _url_hash(outgoing.url)
        parts = [encode_base64url(msgspec.json.encode(part)) for part in (header, claims)]
        content = ".".join(parts)
        signature = _ALGORITHMS[self.algorithm].signer(secret)(content.encode())
        if self.algorithm == "ES256":
            signature = _der_to_raw(signature)
        token = f"{content}.{encode_base64url(signature)}"
        outgoing.put(self._selectors[0], self.prefix + token)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Verify the token and return its time of issue. Raises SignatureRejected."""
        claims = self._verified_claims(keys, self._read_token(request))
        issued_at = _check_times(claims, now, self.tolerance_seconds)
        if self.must_expire and claims.get("exp") is None:
            raise SignatureRejected("the token has no expiry", RejectionCause.TIMESTAMP)
        self._check_target(claims, request)
        return issued_at

    def _read_token(self, request: Request) -> bytes:
        value = read_first(self._selectors, request)
        if value is None:
            raise SignatureRejected(f"no {self._selectors[0]}", RejectionCause.MISSING)
        prefix = self.prefix.encode()
        if value[: len(prefix)].lower() != prefix.lower():
            raise SignatureRejected(
                f"no {self.prefix}<token> in the {self._selectors[0]}", RejectionCause.MISSING
            )
        if len(value) > MAX_TOKEN_BYTES:
            raise SignatureRejected("the token is too long", RejectionCause.MALFORMED)
        return value[len(prefix) :]

    def _verified_claims(self, keys: Sequence[Key], token: bytes) -> dict[str, Any]:
        content, _, encoded_signature = token.rpartition(b".")
        header, _, payload = content.partition(b".")
        candidates = self._candidate_keys(keys, _decode_object(header))
        signature = _decode_part(encoded_signature)
        if self.algorithm == "ES256":
            signature = _raw_to_der(signature)
        matching_keys = [key for key in candidates if key.verifies(content, (signature,))]
        if not matching_keys:
            raise mismatch_error(len(keys))
        claims = _decode_object(payload)
        if self.named is not None:
            _check_name(self.named, claims, matching_keys)
        return claims

    def _candidate_keys(self, keys: Sequence[Key], header: dict[str, Any]) -> Sequence[Key]:
        """Return the keys that may have signed a token: all but those with another id."""
        if header.get("alg") != self.algorithm or "crit" in header:
            raise SignatureRejected(
                f"the token is not signed with {self.algorithm}", RejectionCause.MALFORMED
            )
        named = header.get("kid")
        candidates = [key for key in keys if named is None or key_id(key) in (None, named)]
        if not candidates and keys:
            raise SignatureRejected(
                "no key has the id that the token names (kid)", RejectionCause.MISMATCH
            )
        return candidates

    def _check_target(self, claims: dict[str, Any], request: Request) -> None:
        if self.issuer is not None and claims.get("iss") not in _issuers(self.issuer):
            raise SignatureRejected("the token has the wrong issuer", RejectionCause.WRONG_TARGET)
        if self.audience_is_url:
            _require_equal(claims.get("aud"), request.url, "audience")
        if self.body_claim is not None and not self._may_omit_body_claim(claims, request):
            _require_equal(claims.get(self.body_claim), self._body_hash(request.body), "body")
        if self.url_claim is not None:
            _require_equal(claims.get(self.url_claim), _url_hash(request.url), "URL")

    def _may_omit_body_claim(self, claims: dict[str, Any], request: Request) -> bool:
        return self.empty_has_no_claim and not request.body and self.body_claim not in claims

    def _body_hash(self, body: bytes) -> str:
        digest = hashlib.sha256(body).digest()
        return digest.hex() if self.body_encoding == "hex" else encode_base64(digest)


def _check_name(claim: str, claims: dict[str, Any], keys: Sequence[Key]) -> None:
    """Raise SignatureRejected unless the claim equals the name of a key."""
    is_verified = claims.get(f"{claim}_verified", True) is True
    if not is_verified or claims.get(claim) not in [key_name(key) for key in keys]:
        raise SignatureRejected(f"the token has the wrong {claim}", RejectionCause.WRONG_TARGET)


def _url_hash(url: str) -> str:
    return hashlib.sha256(url.encode(errors="surrogatepass")).hexdigest()


def _require_equal(claim: object, expected: str, subject: str) -> None:
    actual = claim.encode(errors="surrogatepass") if isinstance(claim, str) else b""
    if not hmac.compare_digest(actual, expected.encode(errors="surrogatepass")):
        raise SignatureRejected(f"the token is for another {subject}", RejectionCause.WRONG_TARGET)


def _check_times(claims: dict[str, Any], now: float, tolerance_seconds: int | None) -> float | None:
    """Check the times of a token and return its time of issue. Raises SignatureRejected."""
    times = {name: _parse_time(claims, name) for name in ("exp", "nbf", "iat")}
    expires_at, not_before = times["exp"], times["nbf"]
    issued_at = not_before if times["iat"] is None else times["iat"]
    if expires_at is not None and not now < expires_at + LEEWAY_SECONDS:
        raise SignatureRejected("the token has expired", RejectionCause.TIMESTAMP)
    if not_before is not None and not now > not_before - LEEWAY_SECONDS:
        raise SignatureRejected("the token is not valid yet", RejectionCause.TIMESTAMP)
    if tolerance_seconds is not None:
        if issued_at is None:
            raise SignatureRejected("the token has no time of issue", RejectionCause.TIMESTAMP)
        if not abs(now - issued_at) <= tolerance_seconds:
            raise SignatureRejected(
                f"the token's time of issue is {abs(now - issued_at):.12g} s off; "
                f"the tolerance is {tolerance_seconds} s",
                RejectionCause.TIMESTAMP,
            )
    return issued_at


def _parse_time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or abs(value) > MAX_TIME_SECONDS:
        raise SignatureRejected(f"the token's {name} is not a valid time", RejectionCause.TIMESTAMP)
    return float(value)


def _decode_object(part: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(_decode_part(part))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SignatureRejected("the token is not a JWT", RejectionCause.MALFORMED)
    return value


def _decode_part(part: bytes) -> bytes:
    decoded = decode_base64url(part)
    if decoded is None:
        raise SignatureRejected("the token is not a JWT", RejectionCause.MALFORMED)
    return decoded


def _der_to_raw(der: bytes) -> bytes:
    """Convert an ECDSA signature from DER to its two integers of equal length."""
    first = 4 + der[3]
    numbers = der[4:first], der[first + 2 :]
    half = _ES256_SIGNATURE_BYTES // 2
    return b"".join([number.lstrip(b"\0").rjust(half, b"\0") for number in numbers])


def _raw_to_der(signature: bytes) -> bytes:
    """Convert an ECDSA signature from its two integers to DER. Raises SignatureRejected."""
    if len(signature) != _ES256_SIGNATURE_BYTES:
        raise SignatureRejected(
            "the token's signature has the wrong length", RejectionCause.MALFORMED
        )
    half = _ES256_SIGNATURE_BYTES // 2
    numbers = _der_integer(signature[:half]) + _der_integer(signature[half:])
    return b"\x30" + bytes([len(numbers)]) + numbers


def _der_integer(digits: bytes) -> bytes:
    """Encode an unsigned integer in DER, with a leading zero if its top bit is set."""
    plain = digits.lstrip(b"\0") or b"\0"
    padded = b"\0" + plain if plain[0] & 0x80 else plain
    return b"\x02" + bytes([len(padded)]) + padded
