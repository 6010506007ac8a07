"""A signed time has an exact format and a window, and every scheme that signs one has both."""

import base64
import hmac
import json
import time
from dataclasses import replace
from typing import Any

import pytest

import onceward
from onceward.cli._examples import example_request
from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets import PRESETS, Preset
from onceward.sources.schemes import Jwt, Scheme, Signature
from onceward.sources.schemes.times import DAY_SECONDS, TIME_STYLES, TimeFormat
from tests.keys import SCHEMES, pair_for
from tests.signing import NOW, URL

SECRET = "a-secret-of-the-test"
FIVE_YEARS = 5 * 365 * DAY_SECONDS
TIMED = [
    (f"{preset.name}-{name}", preset, scheme)
    for preset, name, scheme in SCHEMES
    if scheme.coverage.has_time
]
PUBLICATION_TIME = "aws-sns"
"""Amazon delivers a message for as long as the subscription's policy says, up to weeks."""


def part(value: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def encoded(secret: str, content: bytes) -> bytes:
    digest = hmac.digest(secret.encode(), content, "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=")


def signed(preset: Preset, scheme: Scheme) -> tuple[OutgoingRequest, str]:
    pair = pair_for(preset.name, scheme)
    outgoing = example_request(preset, url=URL)
    scheme.sign(pair.private, outgoing, NOW)
    return outgoing, pair.public


def test_every_signed_time_takes_a_tolerance(subtests: pytest.Subtests) -> None:
    for name, preset, scheme in TIMED:
        with subtests.test(name):
            outgoing, secret = signed(preset, scheme)
            options: Any = {"url": URL} if scheme.needs_url else {}
            source = make_source(
                "source",
                preset=preset,
                scheme=scheme,
                secrets=[secret],
                tolerance_seconds=77,
                **options,
            )
            assert source.scheme.tolerance_seconds == 77
            for off in (-50, 0, 77):
                source.scheme.verify(source.keys, outgoing.request(), NOW + off)
            for off in (-78, 78):
                with pytest.raises(SignatureRejected) as caught:
                    source.scheme.verify(source.keys, outgoing.request(), NOW + off)
                assert caught.value.cause is RejectionCause.TIMESTAMP


def test_a_capture_of_five_years_ago_is_rejected(subtests: pytest.Subtests) -> None:
    for name, preset, scheme in TIMED:
        with subtests.test(name):
            outgoing, secret = signed(preset, scheme)
            keys = scheme.keys(secret)
            scheme.verify(keys, outgoing.request(), NOW)
            is_unlimited = preset.name == PUBLICATION_TIME
            limited = scheme.with_tolerance(30 * DAY_SECONDS) if is_unlimited else scheme
            with pytest.raises(SignatureRejected):
                limited.verify(keys, outgoing.request(), NOW + FIVE_YEARS)


def test_the_window_of_an_events_time_lasts_as_long_as_the_provider_resends(
    subtests: pytest.Subtests,
) -> None:
    for name, preset, scheme in TIMED:
        with subtests.test(name):
            tolerance = scheme.tolerance_seconds
            if preset.name == PUBLICATION_TIME or (isinstance(scheme, Jwt) and scheme.must_expire):
                assert tolerance is None
                continue
            assert tolerance is not None
            if preset.time_of == "event":
                assert tolerance >= preset.max_resend_days * DAY_SECONDS


def test_a_preset_that_signs_no_time_takes_no_tolerance() -> None:
    with pytest.raises(ConfigurationError, match="the preset 'netlify' signs no timestamp"):
        make_source("netlify", secrets=["a-secret-of-netlify"], tolerance_seconds=5)


def test_a_token_without_a_time_of_issue_is_dated_by_nbf() -> None:
    scheme = Jwt(at="header:X-Token", tolerance_seconds=60)
    outgoing = OutgoingRequest({}, b"")
    content = b".".join(part(value) for value in ({"alg": "HS256"}, {"nbf": NOW}))
    outgoing.put_header("X-Token", (content + b"." + encoded(SECRET, content)).decode())
    keys = scheme.keys(SECRET)
    assert scheme.verify(keys, outgoing.request(), NOW + 60) == NOW
    with pytest.raises(SignatureRejected) as caught:
        scheme.verify(keys, outgoing.request(), NOW + 61)
    assert caught.value.check == "the token's time of issue is 61 s off; the tolerance is 60 s"


def test_a_token_from_the_future_is_rejected() -> None:
    scheme = Jwt(at="header:X-Token", tolerance_seconds=60)
    content = b".".join(part(value) for value in ({"alg": "HS256"}, {"iat": NOW}))
    token = (content + b"." + encoded(SECRET, content)).decode()
    request, keys = OutgoingRequest({"X-Token": token}, b"").request(), scheme.keys(SECRET)
    assert scheme.verify(keys, request, NOW - 60) == NOW
    with pytest.raises(SignatureRejected, match="was not accepted"):
        scheme.verify(keys, request, NOW - 61)


def test_a_token_without_any_time_is_rejected_if_a_time_is_checked() -> None:
    scheme = Jwt(at="header:X-Token", tolerance_seconds=60)
    content = b".".join(part(value) for value in ({"alg": "HS256"}, {"sub": "x"}))
    token = (content + b"." + encoded(SECRET, content)).decode()
    with pytest.raises(SignatureRejected) as caught:
        scheme.verify(scheme.keys(SECRET), OutgoingRequest({"X-Token": token}, b"").request(), NOW)
    assert caught.value.check == "the token has no time of issue"


NO_TIMES: list[tuple[TimeFormat, list[str]]] = [
    ("seconds", ["176000000", "17600000000", "176000000a", "+176000000", "", "\uff11" * 10]),
    ("milliseconds", ["1760000000", "17600000000001", "1760000000000 "]),
    ("seconds_or_milliseconds", ["176000000", "17600000000", "17600000000001"]),
    (
        "iso",
        [
            "2025-10-09",
            "2025-10-09T08",
            "2025-10-09T08:53",
            "2025-10-09T08:53:20",
            "2025-10-09 08:53:20Z",
            "2025-10-09T08:53:20z",
            "2025-10-09T08:53:20+00",
            "2025-10-09T08:53:20.Z",
            "2025-10-09T08:53:20.1234567890Z",
            "2025-13-09T08:53:20Z",
            "2025-W41-4T08:53:20Z",
            "20251009T085320Z",
            "2025-10-09T08:53:20Z\n",
        ],
    ),
    ("iso_zone_optional", ["2025-10-09T08:53", "2025-10-09T08:53:20,5", "2025-10-09T24:00:00"]),
]


def test_a_timestamp_of_another_format_is_not_a_time(subtests: pytest.Subtests) -> None:
    for time_format, texts in NO_TIMES:
        with subtests.test(time_format=time_format):
            for text in texts:
                assert TIME_STYLES[time_format].parse(text.encode()) is None


TIMES: list[tuple[TimeFormat, str]] = [
    ("seconds", "1760000000"),
    ("milliseconds", "1760000000000"),
    ("seconds_or_milliseconds", "1760000000"),
    ("seconds_or_milliseconds", "1760000000000"),
    ("iso", "2025-10-09T08:53:20Z"),
    ("iso", "2025-10-09T08:53:20.000000000Z"),
    ("iso", "2025-10-09T10:53:20+02:00"),
    ("iso_zone_optional", "2025-10-09T08:53:20"),
    ("iso_zone_optional", "2025-10-09T08:53:20.000Z"),
]


def test_a_timestamp_has_the_time_it_names(subtests: pytest.Subtests) -> None:
    for time_format, text in TIMES:
        with subtests.test(time_format=time_format, text=text):
            assert TIME_STYLES[time_format].parse(text.encode()) == NOW


@pytest.mark.parametrize(
    ("time_format", "text", "fraction"),
    [
        ("milliseconds", "1760000000500", 0.5),
        ("seconds_or_milliseconds", "1760000000500", 0.5),
        ("iso", "2025-10-09T08:53:20.123456789Z", 0.123456),
    ],
)
def test_a_timestamp_keeps_its_fraction(
    time_format: TimeFormat, text: str, fraction: float
) -> None:
    assert TIME_STYLES[time_format].parse(text.encode()) == pytest.approx(NOW + fraction, abs=1e-6)


def test_a_time_without_a_zone_is_utc_wherever_the_process_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert TIME_STYLES["iso_zone_optional"].parse(b"2025-10-09T08:53:20") == NOW
    finally:
        monkeypatch.undo()
        time.tzset()


def test_any_text_is_no_timestamp_even_without_a_window(subtests: pytest.Subtests) -> None:
    for name in ("zendesk", "zoom", "discord", "sendgrid", "customerio", "sinch"):
        with subtests.test(name=name):
            preset = PRESETS[name]
            outgoing, secret = signed(preset, preset.scheme())
            scheme = preset.scheme().with_tolerance(None)
            assert isinstance(scheme, Signature)
            header = (scheme.timestamp or "").removeprefix("header:")
            scheme = replace(scheme, content="{body}")  # so that every timestamp would verify
            scheme.sign(pair_for(name, scheme).private, outgoing, NOW)
            for text in ("", "x", "176000000", "2025-10-09T08:53", outgoing.headers[header] + "{"):
                outgoing.put_header(header, text)
                with pytest.raises(SignatureRejected) as caught:
                    scheme.verify(scheme.keys(secret), outgoing.request(), NOW)
                assert caught.value.cause is RejectionCause.TIMESTAMP


@pytest.mark.parametrize("timestamp", [str(NOW), str(NOW * 1000)])
def test_mercado_pago_sends_seconds_or_milliseconds(timestamp: str) -> None:
    content = f"id:7;request-id:r;ts:{timestamp};".encode()
    digest = hmac.digest(SECRET.encode(), content, "sha256").hex()
    headers = {"x-signature": f"ts={timestamp},v1={digest}", "x-request-id": "r"}
    options: Any = {"secret": SECRET, "headers": headers, "url": URL, "body": b'{"id":1}'}
    onceward.verify("mercadopago", **options, now=NOW + 900)
    with pytest.raises(SignatureRejected):
        onceward.verify("mercadopago", **options, now=NOW + 901)
