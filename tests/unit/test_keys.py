"""Keys and secrets as providers hand them out; what is no usable key is refused with the reason."""

import base64
import hashlib
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

import onceward
from onceward.errors import ConfigurationError, SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import ECDSA_P256, ED25519, RSA_SHA256, Hmac, Jwt, Token
from onceward.sources.schemes.algorithms import as_base64, as_hex, as_text_or_base64
from tests.keys import ed25519_pair, p256_pair, rsa_pair

NOW = 1_760_000_000
BODY = b'{"webhook_type":"ITEM","webhook_code":"ERROR","item_id":"i1"}'
MARK = "\ufeff"


def number(value: int, length: int = 32) -> str:
    return base64.urlsafe_b64encode(value.to_bytes(length)).rstrip(b"=").decode()


def private_key(text: str) -> Any:
    return serialization.load_pem_private_key(text.encode(), password=None)


def part(value: Any) -> bytes:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def token(claims: Any, private: str, **header: str) -> str:
    """Sign a token with the algorithm of the key."""
    key = private_key(private)
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    content = part({"alg": "RS256" if is_rsa else "ES256", **header}) + b"." + part(claims)
    if is_rsa:
        signature = key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    else:
        numbers = decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256())))
        signature = b"".join(value.to_bytes(32) for value in numbers)
    return (content + b"." + part(signature)).decode()


def p256_jwk(private: str | None = None, **members: Any) -> dict[str, Any]:
    key = private_key(private or p256_pair().private)
    numbers = key.public_key().public_numbers()
    point = {"x": number(numbers.x), "y": number(numbers.y)}
    return {
        "kty": "EC",
        "crv": "P-256",
        "alg": "ES256",
        "use": "sig",
        "kid": "k1",
        **point,
        **members,
    }


def rsa_jwk(bits: int = 2048, **members: Any) -> dict[str, Any]:
    key = private_key(rsa_pair().private) if bits == 2048 else rsa.generate_private_key(65537, bits)
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "n": number(numbers.n, bits // 8), "e": "AQAB", **members}


def ed25519_jwk() -> dict[str, Any]:
    raw = bytes.fromhex(ed25519_pair().public)
    return {"kty": "OKP", "crv": "Ed25519", "x": base64.urlsafe_b64encode(raw).decode()}


def plaid(secret: str, kid: str | None = "k1", private: str | None = None) -> onceward.Verified:
    claims = {"iat": NOW, "request_body_sha256": hashlib.sha256(BODY).hexdigest()}
    header = {} if kid is None else {"kid": kid}
    headers = {"Plaid-Verification": token(claims, private or p256_pair().private, **header)}
    return onceward.verify("plaid", secret=secret, headers=headers, body=BODY, now=NOW)


USABLE_JWKS: list[Any] = [
    p256_jwk(),
    {"keys": [p256_jwk()]},
    {"keys": [rsa_jwk(), ed25519_jwk(), p256_jwk(use="enc"), p256_jwk()]},
    {"key": p256_jwk(created_at=1, expired_at=None), "request_id": "r"},
    {**p256_jwk(), "alg": "ES256", "key_ops": ["verify"]},
]


def test_a_token_verifies_with_a_jwk_or_a_set_of_them(subtests: pytest.Subtests) -> None:
    for document in USABLE_JWKS:
        with subtests.test(json.dumps(document)):
            for text in (json.dumps(document), f"\n{json.dumps(document, indent=2)}\n"):
                assert plaid(text).type == "ITEM.ERROR"
                source = make_source("plaid", secrets=[text])
                assert len(source.keys) == 1


def test_a_token_is_verified_with_the_key_that_it_names() -> None:
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    keys = json.dumps({"keys": [p256_jwk(), p256_jwk(other.decode(), kid="k2")]})
    plaid(keys, kid="k1")
    plaid(keys, kid="k2", private=other.decode())
    plaid(keys, kid=None)
    with pytest.raises(SignatureRejected) as caught:
        plaid(keys, kid="k2")
    assert caught.value.check == "no signature matched any of 2 secrets"
    with pytest.raises(SignatureRejected) as caught:
        plaid(keys, kid="k3")
    assert caught.value.check == "no key has the id that the token names (kid)"


def test_a_key_without_an_id_verifies_every_token() -> None:
    plaid(p256_pair().public, kid="any")
    plaid(json.dumps({**p256_jwk(), "kid": 7}), kid="any")


def test_the_key_of_a_service_account_may_be_a_set() -> None:
    secret = f"push@project.iam.example:{json.dumps({'keys': [rsa_jwk(kid='g1', alg='RS256')]})}"
    url = "https://shop.example/webhooks/google-pubsub"
    source = make_source("google-pubsub", scheme="oidc", secrets=[secret], url=url)
    claims: dict[str, Any] = {"iss": "accounts.google.com", "aud": url, "exp": NOW + 60, "iat": NOW}
    claims |= {"email": "push@project.iam.example", "email_verified": True}
    accepted = token(claims, rsa_pair().private, kid="g1")
    source.scheme.verify(source.keys, bearer(accepted, url), NOW)
    other = token(claims, rsa_pair().private, kid="g2")
    unverified = token({**claims, "email_verified": False}, rsa_pair().private, kid="g1")
    for rejected in (other, unverified):
        with pytest.raises(SignatureRejected):
            source.scheme.verify(source.keys, bearer(rejected, url), NOW)


def bearer(text: str, url: str) -> Request:
    return Request(Headers([(b"authorization", f"Bearer {text}".encode())]), BODY, url=url)


UNUSABLE_JWKS: list[tuple[Any, str]] = [
    (p256_jwk(d="AAAA"), "is a private or symmetric JWK; the public key is required"),
    ({"keys": [p256_jwk(), rsa_jwk(d="AAAA")]}, "is a private or symmetric JWK"),
    ({"kty": "oct", "k": "c2VjcmV0c2VjcmV0"}, "is a private or symmetric JWK"),
    (p256_jwk(alg="none"), "is a JWK for none; ES256 is required"),
    (p256_jwk(alg="HS256"), "is a JWK for HS256; ES256 is required"),
    (p256_jwk(use="enc"), "is a JWK that is not for signatures"),
    (p256_jwk(key_ops=["encrypt"]), "is a JWK that is not for signatures"),
    (p256_jwk(expired_at=1_700_000_000), "is a JWK that has expired"),
    (p256_jwk(crv="P-384"), "is not a P-256 public key"),
    (p256_jwk(x="AAAA"), "is a JWK whose key is not valid"),
    (p256_jwk(x="!"), "is a JWK whose key is not valid"),
    (p256_jwk(y=None), "is a JWK whose key is not valid"),
    (p256_jwk(key_ops=7), "is a JWK that is not for signatures"),
    (rsa_jwk(), "is not a P-256 public key"),
    (ed25519_jwk(), "is not a P-256 public key"),
    ({"keys": []}, "is a JWKS without keys"),
    ({"keys": ["k"]}, "neither a JWK nor a JWKS"),
    ({"keys": [{}]}, "neither a JWK nor a JWKS"),
    ({"a": 1}, "neither a JWK nor a JWKS"),
]


def test_an_unusable_jwk_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for document, reason in UNUSABLE_JWKS:
        text = json.dumps(document)
        with subtests.test(text), pytest.raises(ConfigurationError, match=reason):
            ECDSA_P256.keys(text)


def test_a_jwk_has_the_same_limits_as_other_keys() -> None:
    with pytest.raises(ConfigurationError, match="is an RSA key of 1024 bits"):
        RSA_SHA256.keys(json.dumps(rsa_jwk(1024)))
    with pytest.raises(ConfigurationError, match="is a JWK for PS256; RS256 is required"):
        RSA_SHA256.keys(json.dumps(rsa_jwk(alg="PS256")))
    with pytest.raises(ConfigurationError, match="is not JSON"):
        RSA_SHA256.keys('{"kty": ')
    key = private_key(ed25519_pair().private)
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    for members in ({}, {"alg": "EdDSA"}, {"alg": "Ed25519"}):
        (public,) = ED25519.keys(json.dumps(ed25519_jwk() | members))
        assert public.verifies(b"x", [key.sign(b"x")])


PUBLIC_KEYS = [
    p256_pair().public,
    MARK + p256_pair().public,
    "  \n" + p256_pair().public,
    "".join(p256_pair().public.splitlines()[1:-1]),
    "".join(rsa_pair().public.splitlines()[1:-1]),
    "MIIBojANBgkqhkiG9w0BAQEFAAOCAY8AMIIBigKCAYEA",
    "MIICIjANBgkqhkiG9w0BAQEFAAOCAg8AMIICCgKCAgEA",
    "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=",
    "whpk_GRV0KZaEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=",
    json.dumps(p256_jwk()),
    MARK + json.dumps({"keys": [rsa_jwk()]}),
]


def test_a_public_key_in_any_form_is_no_shared_secret(subtests: pytest.Subtests) -> None:
    for public in PUBLIC_KEYS:
        with subtests.test(public=public):
            for scheme in (Hmac(), Token(at="header:X"), Jwt(at="header:X", algorithm="HS256")):
                with pytest.raises(ConfigurationError, match="a shared secret is required"):
                    scheme.keys(public)


def test_a_key_in_pem_may_have_a_mark_and_blanks_around_it(subtests: pytest.Subtests) -> None:
    for before in ("", MARK, MARK + "\r\n", " \n"):
        for after in ("", "\n", " \r\n"):
            with subtests.test(before=before, after=after):
                source = make_source("plaid", secrets=[before + p256_pair().public + after])
                signature = ECDSA_P256.signer(before + p256_pair().private + after)(b"x")
                assert [key.verifies(b"x", [signature]) for key in source.keys] == [True]


NO_KEYS: list[tuple[Any, str | bytes, str]] = [
    (Hmac(secret_encoding=as_base64), "whsec_", "decodes to 0 bytes; the minimum is 8"),
    (Hmac(secret_encoding=as_base64), "whsec_QUJD", "decodes to 3 bytes; the minimum is 8"),
    (Hmac(secret_encoding=as_hex), "00112233", "decodes to 4 bytes; the minimum is 8"),
    (Hmac(), b"        ", "is blank"),
    (Hmac(), b"\t\n \r\n    ", "is blank"),
    (Hmac(), MARK + "a-secret-of-ours", "begins with a byte order mark"),
    (Jwt(at="header:X", named="iss"), "the-api-key:secret", "has 6 bytes after its name"),
    (Token(at="header:X"), b"         ", "is blank"),
    (Token(at="header:X", is_basic=True), "username:", "is not user:password"),
    (Token(at="header:X", is_basic=True), ":password", "is not user:password"),
]


def test_a_secret_that_is_no_key_is_refused(subtests: pytest.Subtests) -> None:
    for algorithm, secret, reason in NO_KEYS:
        case = f"{algorithm} {secret!r}"
        with subtests.test(case), pytest.raises(ConfigurationError, match=reason):
            algorithm.keys(secret)


def test_a_secret_may_have_the_minimum_length_and_a_brace() -> None:
    assert Hmac(secret_encoding=as_base64).keys("whsec_QUJDREVGR0g=")
    assert Jwt(at="header:X", named="iss").keys("name:8-bytes!")
    assert make_source("github", secrets=["a-secret{of}ours"]).keys


def test_a_short_decoding_is_not_tried_beside_the_text() -> None:
    assert len(Hmac(secret_encoding=as_text_or_base64).keys("QUJDREVG")) == 1
    assert len(Hmac(secret_encoding=as_text_or_base64).keys("QUJDREVGR0hJ")) == 2


def test_a_secret_with_an_invisible_character_around_it_is_refused(
    subtests: pytest.Subtests,
) -> None:
    for blank in ("\u00a0", "\u200b", "\u3000", MARK, "\t"):
        with subtests.test(blank=blank):
            for secret in (blank + "a-secret-of-ours", "a-secret-of-ours" + blank):
                with pytest.raises(
                    ConfigurationError, match=r"at its start or end|byte order mark"
                ):
                    make_source("github", secrets=[secret])
