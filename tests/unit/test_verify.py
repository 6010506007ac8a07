"""Genuine requests verify, all others are rejected, and the rejection names the check."""

import hmac
import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import stripe

import onceward
from onceward.errors import ConfigurationError, RequestRefused, SignatureRejected
from onceward.http.errors import status_of
from onceward.sources.presets import PRESETS
from onceward.sources.request import Headers, Request, header_key
from onceward.sources.schemes import Hmac, Scheme, Signature
from onceward.sources.selectors import HeaderSelector, parse_selectors
from tests.cpu_time import within
from tests.keys import pair_for

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors.json").read_text())

STRIPE = PRESETS["stripe"].scheme()
GITHUB = PRESETS["github"].scheme()
SECRET = b"whsec_test_secret"
BODY = b'{"id":"evt_1","type":"invoice.paid"}'
NOW = 1_760_000_000


def verify(
    scheme: Scheme, secrets: Sequence[bytes], headers: Headers, body: bytes, now: float
) -> None:
    keys = [key for secret in secrets for key in scheme.keys(secret)]
    scheme.verify(keys, Request(headers, body), now)


P256_KEY = next(v["secret"] for v in VECTORS if v["preset"] == "sendgrid")
P256_PEM = f"-----BEGIN PUBLIC KEY-----\n{P256_KEY}\n-----END PUBLIC KEY-----\n"
SIGNATURE_HEADERS = {
    preset.name: [
        selector
        for scheme in preset.named_schemes.values()
        for selector in parse_selectors(scheme.at)
        if isinstance(selector, HeaderSelector)
    ]
    for preset in PRESETS.values()
}


def stripe_signature(timestamp: str = str(NOW), body: bytes = BODY, key: bytes = SECRET) -> str:
    return hmac.digest(key, timestamp.encode() + b"." + body, "sha256").hex()


def stripe_headers(value: str | bytes) -> Headers:
    raw = value if isinstance(value, bytes) else value.encode()
    return Headers([(b"stripe-signature", raw)])


def signed_at(timestamp: str) -> Headers:
    return stripe_headers(f"t={timestamp},v1={stripe_signature(timestamp)}")


def github_headers(value: bytes) -> Headers:
    return Headers([(b"x-hub-signature-256", value)])


def github_signature(digest: str = "sha256", key: bytes = SECRET) -> bytes:
    return hmac.digest(key, BODY, digest).hex().encode()


def failed_check(
    headers: Headers,
    scheme: Any = STRIPE,
    secrets: tuple[bytes, ...] = (SECRET,),
    now: float = NOW,
    body: bytes = BODY,
) -> str:
    with pytest.raises(SignatureRejected) as caught:
        verify(scheme, secrets, headers, body, now)
    return caught.value.check


def test_examples_from_the_providers_have_the_documented_result(subtests: pytest.Subtests) -> None:
    for vector in VECTORS:
        with subtests.test(f"{vector['preset']}-{vector['case']}"):
            arguments = {
                name: vector[name] for name in ("secret", "headers", "method", "now", "scheme")
            }
            try:
                onceward.verify(
                    vector["preset"],
                    **arguments,
                    body=vector["body"].encode(),
                    url=vector.get("url", ""),
                )
                result = "valid"
            except SignatureRejected:
                result = "invalid"
            assert vector["expected"] == result


def test_a_signature_of_the_stripe_sdk_verifies(subtests: pytest.Subtests) -> None:
    for body in ('{"id":"evt_1"}', "", "Café ☕", "{not json", "a" * 100_000):
        with subtests.test(body=body):
            now = int(time.time())
            header = stripe.WebhookSignature.generate_signature_header(body, SECRET.decode(), now)
            verify(STRIPE, [SECRET], stripe_headers(header), body.encode(), now)


def test_the_stripe_sdk_accepts_a_header_that_verifies_here() -> None:
    now = str(int(time.time()))
    header = f"v0=00,t={now},v1={'0' * 64},v1={stripe_signature(now)}"
    verify(STRIPE, [SECRET], stripe_headers(header), BODY, float(now))
    assert stripe.WebhookSignature.verify_header(BODY, header, SECRET.decode(), tolerance=300)


def test_a_request_without_the_signature_header_is_rejected() -> None:
    assert failed_check(Headers([])) == "no Stripe-Signature header"


def test_the_sender_is_not_given_the_reason() -> None:
    with pytest.raises(SignatureRejected) as caught:
        verify(STRIPE, [SECRET], Headers([]), BODY, NOW)
    assert (status_of(caught.value), caught.value.message) == (
        401,
        "The signature was not accepted.",
    )


def test_a_timestamp_within_the_tolerance_is_accepted(subtests: pytest.Subtests) -> None:
    for off in (0, 1, 299.9, 300, -300):
        with subtests.test(off=off):
            verify(STRIPE, [SECRET], signed_at(str(NOW)), BODY, NOW + off)


def test_a_timestamp_outside_the_tolerance_is_rejected(subtests: pytest.Subtests) -> None:
    for off, shown in ((301, "301"), (-301, "301"), (300.5, "300.5"), (10**9, "1000000000")):
        with subtests.test(off=off):
            check = failed_check(signed_at(str(NOW)), now=NOW + off)
            assert check == f"the timestamp is {shown} s off; the tolerance is 300 s"


@pytest.mark.parametrize("now", [float("nan"), float("inf"), float("-inf")])
def test_an_invalid_clock_accepts_nothing(now: float) -> None:
    assert "s off; the tolerance is 300 s" in failed_check(signed_at(str(NOW)), now=now)


NO_TIMESTAMPS: list[str] = [
    "",
    "1_760_000_000",
    "+1760000000",
    "-1760000000",
    " 1760000000",
    "1760000000 ",
    "1.76e9",
    "nan",
    "1760000000.0",
    "0x68e77800",
    "١٧٦٠٠٠٠٠٠٠",
    "0" + str(NOW),
    "999999999",
    "9" * 5000,
]


def test_a_timestamp_that_is_not_ten_digits_is_rejected(subtests: pytest.Subtests) -> None:
    for timestamp in NO_TIMESTAMPS:
        with subtests.test(timestamp=timestamp):
            check = failed_check(signed_at(timestamp))
            assert check == "the timestamp is not a time in seconds, in 10 digits"


def test_a_missing_timestamp_is_rejected() -> None:
    assert failed_check(stripe_headers(f"v1={'0' * 64}")) == "expected one timestamp, found 0"


def test_two_timestamps_are_rejected() -> None:
    header = f"t={NOW},t={NOW},v1={stripe_signature()}"
    assert failed_check(stripe_headers(header)) == "expected one timestamp, found 2"


def test_the_signature_covers_the_timestamp() -> None:
    header = f"t={NOW + 1},v1={stripe_signature()}"
    assert failed_check(stripe_headers(header)) == "no signature matched the secret"


def test_the_signature_covers_the_body() -> None:
    check = failed_check(signed_at(str(NOW)), body=BODY.replace(b":", b": "))
    assert check == "no signature matched the secret"


def test_any_of_several_secrets_may_match() -> None:
    verify(STRIPE, [b"the new secret", SECRET], signed_at(str(NOW)), BODY, NOW)


def test_a_removed_secret_matches_nothing() -> None:
    check = failed_check(signed_at(str(NOW)), secrets=(b"the new secret", b"another secret"))
    assert check == "no signature matched any of 2 secrets"


def test_nothing_verifies_without_secrets() -> None:
    check = failed_check(signed_at(str(NOW)), secrets=())
    assert check == "no signature matched any of 0 secrets"


def test_every_scheme_refuses_an_empty_secret(subtests: pytest.Subtests) -> None:
    for preset in PRESETS.values():
        with subtests.test(preset.name):
            for scheme in preset.named_schemes.values():
                for secret in ("", b""):
                    with pytest.raises(ConfigurationError):
                        scheme.keys(secret)


def test_any_of_several_signatures_may_match() -> None:
    others = ",".join(f"v1={n:064x}" for n in range(9))
    header = f"t={NOW},{others},v1={stripe_signature()}"
    verify(STRIPE, [SECRET], stripe_headers(header), BODY, NOW)


def test_no_more_than_ten_signatures_are_tried() -> None:
    others = ",".join(f"v1={n:064x}" for n in range(10))
    header = f"t={NOW},{others},v1={stripe_signature()}"
    assert failed_check(stripe_headers(header)) == "no signature matched the secret"


def test_malformed_signatures_count_towards_the_limit_of_ten() -> None:
    header = f"t={NOW},{'v1=zz,' * 10}v1={stripe_signature()}"
    check = failed_check(stripe_headers(header))
    assert check == "the signature in the Stripe-Signature header is not valid hex"


def test_ten_thousand_signatures_are_rejected_quickly() -> None:
    header = f"t={NOW}," + f"v1={'0' * 64}," * 10_000 + f"v1={stripe_signature()}"
    within(0.05, lambda: failed_check(stripe_headers(header)))


def test_items_beyond_the_limit_are_not_read() -> None:
    header = "x=1," * 65 + f"t={NOW},v1={stripe_signature()}"
    assert failed_check(stripe_headers(header)) == "expected one timestamp, found 0"


def test_a_signature_under_another_key_is_ignored(subtests: pytest.Subtests) -> None:
    for key in ("v0", "v2", "V1", "v1 ", " v1", "", "v11"):
        with subtests.test(key=key):
            header = f"t={NOW},{key}={stripe_signature()}"
            check = failed_check(stripe_headers(header))
            assert check == "no v1=<signature> in the Stripe-Signature header"


CORRUPTIONS: list[Any] = [
    lambda signature: "",
    lambda signature: signature[:-1],
    lambda signature: signature[:-2],
    lambda signature: signature + "00",
    lambda signature: " " + signature,
    lambda signature: signature[:32] + " " + signature[32:],
    lambda signature: "0x" + signature,
    lambda signature: signature[:-1] + "g",
    lambda signature: signature[:-1] + "é",
    lambda signature: signature[:-1] + "٣",
    lambda signature: signature + "\0",
]


def test_a_signature_that_is_not_exactly_hexadecimal_is_rejected(subtests: pytest.Subtests) -> None:
    for corrupt in CORRUPTIONS:
        with subtests.test(signature=corrupt("<signature>")):
            failed_check(stripe_headers(f"t={NOW},v1={corrupt(stripe_signature())}"))


def test_hexadecimal_may_be_upper_case() -> None:
    header = f"t={NOW},v1={stripe_signature().upper()}"
    verify(STRIPE, [SECRET], stripe_headers(header), BODY, NOW)


def test_junk_in_the_header_is_rejected_without_another_error(subtests: pytest.Subtests) -> None:
    for header in (b"", b"\xff\xfe\0", b",,,,", b"====", b"t", b"t=,v1=", b"="):
        with subtests.test(header=header):
            failed_check(stripe_headers(header))
            failed_check(github_headers(header), scheme=GITHUB)


def test_a_prefixed_signature_verifies() -> None:
    verify(GITHUB, [SECRET], github_headers(b"sha256=" + github_signature()), BODY, NOW)


def test_a_signature_with_another_prefix_is_rejected(subtests: pytest.Subtests) -> None:
    for prefix in (b"", b"sha1=", b"SHA256=", b"sha512=", b"none", b"sha256 ="):
        with subtests.test(prefix=prefix):
            check = failed_check(github_headers(prefix + github_signature()), scheme=GITHUB)
            assert check == "no sha256=<signature> in the X-Hub-Signature-256 header"


@pytest.mark.parametrize("digest", ["sha1", "sha512", "md5"])
def test_a_signature_of_another_algorithm_is_rejected(digest: str) -> None:
    failed_check(github_headers(b"sha256=" + github_signature(digest)), scheme=GITHUB)
    failed_check(github_headers(digest.encode() + b"=" + github_signature(digest)), scheme=GITHUB)


@pytest.mark.parametrize("digest", ["sha1", "sha256", "sha512"])
def test_a_scheme_can_use_another_digest(digest: Any) -> None:
    scheme = Signature(at="header:X-Hub-Signature-256", algorithm=Hmac(digest))
    verify(scheme, [SECRET], github_headers(github_signature(digest)), BODY, NOW)


def test_an_hmac_key_agrees_with_the_standard_library(subtests: pytest.Subtests) -> None:
    digests: list[Any] = ["sha1", "sha256", "sha384", "sha512"]
    for digest, length in product(digests, (1, 63, 64, 65, 127, 128, 129, 500)):
        with subtests.test(digest=digest, length=length):
            secret = b"s" * length
            (key,) = Hmac(digest).keys(secret)
            assert key.verifies(BODY, [hmac.digest(secret, BODY, digest)])
            assert not key.verifies(BODY, [hmac.digest(secret + b"s", BODY, digest)])


ODD_URLS = ("", "http://[", "https://[::1", "x" * 5000, "\ud800", "https://a:b/")
ODD_BODIES = (b"", b"{}", b"[]", b"\xff", b'{"value":[{}],"notificationItems":[{}]}')
CERTIFICATE = next(v["secret"] for v in VECTORS if v["preset"] == "aws-sns")
OTHER_SECRETS = ("a" * 64, f"whpk_{'A' * 43}=", CERTIFICATE, P256_KEY, "user:password")


def test_odd_urls_and_headers_cause_only_rejections(subtests: pytest.Subtests) -> None:
    for preset, url in product(PRESETS.values(), ODD_URLS):
        with subtests.test(preset.name, url=url):
            assert_only_rejections(preset, url)


def assert_only_rejections(preset: onceward.Preset, url: str) -> None:
    headers = {selector.name: "v1=0,t=9" for selector in SIGNATURE_HEADERS[preset.name]}
    for name, scheme in preset.named_schemes.items():
        secret_that_fits = pair_for(preset.name, scheme).public
        for secret, body in product((secret_that_fits, *OTHER_SECRETS), ODD_BODIES):
            is_configured = secret == secret_that_fits
            refusals = (
                SignatureRejected if is_configured else (SignatureRejected, ConfigurationError)
            )
            with pytest.raises(refusals):
                onceward.verify(
                    preset, secret=secret, headers=headers, body=body, url=url, scheme=name
                )


def test_a_public_key_is_refused_as_a_shared_secret() -> None:
    for secret in (P256_PEM, f"whpk_{'A' * 43}="):
        with pytest.raises(ConfigurationError, match="a shared secret is required"):
            Hmac().keys(secret)


def test_a_key_of_another_algorithm_is_refused() -> None:
    for algorithm in (onceward.ED25519, onceward.RSA_SHA256):
        with pytest.raises(ConfigurationError):
            algorithm.keys(P256_PEM)


def test_a_rejection_shows_neither_the_signature_nor_the_secret() -> None:
    wrong = stripe_signature(key=b"another secret")
    for header in (f"t={NOW},v1={wrong}", f"t={NOW},v1={wrong}zz", f"t={wrong},v1={wrong}"):
        check = failed_check(stripe_headers(header))
        assert wrong not in check
        assert SECRET.decode() not in check


def test_a_repeated_signature_header_is_a_bad_request() -> None:
    headers = Headers([(b"stripe-signature", b"t=1"), (b"stripe-signature", b"t=2")])
    with pytest.raises(RequestRefused) as caught:
        verify(STRIPE, [SECRET], headers, BODY, NOW)
    assert (status_of(caught.value), caught.value.code, caught.value.message) == (
        400,
        "repeated_header",
        "The header stripe-signature occurs more than once.",
    )


def test_a_repeated_header_that_is_not_read_is_ignored() -> None:
    headers = Headers([(b"x-a", b"1"), (b"x-a", b"2"), (b"x-b", b"3")])
    assert headers.get(b"x-b") == b"3"
    assert headers.get(b"x-c") is None
    assert headers.joined(b"x-a") == b"1, 2"
    assert headers.joined(b"x-c") is None


def test_a_signed_timestamp_must_be_located() -> None:
    with pytest.raises(ConfigurationError, match="tolerance_seconds requires a timestamp"):
        Signature(at="header:X-Signature", tolerance_seconds=300)
    with pytest.raises(ConfigurationError, match="timestamp is not set"):
        Signature(at="header:X-Signature", content="{timestamp}{body}")
    with pytest.raises(ConfigurationError, match="separator is not set"):
        Signature(at="header:X-Signature", timestamp="list:t=")


def test_an_unknown_placeholder_is_refused(subtests: pytest.Subtests) -> None:
    for content in ("{boddy}", "{header:}", "{json:a[0]}", "{cookie:x}"):
        with subtests.test(content=content), pytest.raises(ConfigurationError):
            Signature(at="header:X-Signature", content=content)


def test_an_invalid_header_name_is_refused(subtests: pytest.Subtests) -> None:
    for name in ("", "X Y", "X:Y", "X-Ü", "X\r\nY", "X" * 101):
        with (
            subtests.test(name=name),
            pytest.raises(ConfigurationError, match="not a valid header name"),
        ):
            header_key(name)
