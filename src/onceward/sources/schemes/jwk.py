"""Public keys in JSON: a JWK, or a set of them (JWKS), as RFC 7517 defines them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from onceward.errors import ConfigurationError
from onceward.sources.schemes.encodings import decode_base64url


class _Kind(NamedTuple):
    """The members of a JWK that fit a kind of key."""

    name: str
    kty: str
    crv: str | None
    algs: tuple[str, ...]


_KINDS: Final[dict[str, _Kind]] = {
    "ed25519": _Kind("an Ed25519", "OKP", "Ed25519", ("EdDSA", "Ed25519")),
    "p256": _Kind("a P-256", "EC", "P-256", ("ES256",)),
    "rsa_sha1": _Kind("an RSA", "RSA", None, ("RS1",)),
    "rsa_sha256": _Kind("an RSA", "RSA", None, ("RS256",)),
}
_PRIVATE_MEMBERS: Final = ("d", "p", "q", "k")


def parse_jwks(kind: str, text: bytes) -> list[tuple[str | None, Any]]:
    """Return the ids and the public keys in a text that fit a kind of key.

    The text is a JWK, a set of them in `keys`, or a JWK in `key`, as Plaid's API returns it. Keys
    of a set that do not fit are ignored. Raises ConfigurationError if no key is left, and if one of
    them is private.
    """
    faults: list[str] = []
    found: list[tuple[str | None, Any]] = []
    for entry in _entries(text):
        if any(name in entry for name in _PRIVATE_MEMBERS):
            raise ConfigurationError("is a private or symmetric JWK; the public key is required")
        if fault := _fault(_KINDS[kind], entry):
            faults.append(fault)
            continue
        key_id = entry.get("kid")
        found.append((key_id if isinstance(key_id, str) else None, _public_key(entry)))
    if not found:
        raise ConfigurationError(faults[0] if faults else "is a JWKS without keys")
    return found


def _entries(text: bytes) -> list[dict[str, Any]]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigurationError("begins like a JWK, but is not JSON") from None
    entries = document.get("keys", [document.get("key", document)])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigurationError("is JSON, but neither a JWK nor a JWKS")
    return entries


def _fault(kind: _Kind, entry: dict[str, Any]) -> str | None:
    """Return why a JWK cannot be used for a kind of key, or None if it can."""
    if "kty" not in entry:
        return "is JSON, but neither a JWK nor a JWKS"
    if (entry["kty"], entry.get("crv")) != (kind.kty, kind.crv):
        return f"is not {kind.name} public key"
    if entry.get("alg", kind.algs[0]) not in kind.algs:
        return f"is a JWK for {entry['alg']}; {kind.algs[0]} is required"
    operations = entry.get("key_ops", ["verify"])
    is_for_signatures = entry.get("use", "sig") == "sig"
    if not is_for_signatures or not isinstance(operations, list) or "verify" not in operations:
        return "is a JWK that is not for signatures"
    if entry.get("expired_at") is not None:
        return "is a JWK that has expired; fetch the current one"
    return None


def _public_key(entry: dict[str, Any]) -> Any:
    try:
        if entry["kty"] == "OKP":
            return ed25519.Ed25519PublicKey.from_public_bytes(_member(entry, "x"))
        if entry["kty"] == "EC":
            x, y = _integer(entry, "x"), _integer(entry, "y")
            return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
        return rsa.RSAPublicNumbers(_integer(entry, "e"), _integer(entry, "n")).public_key()
    except ValueError:
        raise ConfigurationError("is a JWK whose key is not valid") from None


def _integer(entry: dict[str, Any], name: str) -> int:
    return int.from_bytes(_member(entry, name))


def _member(entry: dict[str, Any], name: str) -> bytes:
    """Return a member in base64url as bytes; b"" if it is not valid. Raises ValueError."""
    value = entry.get(name)
    text = value.rstrip("=").encode() if isinstance(value, str) else b""
    return decode_base64url(text) or b""
