"""A request signed by any scheme verifies; a changed one does not."""

from dataclasses import replace
from typing import Any

import pytest

import onceward
from onceward.cli._examples import example_request
from onceward.errors import ConfigurationError, SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.presets import PRESETS, Preset, find_preset
from onceward.sources.request import Request
from onceward.sources.schemes import Jwt, Scheme, Signature, UrlCoverage
from onceward.sources.source import Source
from tests.keys import SCHEMES, Pair, other_secret, pair_for, shared

NOW = 1_790_000_000.0
URL = "https://shop.example/webhooks/source"
TEN_YEARS_SECONDS = 10 * 365 * 86_400


def source_of(preset: Preset, name: str, pair: Pair) -> Source:
    scheme = preset.named_schemes[name]
    url = None if scheme.coverage.url is UrlCoverage.NOTHING else URL
    return make_source("source", preset=preset, scheme=name, secrets=[pair.public], url=url)


def signed_example(preset: Preset, scheme: Scheme, pair: Pair, **options: Any) -> Request:
    outgoing = example_request(preset, url=URL, **options)
    scheme.sign(pair.private, outgoing, NOW)
    return outgoing.request()


def is_rejected(source: Source, request: Request, now: float = NOW) -> bool:
    try:
        source.scheme.verify(source.keys, request, now)
    except SignatureRejected:
        return True
    return False


def test_an_example_verifies_and_contains_new_events(subtests: pytest.Subtests) -> None:
    for preset, name, scheme in SCHEMES:
        with subtests.test(f"{preset.name}-{name}"):
            pair = pair_for(preset.name, scheme)
            source = source_of(preset, name, pair)
            event_ids = set()
            for _ in range(2):
                events = source.verify(signed_example(preset, scheme, pair), NOW)
                assert isinstance(events, list), "the example is not a challenge"
                for identity, body, *_ in events:
                    event_ids.add(identity.event_id)
                    assert body
                    assert identity.type or not preset.types
                    assert identity.reference or not preset.reference
            assert isinstance(events, list)
            # Braintree's payload is opaque: its example always has the same bytes and the same id.
            assert len(event_ids) == (1 if preset.name == "braintree" else 2 * len(events))


def test_a_request_signed_with_another_secret_is_rejected(subtests: pytest.Subtests) -> None:
    for preset, name, scheme in SCHEMES:
        with subtests.test(f"{preset.name}-{name}"):
            pair = pair_for(preset.name, scheme)
            request = signed_example(preset, scheme, pair)
            assert not is_rejected(source_of(preset, name, pair), request)
            other = shared(other_secret(preset.name, scheme))
            assert is_rejected(source_of(preset, name, other), request)


def test_a_request_outside_the_tolerance_is_rejected(subtests: pytest.Subtests) -> None:
    for preset, name, scheme in SCHEMES:
        with subtests.test(f"{preset.name}-{name}"):
            pair = pair_for(preset.name, scheme)
            source = source_of(preset, name, pair)
            request = signed_example(preset, scheme, pair)
            seconds = scheme.tolerance_seconds
            if seconds is not None:
                assert is_rejected(source, request, NOW + seconds + 1)
                assert is_rejected(source, request, NOW - seconds - 1)
            else:  # tokens of JSON expire by themselves
                assert is_rejected(source, request, NOW + TEN_YEARS_SECONDS) is isinstance(
                    scheme, Jwt
                )


def test_the_id_and_type_of_an_example_can_be_set(subtests: pytest.Subtests) -> None:
    for name in PRESETS:
        with subtests.test(name=name):
            preset = find_preset(name)
            scheme = preset.scheme()
            pair = pair_for(name, scheme)
            has_id = any(
                "sha256" not in text and not text.startswith("hash:") for text in preset.ids
            )
            options = {"id": "77"} if has_id else {}
            event_type = {"aws-sns": "Notification", "hook0": "shop.order.shipped"}.get(
                name, "order.shipped"
            )
            options |= {"type": event_type} if preset.types else {}
            events = source_of(preset, next(iter(preset.named_schemes)), pair).verify(
                signed_example(preset, scheme, pair, **options), NOW
            )
            assert isinstance(events, list)
            identity, *_ = events[0]
            if has_id:
                assert "77" in identity.event_id.split("|")
            if preset.types:
                assert identity.type == event_type


def test_a_custom_preset_needs_no_example() -> None:
    custom = Preset(
        name="custom",
        title="Custom",
        schemes=Signature(at="header:X-Custom"),
        id="json:event.id",
        type="json:event.kind",
    )
    pair = shared("a-shared-secret")
    request = signed_example(custom, custom.scheme(), pair, type="order.shipped")
    events = source_of(custom, "default", pair).verify(request, NOW)
    assert isinstance(events, list)
    ((identity, *_),) = events
    assert (identity.type, len(identity.event_id)) == ("order.shipped", 16)


def test_verify_accepts_the_request_that_sign_returns() -> None:
    signed = onceward.sign(
        "stripe", secret="whsec_a_secret", body=b'{"id":"evt_1","type":"ping"}', now=NOW
    )
    verified = onceward.verify(
        "stripe", secret="whsec_a_secret", headers=signed.headers, body=signed.body, now=NOW
    )
    assert (verified.id, verified.type) == ("evt_1", "ping")


UNSIGNABLE: list[tuple[str, bytes, str]] = [
    ("standard-webhooks", b"{}", "no header webhook-id, which the signature covers"),
    ("figma", b"[]", "json:passcode cannot be set in this body"),
    ("figma", b"not json", "the body is not JSON"),
    ("adyen", b"{}", "no notificationItems"),
    ("aws-sns", b"{}", "json:Type is none"),
    ("microsoft-graph", b"{}", "no notifications"),
]


def test_a_request_that_cannot_be_signed_is_refused_with_the_reason(
    subtests: pytest.Subtests,
) -> None:
    for preset, body, message in UNSIGNABLE:
        with subtests.test(message):
            private = pair_for(preset, find_preset(preset).scheme()).private
            with pytest.raises(ConfigurationError, match=message):
                onceward.sign(preset, secret=private, body=body)


@pytest.mark.parametrize("preset", ["sendgrid", "discord", "aws-sns"])
def test_signing_with_a_public_key_is_refused(preset: str) -> None:
    outgoing = example_request(find_preset(preset), url=URL)
    scheme = find_preset(preset).scheme()
    public = "not a key" if preset == "discord" else pair_for(preset, scheme).public
    with pytest.raises(ConfigurationError, match="private key"):
        scheme.sign(public, outgoing, NOW)


def test_an_id_or_type_without_a_selector_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="identifies events by a hash"):
        example_request(find_preset("meta"), url=URL, id="1")
    with pytest.raises(ConfigurationError, match="no selector for a type"):
        example_request(replace(find_preset("hmac"), type=()), url=URL, type="x")
