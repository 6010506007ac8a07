"""A scheme states what its proof covers, and the default for duplicate bodies follows from it."""

from typing import Any

import pytest

from onceward.cli.sources import describe_preset
from onceward.model.events import DuplicateBody
from onceward.sources.configure import make_source
from onceward.sources.presets import PRESETS
from onceward.sources.schemes import BodyCoverage, Coverage, Jwt, Signature, Token, UrlCoverage
from onceward.sources.selectors import parse_selector, parse_selectors
from tests.keys import pair_for

WHOLE_BODY = Coverage(BodyCoverage.BYTES)


def covered(coverage: Coverage, alternatives: str) -> list[bool]:
    selectors = parse_selectors(alternatives)
    return [coverage.covers(item, selectors[:place]) for place, item in enumerate(selectors)]


COVERAGES: list[tuple[Any, Coverage]] = [
    (Signature(at="header:X"), WHOLE_BODY),
    (
        Signature(at="header:X", content="{method}\n{body:md5}\n{target}"),
        Coverage(BodyCoverage.BYTES, UrlCoverage.TARGET),
    ),
    (
        Signature(at="header:X", content="{url}{body:crc32}.{header:X-Id}"),
        Coverage(BodyCoverage.CHECKSUM, UrlCoverage.WHOLE, ("header:x-id",)),
    ),
    (
        Signature(at="header:X", content="{json:token}{timestamp}", timestamp="header:X-Time"),
        Coverage(BodyCoverage.FIELDS, values=("json:token", "header:x-time"), has_time=True),
    ),
    (
        Signature(at="header:X", content="{form:token}"),
        Coverage(BodyCoverage.FIELDS, values=("form:token",)),
    ),
    (
        Signature(at="header:X", timestamp="json:time"),
        Coverage(BodyCoverage.BYTES, has_time=True),
    ),
    (Signature(at="header:X", timestamp="header:X-Time"), WHOLE_BODY),
    (
        Jwt(at="header:X-Token", body_claim="hash", url_claim="url"),
        Coverage(BodyCoverage.BYTES, UrlCoverage.WHOLE, ("hash:x-token",), has_time=True),
    ),
    (
        Jwt(at="header:X", audience_is_url=True),
        Coverage(url=UrlCoverage.WHOLE, has_time=True),
    ),
    (Token(at="header:X"), Coverage()),
]


def test_a_scheme_states_what_it_covers(subtests: pytest.Subtests) -> None:
    for scheme, expected in COVERAGES:
        with subtests.test(scheme=scheme):
            assert expected == scheme.coverage


@pytest.mark.parametrize(
    "selector",
    ["json:id", "form:id", "body:sha256"],
)
def test_a_covered_body_covers_what_is_read_from_it(selector: str) -> None:
    assert WHOLE_BODY.covers(parse_selector(selector))


@pytest.mark.parametrize("selector", ["query:id", "header:X-Id", "hash:X-Token"])
def test_a_covered_body_covers_neither_the_url_nor_a_header(selector: str) -> None:
    assert not WHOLE_BODY.covers(parse_selector(selector))


@pytest.mark.parametrize(
    ("url", "expected"),
    [(UrlCoverage.WHOLE, True), (UrlCoverage.TARGET, True), (UrlCoverage.NOTHING, False)],
)
def test_a_covered_target_covers_the_query(url: UrlCoverage, *, expected: bool) -> None:
    assert Coverage(url=url).covers(parse_selector("query:id")) is expected


def test_every_form_field_makes_a_whole_body() -> None:
    coverage = Coverage(BodyCoverage.FIELDS, values=("form:*",))
    assert coverage.covers(parse_selector("body:sha256"))
    assert not coverage.covers(parse_selector("json:id"))


def test_a_signed_token_is_covered_in_every_case_of_its_header() -> None:
    coverage = Jwt(at="header:X-Token", body_claim="hash").coverage
    assert coverage.covers(parse_selector("hash:x-TOKEN"))


def test_a_signed_query_parameter_needs_the_url() -> None:
    assert Signature(at="header:X", content="{query:id}.{body}").needs_url
    assert not Signature(at="header:X", content="{header:X-Id}.{body}").needs_url


def test_named_values_are_covered_and_others_are_not() -> None:
    coverage = Coverage(BodyCoverage.FIELDS, values=("json:a.b", "form:c", "query:d", "header:x-e"))
    names = "json:a.b|form:c|query:d|header:X-E|json:a|form:d|query:c|header:X-F"
    assert covered(coverage, names) == [True] * 4 + [False] * 4


def test_of_several_signed_headers_only_the_first_present_is_covered() -> None:
    coverage = Signature(at="header:X", content="{header:X-A|header:X-B}.{body}").coverage
    assert covered(coverage, "header:X-A|header:X-B") == [True, True]
    assert covered(coverage, "header:X-B|header:X-A") == [False, True]


def test_a_checksum_does_not_cover_the_fields_of_a_body() -> None:
    coverage = Coverage(BodyCoverage.CHECKSUM)
    assert not coverage.covers(parse_selector("json:id"))


def test_events_in_a_covered_form_field_are_covered() -> None:
    coverage = Coverage(BodyCoverage.FIELDS, values=("form:payload",))
    assert coverage.of_events(parse_selector("form:payload")).body is BodyCoverage.BYTES
    assert coverage.of_events(parse_selector("form:other")) == coverage
    assert coverage.of_events(None) == coverage


def test_a_preset_says_what_is_read_from_uncovered_content(subtests: pytest.Subtests) -> None:
    for preset, uncovered in [
        ("stripe", []),
        ("github", ["id", "type"]),
        ("shopify", ["id", "type"]),
        ("netlify", ["type"]),
        ("mercadopago", ["id", "type"]),
        ("telegram", ["id", "reference"]),
        ("twilio", ["id", "type", "reference"]),
    ]:
        with subtests.test(preset):
            described = describe_preset(PRESETS[preset])["schemes"].values()
            assert [scheme["uncovered"] for scheme in described] == [uncovered] * len(described)


DUPLICATE_BODIES: list[tuple[str, str | None, DuplicateBody]] = [
    ("stripe", None, DuplicateBody.ALLOWED),  # the id is in the signed body
    ("standard-webhooks", None, DuplicateBody.ALLOWED),  # the id is a signed header
    ("github", None, DuplicateBody.FLAGGED),  # the id is an unsigned header
    ("dropbox-sign", None, DuplicateBody.FLAGGED),  # two of four parts of the id are signed
    ("paypal", None, DuplicateBody.FLAGGED),  # a checksum of the body is signed
    ("adyen", "items", DuplicateBody.ALLOWED),  # all parts of the id are signed
    ("gitlab", "static-token", DuplicateBody.ALLOWED),  # nothing is signed
]


def test_the_same_body_under_another_id_is_flagged_if_the_id_is_not_covered(
    subtests: pytest.Subtests,
) -> None:
    for preset, scheme, expected in DUPLICATE_BODIES:
        with subtests.test(preset):
            secret = pair_for(preset, PRESETS[preset].scheme(scheme)).public
            source = make_source("source", preset=preset, scheme=scheme, secrets=[secret])
            assert source.duplicate_body is expected
