"""An adversary with captures and public material: one capture is at most one unflagged event."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Hmac, Signature
from tests.attacks import ATTACKS, with_other_ids
from tests.captures import (
    FORGED_BODY,
    NOW,
    URL,
    Case,
    Ledger,
    Sent,
    captures,
    case,
    deliver,
    sent,
    signed,
)
from tests.keys import SCHEMES, pair_for

CASES = [case(preset, name) for preset, name, _ in SCHEMES]
WITH_QUERY = [
    case(preset, name, f"{URL}?a=1") for preset, name, scheme in SCHEMES if scheme.needs_url
]
PROVING = {
    label: of
    for label, of in [
        *((of.label, of) for of in CASES),
        *((f"{of.label} with a query", of) for of in WITH_QUERY),
    ]
    if not of.scheme.coverage.is_sender_only
}


def unflagged(of: Case, ledger: Ledger, genuine: Sent) -> list[str]:
    """Attack with a capture, and describe the unflagged events that come of it."""
    made = []
    for name, attack in ATTACKS.items():
        for changed in attack(of, genuine):
            for forged in with_other_ids(of, changed):
                events = ledger.record(deliver(of.source, forged))
                made += [f"{name}: {event.event_id!r} from {forged!r:.900}" for event in events]
    return made


def test_a_changed_capture_makes_no_unflagged_event(subtests: pytest.Subtests) -> None:
    for label, of in PROVING.items():
        with subtests.test(label):
            for genuine in captures(of):
                ledger = Ledger()
                assert ledger.record(deliver(of.source, genuine)), "the capture is genuine"
                assert unflagged(of, ledger, genuine)[:3] == []


def mixtures(one: Sent, other: Sent) -> Iterator[Sent]:
    """Yield requests whose headers, body and query come from two captures."""
    names = list(dict(one.headers) | dict(other.headers))
    for size in range(len(names) + 1):
        for chosen in islice(combinations(names, size), 40):
            headers = {**dict(one.headers), **{name: other.header(name) for name in chosen}}
            for body in (one.body, other.body):
                for query in {one.query, other.query}:
                    yield Sent(tuple(headers.items()), body, query)


def test_two_captures_make_no_third_event(subtests: pytest.Subtests) -> None:
    for label, of in PROVING.items():
        with subtests.test(label):
            one, other, *_ = captures(of)
            ledger = Ledger()
            for genuine in (one, other):
                ledger.record(deliver(of.source, genuine))
            made = [
                f"{event.event_id!r} from {mixture!r:.900}"
                for mixture in mixtures(one, other)
                for event in ledger.record(deliver(of.source, mixture))
            ]
            assert made[:3] == []


# Challenges: what is signed to test an endpoint is no event.

CAPTURED_CHALLENGES: dict[str, tuple[dict[str, str], Any]] = {
    "slack": ({}, {"type": "url_verification", "challenge": "3eZbrw1a"}),
    "zoom": ({}, {"event": "endpoint.url_validation", "payload": {"plainToken": "3eZbrw1a"}}),
    "discord": ({}, {"type": 1, "id": "17"}),
    "twitch": (
        {
            "Twitch-Eventsub-Message-Id": "m1",
            "Twitch-Eventsub-Message-Type": "webhook_callback_verification",
        },
        {"challenge": "3eZbrw1a", "subscription": {"id": "s1", "type": "channel.follow"}},
    ),
}


def test_a_captured_challenge_makes_no_event(subtests: pytest.Subtests) -> None:
    challenged = [of for of in PROVING.values() if of.preset.name in CAPTURED_CHALLENGES]
    assert {of.preset.name for of in challenged} == CAPTURED_CHALLENGES.keys()
    for of in challenged:
        with subtests.test(of.label):
            headers, document = CAPTURED_CHALLENGES[of.preset.name]
            genuine = signed(of, OutgoingRequest(headers, json.dumps(document).encode(), url=URL))
            assert unflagged(of, Ledger(), genuine)[:3] == []


CHOSEN_TOKENS = (FORGED_BODY.decode(), "PG5vdGU+", "20f9f8ed05f77439fe955c977e4c8a53", "e30", "{}")


def chosen_challenges(of: Case) -> Iterator[Sent]:
    """Have the source sign texts, and present each as an event."""
    for token in CHOSEN_TOKENS:
        for name in ("crc_token", "bt_challenge"):
            url = f"{URL}?{name}={quote(token)}"
            reply = of.source.answer_challenge(Request(Headers([]), b"", method="GET", url=url))
            text = "" if reply is None else reply.body.decode()
            if name == "crc_token" and text:
                signature = json.loads(text)["response_token"].encode()
                yield Sent(((b"x-twitter-webhooks-signature", signature),), token.encode())
            elif text:
                yield Sent((), urlencode({"bt_payload": token, "bt_signature": text}).encode())


@pytest.mark.parametrize("name", ["x-twitter", "braintree"])
def test_the_answer_to_a_chosen_challenge_makes_no_event(name: str) -> None:
    (of,) = [of for of in CASES if of.preset.name == name]
    answered = list(chosen_challenges(of))
    assert answered, "the source signs some tokens"
    assert [deliver(of.source, forged) for forged in answered if deliver(of.source, forged)] == []


# Other senders with the same secret.


def is_plain(of: Case) -> bool:
    """Return whether a scheme is an HMAC in a header, over a body, a time or Standard Webhooks."""
    scheme = of.scheme
    if not isinstance(scheme, Signature) or not isinstance(scheme.algorithm, Hmac):
        return False
    values = [value for value in scheme.coverage.values if "header:webhook-id" not in value]
    return not values and "json:" not in f"{scheme.at}{scheme.timestamp}"


SHARED = [of for of in CASES if is_plain(of)]
SENDERS = {getattr(of.scheme, "content", ""): of for of in SHARED}
"""A sender for each kind of signed content."""


def presented(to: Case, by: Case, secret: str) -> Iterator[Sent]:
    """Present what one sender signed as if another had, in its format."""
    assert isinstance(to.scheme, Signature)
    assert isinstance(by.scheme, Signature)
    outgoing = OutgoingRequest({"webhook-id": "msg_1"}, FORGED_BODY, url=URL)
    timestamp = by.scheme.put_time(outgoing, NOW).encode()
    content = by.scheme._template.render(outgoing.request(), timestamp)
    signature = by.scheme.algorithm.signer(secret)(content)
    for body in (outgoing.body, content):
        other = OutgoingRequest({"webhook-id": "msg_1"}, body, url=URL)
        to.scheme.put_signature(other, to.scheme.put_time(other, NOW), signature)
        yield from with_other_ids(to, sent(other))


def test_one_request_of_another_sender_with_the_same_secret_is_one_event(
    subtests: pytest.Subtests,
) -> None:
    for of in SHARED:
        with subtests.test(of.label):
            secret = pair_for(of.preset.name, of.scheme).private
            for by in SENDERS.values():
                ledger = Ledger()
                made = [
                    event.event_id
                    for forged in presented(of, by, secret)
                    for event in ledger.record(deliver(of.source, forged))
                ]
                assert len(made) <= 1, by.label


# What a provider signs with the same secret for another purpose.

ARTEFACTS = (
    "code=0907a61c&shop=some-shop.myshopify.com&state=1&timestamp=1337178173",
    "eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJzb21lLXNob3AifQ",
    "eyJ1c2VyX2lkIjoiMTIzIn0",
    "1234.5678:private-orders",
    "20f9f8ed05f77439fe955c977e4c8a53",
    "https://shop.example/return?order=1",
)


def test_another_signed_text_of_the_provider_makes_no_event(subtests: pytest.Subtests) -> None:
    topic = (b"x-shopify-topic", b"orders/paid")
    for of in SHARED:
        if of.preset.body_kind is None:
            continue
        with subtests.test(of.label):
            for text in ARTEFACTS:
                outgoing = OutgoingRequest({"webhook-id": "msg_1"}, text.encode(), url=URL)
                genuine = signed(of, outgoing)
                for key in (secrets.token_hex(4), secrets.token_hex(4)):
                    headers = (*genuine.headers, (b"x-shopify-event-id", key.encode()), topic)
                    assert deliver(of.source, replace(genuine, headers=headers)) == []
