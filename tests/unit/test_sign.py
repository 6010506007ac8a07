"""What is signed here is genuine, for every preset and scheme, and nothing else is."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

import onceward
from onceward.cli._examples import example_request
from onceward.errors import ConfigurationError, SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.presets import PRESETS, Preset, find_preset
from onceward.sources.request import Request
from onceward.sources.schemes import Jwt, Scheme, Signature
from onceward.sources.source import Source
from tests.keys import SCHEMES, Pair, pair_for, shared

NOW = 1_790_000_000.0
URL = "https://shop.example/webhooks/source"

every_scheme = pytest.mark.parametrize(
    ("preset", "name", "scheme"), SCHEMES, ids=[f"{it[0].name}-{it[1]}" for it in SCHEMES]
)


def source_of(preset: Preset, name: str, pair: Pair) -> Source:
    scheme = preset.named_schemes[name]
    url = URL if isinstance(scheme, Jwt) and scheme.audience_is_url else None
    return make_source("source", preset=preset, scheme=name, secrets=[pair.public], url=url)


def sent(preset: Preset, scheme: Scheme, pair: Pair, **given: Any) -> Request:
    outgoing = example_request(preset, url=URL, **given)
    scheme.sign(pair.private, outgoing, NOW)
    return outgoing.request()


def refused(source: Source, request: Request, now: float = NOW) -> bool:
    try:
        source.scheme.verify(source.keys, request, now)
    except SignatureRejected:
        return True
    return False


@every_scheme
def test_an_example_is_genuine_and_tells_of_a_new_event(
    preset: Preset, name: str, scheme: Scheme
) -> None:
    pair = pair_for(preset.name, scheme)
    source = source_of(preset, name, pair)
    seen = set()
    for _ in range(2):
        admitted = source.verify(sent(preset, scheme, pair), NOW)
        assert isinstance(admitted, list), "it was taken for a question"
        for identity, body in admitted:
            seen.add(identity.event_id)
            assert body
            assert identity.type or not preset.types
            assert identity.reference or not preset.reference
    assert isinstance(admitted, list)
    # What Braintree sends is not ours to change: the same bytes are the same event.
    assert len(seen) == (1 if preset.name == "braintree" else 2 * len(admitted))


@every_scheme
def test_another_secret_and_another_body_are_not(preset: Preset, name: str, scheme: Scheme) -> None:
    pair = pair_for(preset.name, scheme)
    source = source_of(preset, name, pair)
    request = sent(preset, scheme, pair)
    assert not refused(source, request)
    wrong = pair.public[:-7] + ("1" if pair.public[-7] != "1" else "2") + pair.public[-6:]
    if pair.private == pair.public:  # a public key that is changed is none
        assert refused(source_of(preset, name, shared(wrong)), request)
    if scheme.covers_body:
        changed = Request(request.headers, request.body + b"&a=1", url=request.url)
        if not isinstance(scheme, Signature) and b"bt_payload" in request.body:
            fields = dict(parse_qsl(request.body.decode()))
            forged = urlencode(fields | {"bt_payload": "Zm9yZ2Vk"}).encode()
            changed = Request(request.headers, forged, url=request.url)
        if preset.name == "aws-sns":
            forged = json.dumps({**json.loads(request.body), "Message": "another"}).encode()
            changed = Request(request.headers, forged, url=request.url)
        assert refused(source, changed)


@every_scheme
def test_what_is_too_old_is_not(preset: Preset, name: str, scheme: Scheme) -> None:
    pair = pair_for(preset.name, scheme)
    source = source_of(preset, name, pair)
    request = sent(preset, scheme, pair)
    if scheme.tolerance_seconds is not None:
        assert refused(source, request, NOW + scheme.tolerance_seconds + 1)
        assert refused(source, request, NOW - scheme.tolerance_seconds - 1)


@pytest.mark.parametrize("name", PRESETS)
def test_an_id_and_a_type_can_be_chosen(name: str) -> None:
    preset = find_preset(name)
    scheme = preset.scheme()
    pair = pair_for(name, scheme)
    has_id = any("sha256" not in text and not text.startswith("hash:") for text in preset.ids)
    given = {"id": "77"} if has_id else {}
    kind = "Notification" if name == "aws-sns" else "order.shipped"
    given |= {"type": kind} if preset.types else {}
    admitted = source_of(preset, next(iter(preset.named_schemes)), pair).verify(
        sent(preset, scheme, pair, **given), NOW
    )
    assert isinstance(admitted, list)
    identity, _ = admitted[0]
    if has_id:
        assert "77" in identity.event_id.split("|")
    if preset.types:
        assert identity.type == kind


def test_a_preset_of_ones_own_needs_no_example() -> None:
    own = Preset(
        name="own",
        title="Our own",
        schemes=Signature(at="header:X-Own"),
        id="json:event.id",
        type="json:event.kind",
    )
    admitted = source_of(own, "default", shared("a-secret-of-ours")).verify(
        sent(own, own.scheme(), shared("a-secret-of-ours"), type="made"), NOW
    )
    assert isinstance(admitted, list)
    ((identity, _),) = admitted
    assert (identity.type, len(identity.event_id)) == ("made", 16)


def test_the_same_function_signs_and_verifies() -> None:
    signed = onceward.sign(
        "stripe", secret="whsec_a_secret", body=b'{"id":"evt_1","type":"ping"}', now=NOW
    )
    found = onceward.verify(
        "stripe", secret="whsec_a_secret", headers=signed.headers, body=signed.body, now=NOW
    )
    assert (found.id, found.type) == ("evt_1", "ping")


@pytest.mark.parametrize(
    ("preset", "body", "message"),
    [
        ("standard-webhooks", b"{}", "no header webhook-id, which is signed"),
        ("figma", b"[]", "no place for json:passcode"),
        ("figma", b"not json", "the body is not JSON"),
        ("adyen", b"{}", "no notificationItems"),
        ("aws-sns", b"{}", "no json:Message"),
        ("microsoft-graph", b"{}", "no notifications"),
    ],
)
def test_what_cannot_be_signed_says_why(preset: str, body: bytes, message: str) -> None:
    private = pair_for(preset, find_preset(preset).scheme()).private
    with pytest.raises(ConfigurationError, match=message):
        onceward.sign(preset, secret=private, body=body)


@pytest.mark.parametrize("preset", ["sendgrid", "discord", "aws-sns"])
def test_a_public_key_signs_nothing(preset: str) -> None:
    outgoing = example_request(find_preset(preset), url=URL)
    scheme = find_preset(preset).scheme()
    public = pair_for(preset, scheme).public.replace("-----BEGIN PUBLIC", "-----BEGIN PUBLIC")
    if preset == "discord":
        public = "not a key"
    with pytest.raises(ConfigurationError, match="private key"):
        scheme.sign(public, outgoing, NOW)


def test_a_user_without_an_id_is_told_that_there_is_no_place_for_one() -> None:
    with pytest.raises(ConfigurationError, match="known by their bytes"):
        example_request(find_preset("meta"), url=URL, id="1")
    with pytest.raises(ConfigurationError, match="no place for a type"):
        example_request(replace(find_preset("hmac"), type=()), url=URL, type="x")
