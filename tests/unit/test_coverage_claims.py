"""Every scheme covers what it states, and nothing else: a signed example is changed everywhere."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from onceward.errors import RequestRefused
from onceward.model.events import Identity
from onceward.sources.presets import PRESETS
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import BodyCoverage, UrlCoverage
from onceward.sources.schemes.coverage import JOINED_FORM_FIELDS
from onceward.sources.selectors import HeaderSelector, parse_selector, parse_selectors
from tests.attacks import leaves, put
from tests.captures import NOW, URL, Case, Sent, captures, case, form
from tests.keys import SCHEMES

OTHER_URL = "https://shop.example/webhooks/another"
Examples = list[tuple[Case, Sent]]


@pytest.fixture(scope="module")
def examples() -> Examples:
    """Return every scheme with a genuine request."""
    cases = [case(preset, name) for preset, name, _ in SCHEMES]
    return [(of, example(of)) for of in cases]


def verifies(of: Case, request: Sent, url: str = URL) -> bool:
    target = f"{url}?{request.query}" if request.query else url
    received = Request(Headers(request.headers), request.body, url=target)
    try:
        of.scheme.verify(of.source.keys, received, NOW)
    except RequestRefused:
        return False
    return True


def example(of: Case) -> Sent:
    genuine = captures(of)[0]
    assert verifies(of, genuine), of.label
    return genuine


def test_a_changed_byte_is_rejected_where_the_body_is_covered(
    examples: Examples, subtests: pytest.Subtests
) -> None:
    for of, genuine in examples:
        with subtests.test(of.label):
            if of.scheme.coverage.body in (BodyCoverage.BYTES, BodyCoverage.CHECKSUM):
                for place in range(0, len(genuine.body), 7):
                    byte = bytes([genuine.body[place] ^ 1])
                    body = genuine.body[:place] + byte + genuine.body[place + 1 :]
                    assert not verifies(of, replace(genuine, body=body))
                assert not verifies(of, replace(genuine, body=genuine.body + b" "))
                assert not verifies(of, replace(genuine, body=b""))


def changed_values(of: Case, genuine: Sent) -> Iterator[tuple[str, Sent]]:
    """Yield a request with each single value of its body changed, and the value's selector."""
    fields = dict(form(genuine.body))
    inner_field = (of.preset.form_field or "").removeprefix("form:")
    if not genuine.body.startswith((b"{", b"[")):
        for name, value in fields.items():
            body = urlencode({**fields, name: "forged" + value}).encode()
            yield f"form:{name}", replace(genuine, body=body)
    text = fields.get(inner_field, "") if inner_field else genuine.body.decode()
    if text.startswith(("{", "[")):
        document = json.loads(text)
        for path, value in leaves(document):
            changed = put(document, path, 7 if isinstance(value, int) else f"forged{value}")
            inner = json.dumps(changed)
            sent = urlencode({**fields, inner_field: inner}) if inner_field else inner
            yield event_selector(of, path), replace(genuine, body=sent.encode())


def event_selector(of: Case, path: tuple[Any, ...]) -> str:
    """Return the selector of a path, relative to an event."""
    steps = [step for step in path if not isinstance(step, int)]
    outside = (of.preset.events or "").split("|")[0].removeprefix("json:")
    outer = [step.removesuffix("[]") for step in outside.split(".") if step.removesuffix("[]")]
    return "json:" + ".".join(
        map(str, steps[len(outer) :] if steps[: len(outer)] == outer else steps)
    )


def test_the_stated_values_of_a_body_are_covered_and_no_others(
    examples: Examples, subtests: pytest.Subtests
) -> None:
    for of, genuine in examples:
        with subtests.test(of.label):
            coverage = of.preset.coverage(of.scheme)
            if coverage.body not in (BodyCoverage.BYTES, BodyCoverage.CHECKSUM):
                proof = set(of.scheme.at.split("|")) | set(EMBEDDED_PROOFS.get(of.preset.name, ()))
                results = {
                    selector: verifies(of, changed)
                    for selector, changed in changed_values(of, genuine)
                    if selector not in proof
                }
                expected = {text: not coverage.covers(parse_selector(text)) for text in results}
                if JOINED_FORM_FIELDS in coverage.values:
                    # A value cannot be changed, but cut elsewhere.
                    assert not any(coverage.covers(parse_selector(text)) for text in results)
                    expected = dict.fromkeys(results, False)
                assert results == expected


@pytest.mark.parametrize("name", ["sha1", "sha256"])
def test_fields_that_are_joined_without_separators_are_not_covered_one_by_one(name: str) -> None:
    of = case(PRESETS["twilio"], name)
    genuine = example(of)
    (first, _), *_ = fields = sorted(form(genuine.body))
    text = "".join(field + value for field, value in fields)
    recut = replace(genuine, body=urlencode({first: text.removeprefix(first)}).encode())
    assert verifies(of, recut)
    identities = [identity(of, request) for request in (genuine, recut)]
    assert identities[0].event_id == identities[1].event_id
    assert identities[0].reference is not None
    assert identities[1].reference is None
    assert {"type", "reference"} <= set(
        of.preset.identity_selectors.uncovered(of.preset.coverage(of.scheme))
    )


def identity(of: Case, request: Sent) -> Identity:
    received = Request(Headers(request.headers), request.body, url=URL)
    events = of.source.verify(received, NOW)
    assert isinstance(events, list)
    return events[0].identity


EMBEDDED_PROOFS = {
    "adyen": ["json:NotificationRequestItem.additionalData.hmacSignature"],
    "aws-sns": ["json:SignatureVersion"],
    "braintree": ["form:bt_signature"],
    "dropbox-sign": ["json:event.event_hash", "form:json"],
    "mailgun": ["json:signature.signature"],
    "mandrill": ["form:mandrill_events"],
    "microsoft-graph": ["json:clientState"],
}
"""Parts of the proof itself that are in the body, and the form field around the events."""


LISTS_HEADERS = {"contentful-default", "hook0-v1"}
"""Schemes whose requests list the signed headers: an example signs more than the id and type."""


def signature_headers(of: Case) -> set[bytes]:
    selectors = parse_selectors(of.scheme.at)
    return {selector.key for selector in selectors if isinstance(selector, HeaderSelector)}


def test_the_stated_headers_are_covered_and_no_others(
    examples: Examples, subtests: pytest.Subtests
) -> None:
    for of, genuine in examples:
        with subtests.test(of.label):
            coverage = of.scheme.coverage
            names = {name for name, _ in genuine.headers} - signature_headers(of) | {b"x-unrelated"}
            rejected = {
                f"header:{name.decode()}"
                for name in names
                if not verifies(of, genuine.with_header(name, b"forged"))
            }
            alternatives = [
                value.split("|") for value in coverage.values if value.startswith("header:")
            ]
            assert all(rejected.intersection(stated) for stated in alternatives)
            if of.label not in LISTS_HEADERS:
                assert rejected <= {text for stated in alternatives for text in stated}


def test_a_time_beside_the_signature_is_covered(
    examples: Examples, subtests: pytest.Subtests
) -> None:
    for of, genuine in examples:
        with subtests.test(of.label):
            timestamp = getattr(of.scheme, "timestamp", None) or ""
            for name in signature_headers(of) if timestamp.startswith("list:") else ():
                value = genuine.header(name)
                before = re.escape(timestamp.removeprefix("list:").encode())
                changed = re.sub(rb"(%b\d+)\d" % before, rb"\g<1>9", value)
                assert changed != value
                assert not verifies(of, genuine.with_header(name, changed))
                assert of.scheme.coverage.has_time


def test_the_stated_part_of_the_url_is_covered_and_no_more(
    examples: Examples, subtests: pytest.Subtests
) -> None:
    for of, genuine in examples:
        with subtests.test(of.label):
            coverage = of.scheme.coverage
            is_covered = coverage.url is not UrlCoverage.NOTHING
            assert verifies(of, genuine, OTHER_URL) is not is_covered
            assert verifies(of, replace(genuine, query=f"{genuine.query}&x=1")) is not is_covered
            other_host = URL.replace("shop.example", "staging.example")
            assert verifies(of, genuine, other_host) is (coverage.url is not UrlCoverage.WHOLE)
            for value in coverage.values:
                if value.startswith("query:"):
                    fields = {
                        **dict(form(genuine.query.encode())),
                        value.removeprefix("query:"): "forged",
                    }
                    assert not verifies(of, replace(genuine, query=urlencode(fields)))
