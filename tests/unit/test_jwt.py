"""A token verifies if the source's algorithm signed it, for this request and in time."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

import onceward
from onceward.errors import ConfigurationError, SignatureRejected

SECRET = "the-signing-key-of-the-account"
BODY = b'{"id":"d1","state":"ready","updated_at":"2025-10-09"}'
NOW = 1_760_000_000
URL = "https://shop.example/webhooks/messagebird?a=1"


def part(value: object) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def hs(claims: object, header: object = None, secret: str = SECRET, digest: str = "sha256") -> str:
    content = (
        part({"alg": "HS256", "typ": "JWT"} if header is None else header) + b"." + part(claims)
    )
    return (content + b"." + part(hmac.digest(secret.encode(), content, digest))).decode()


def netlify_claims(**more: Any) -> dict[str, Any]:
    return {"iss": "netlify", "sha256": hashlib.sha256(BODY).hexdigest(), **more}


def netlify(token: str, secret: str = SECRET, now: float = NOW) -> onceward.Verified:
    headers = {"X-Webhook-Signature": token}
    return onceward.verify("netlify", secret=secret, headers=headers, body=BODY, now=now)


def failed_check(token: str, **more: Any) -> str:
    with pytest.raises(SignatureRejected) as caught:
        netlify(token, **more)
    return caught.value.check


def test_a_token_for_this_body_verifies() -> None:
    assert netlify(hs(netlify_claims())).id == "d1|ready|2025-10-09"


def test_a_time_of_issue_after_the_year_9999_is_omitted() -> None:
    assert netlify(hs(netlify_claims(iat=10**12 - 1))).time is None


HEADERS: list[dict[str, Any]] = [
    {"alg": "none"},
    {"alg": "HS512"},
    {"alg": "RS256"},
    {"alg": ["HS256"]},
    {"typ": "JWT"},
    {"alg": "HS256", "crit": ["exp"]},
]


def test_the_token_cannot_choose_its_algorithm(subtests: pytest.Subtests) -> None:
    for header in HEADERS:
        with subtests.test(header=header):
            assert (
                failed_check(hs(netlify_claims(), header)) == "the token is not signed with HS256"
            )


def test_a_malformed_token_is_rejected(subtests: pytest.Subtests) -> None:
    for end in ("", ".", "..", ".a.b.c", ".=", ".\xff"):
        with subtests.test(end=end):
            failed_check(hs(netlify_claims()).rpartition(".")[0] + end)
            failed_check(end)


def test_malformed_claims_are_rejected(subtests: pytest.Subtests) -> None:
    for claims in (b"null", b"[]", b"{", b"\xff", b"[" * 10_000):
        with subtests.test(claims=claims):
            assert failed_check(hs(claims)) == "the token is not a JWT"


def test_another_secret_body_or_issuer_is_rejected() -> None:
    assert "no signature matched" in failed_check(
        hs(netlify_claims(), secret="another-signing-key")
    )
    assert failed_check(hs(netlify_claims(sha256="00" * 32))) == "the token is for another body"
    assert failed_check(hs(netlify_claims(sha256=7))) == "the token is for another body"
    assert failed_check(hs(netlify_claims(iss="evil"))) == "the token has the wrong issuer"


OUTSIDE: list[tuple[dict[str, Any], str]] = [
    ({"exp": NOW - 61}, "the token has expired"),
    ({"nbf": NOW + 61}, "the token is not valid yet"),
    ({"exp": "soon"}, "the token's exp is not a valid time"),
    ({"nbf": True}, "the token's nbf is not a valid time"),
    ({"exp": 10**400}, "the token's exp is not a valid time"),
    ({"iat": 10**13}, "the token's iat is not a valid time"),
]


def test_a_token_outside_its_validity_is_rejected(subtests: pytest.Subtests) -> None:
    for claims, check in OUTSIDE:
        with subtests.test(claims=claims):
            assert failed_check(hs(netlify_claims(**claims))) == check


def test_small_clock_skew_is_tolerated() -> None:
    assert netlify(hs(netlify_claims(exp=NOW - 59, nbf=NOW + 59))).type == "ready"


PRIVATE = ec.generate_private_key(ec.SECP256R1())
PUBLIC = PRIVATE.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def es(claims: object, header: object = None) -> str:
    content = part({"alg": "ES256", "kid": "k"} if header is None else header) + b"." + part(claims)
    r, s = decode_dss_signature(PRIVATE.sign(content, ec.ECDSA(hashes.SHA256())))
    return (content + b"." + part(r.to_bytes(32, "big") + s.to_bytes(32, "big"))).decode()


def plaid(token: str, now: float = NOW) -> onceward.Verified:
    headers = {"Plaid-Verification": token}
    return onceward.verify("plaid", secret=PUBLIC, headers=headers, body=BODY, now=now)


def plaid_claims(**more: Any) -> dict[str, Any]:
    return {"iat": NOW, "request_body_sha256": hashlib.sha256(BODY).hexdigest(), **more}


def test_a_token_signed_with_a_private_key_verifies_within_the_tolerance() -> None:
    verified = plaid(es(plaid_claims()), NOW + 300)
    assert verified.time is not None
    assert verified.time.timestamp() == NOW
    for token, now in (
        (es(plaid_claims()), NOW + 301),
        (es(plaid_claims(iat=None)), NOW),
        (es(plaid_claims())[:-4], NOW),
        (hs(plaid_claims(), {"alg": "HS256"}, PUBLIC.decode()), NOW),
        (hs(plaid_claims(), {"alg": "ES256"}, PUBLIC.decode()), NOW),
    ):
        with pytest.raises(SignatureRejected):
            plaid(token, now)


def test_a_public_key_is_refused_as_a_shared_secret() -> None:
    with pytest.raises(ConfigurationError, match="a shared secret is required"):
        netlify(hs(netlify_claims()), secret=PUBLIC.decode())


def test_a_token_for_another_url_is_rejected() -> None:
    claims = {
        "iss": "MessageBird",
        "exp": NOW + 5,
        "url_hash": hashlib.sha256(URL.encode()).hexdigest(),
        "payload_hash": hashlib.sha256(BODY).hexdigest(),
    }
    headers = {"MessageBird-Signature-JWT": hs(claims)}
    onceward.verify("messagebird", secret=SECRET, headers=headers, body=BODY, url=URL, now=NOW)
    with pytest.raises(SignatureRejected, match="not accepted"):
        onceward.verify(
            "messagebird", secret=SECRET, headers=headers, body=BODY, url=URL + "2", now=NOW
        )


def messagebird(body: bytes, **changes: object) -> str | None:
    """Return the check that a token with changed claims fails, or None if it verifies."""
    claims = {
        "iss": "MessageBird",
        "exp": NOW + 5,
        "url_hash": hashlib.sha256(URL.encode()).hexdigest(),
        "payload_hash": hashlib.sha256(body).hexdigest(),
    } | changes
    token = hs({name: value for name, value in claims.items() if value is not None})
    headers = {"MessageBird-Signature-JWT": token}
    try:
        onceward.verify("messagebird", secret=SECRET, headers=headers, body=body, url=URL, now=NOW)
    except SignatureRejected as rejected:
        return rejected.check
    return None


def test_a_token_without_an_expiry_is_rejected_if_its_sender_sets_one() -> None:
    assert messagebird(BODY) is None
    assert messagebird(BODY, exp=None) == "the token has no expiry"


def test_only_an_empty_body_may_omit_its_hash() -> None:
    assert messagebird(b"", payload_hash=None) is None
    assert messagebird(BODY, payload_hash=None) == "the token is for another body"
    assert messagebird(b"", payload_hash="00") == "the token is for another body"


def test_the_issuer_must_match_the_name_in_the_secret() -> None:
    digest = base64.b64encode(hashlib.sha256(BODY).digest()).decode()

    def check(**claims: object) -> None:
        headers = {"Authorization": hs({"sha256": digest, "exp": NOW + 5, **claims})}
        secret = [f"key_a:{SECRET}", "key_b:another-secret-1"]
        onceward.verify("livekit", secret=secret, headers=headers, body=BODY, now=NOW)

    check(iss="key_a")
    for claims in ({"iss": "key_b"}, {"iss": None}, {}):
        with pytest.raises(SignatureRejected):
            check(**claims)


def test_hashes_in_base64_and_prefixed_tokens_verify() -> None:
    digest = hashlib.sha256(BODY).digest()
    claims = {"sha256": base64.b64encode(digest).decode(), "exp": NOW + 5, "iss": "key"}
    livekit = {"Authorization": hs(claims)}
    secret = f"key:{SECRET}"
    assert onceward.verify("livekit", secret=secret, headers=livekit, body=BODY, now=NOW).id == "d1"
    vonage = {"Authorization": f"bearer {hs({'payload_hash': digest.hex(), 'iat': NOW})}"}
    onceward.verify("vonage", secret=SECRET, headers=vonage, body=BODY, now=NOW)
    with pytest.raises(SignatureRejected):
        onceward.verify(
            "vonage", secret=SECRET, headers={"Authorization": "Basic eDp5"}, body=BODY, now=NOW
        )
