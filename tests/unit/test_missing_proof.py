"""A request without the header of its proof is refused by its head: as with any body."""

from dataclasses import replace
from typing import Any

import pytest

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.request import Headers, Request
from onceward.sources.source import Source
from tests.captures import NOW, URL, Case, captures, case, deliver
from tests.keys import SCHEMES

CASES = [case(preset, name) for preset, name, _ in SCHEMES]
ASK_WITHOUT_PROOF = {"asana", "notion"}
"""Presets whose senders provision a secret with an unsigned POST."""


def proof_headers(of: Case) -> list[str]:
    """Return the headers that may carry the proof, if it can be in no other place."""
    places = of.scheme.at.lower().split("|")
    in_headers = all(place.startswith("header:") for place in places)
    if not in_headers or of.preset.name in ASK_WITHOUT_PROOF:
        return []
    return [place.removeprefix("header:") for place in places]


def missing(source: Source, pairs: list[tuple[bytes, bytes]]) -> tuple[str, RejectionCause] | None:
    rejected = source.missing_proof(Headers(pairs))
    return None if rejected is None else (rejected.check, rejected.cause)


def test_no_genuine_request_lacks_its_proof(subtests: pytest.Subtests) -> None:
    for of in CASES:
        for number, genuine in enumerate(captures(of)):
            with subtests.test(of.label, number=number):
                assert missing(of.source, list(genuine.headers)) is None
                assert deliver(of.source, genuine)


def test_each_alternative_proof_is_enough(subtests: pytest.Subtests) -> None:
    for of in CASES:
        for name in proof_headers(of):
            with subtests.test(of.label, header=name):
                assert missing(of.source, [(name.encode(), b"")]) is None


def test_without_the_header_the_head_is_refused_as_the_whole_request_would_be(
    subtests: pytest.Subtests,
) -> None:
    refused = 0
    for of in CASES:
        names = {name.encode() for name in proof_headers(of)}
        for number, genuine in enumerate(captures(of)):
            with subtests.test(of.label, number=number):
                pairs = [pair for pair in genuine.headers if pair[0] not in names]
                early = missing(of.source, pairs)
                if not names:
                    assert early is None
                    continue
                with pytest.raises(SignatureRejected) as late:
                    of.source.verify(Request(Headers(pairs), genuine.body, url=URL), NOW)
                assert early == (late.value.check, late.value.cause)
                refused += 1
    assert refused > len(CASES)


def test_a_source_that_may_need_the_body_reads_it(subtests: pytest.Subtests) -> None:
    secrets = ["a-long-random-text"]
    sources = {
        "unsigned": make_source("lab", preset="hmac", unsigned=True),
        "kept": make_source("lab", preset="hmac", secrets=secrets, keep_rejected=True),
        "challenged": make_source("notion", secrets=secrets),
        "signed in the body": make_source("adyen", secrets=["5f1c" * 16]),
        "token in the query": make_source(
            "cloudevents", scheme="access-token", secrets=secrets, url=URL
        ),
    }
    in_query: Any = sources["token in the query"].scheme
    in_either = replace(in_query, at=f"header:x-token|{in_query.at}")
    sources["token in the header or the query"] = replace(
        sources["token in the query"], scheme=in_either
    )
    for name, source in sources.items():
        with subtests.test(name):
            assert missing(source, []) is None
    assert missing(replace(sources["kept"], keeps_rejected=False), []) is not None
