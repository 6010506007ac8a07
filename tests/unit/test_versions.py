"""Versions and their keys: what is read from a payload, and how versions compare."""

import itertools
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from onceward import Event, Inbox, PermanentError, Transaction
from onceward.errors import ConfigurationError, MalformedPayload
from onceward.model.jobs import Job
from onceward.model.versions import Version, Watermark, parse_version, version_json
from onceward.work.definition.ordering_keys import read_keys
from onceward.work.definition.versions import VersionRule, read_version
from onceward.work.running.staleness import make_versioned

RULE = VersionRule("created", "data.id")
FORM = b'{"content-type": "application/x-www-form-urlencoded"}'


def job(source: str = "stripe", event_id: str = "evt_1", headers: bytes = b"{}") -> Job:
    now = datetime.now(UTC)
    return Job(1, "sync", 0, 3, 1, source, event_id, "x", None, now, headers, None)


def read(body: bytes, **fields: Any) -> tuple[str, Version]:
    key, watermark = read_version(RULE, job(**fields), body)
    assert (watermark.event_id, watermark.source) == ("evt_1", fields.get("source", "stripe"))
    return key, watermark.version


def version_of(text: str) -> Version:
    return read(b'{"created": %s, "data": {"id": "a"}}' % text.encode())[1]


# Options.


async def sync(event: Event[Any], tx: Transaction) -> None:
    pass


def rule(**options: Any) -> VersionRule | None:
    inbox = Inbox("sqlite:///x.db")
    inbox.on("*", **options)(sync)
    return inbox.service().handlers["sync"].version_rule


def test_a_handler_has_no_versions_by_default() -> None:
    assert rule() is None
    assert rule(version=None, version_key=None) is None


def test_the_options_are_paths_like_that_of_an_ordering_key() -> None:
    options = {"version": "created", "version_key": "data.object.id"}
    assert rule(**options) == VersionRule("created", "data.object.id")
    assert rule(**options, ordering_key="data.object.id") is not None


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"version": "a"}, "version needs version_key beside it; add it, or remove version"),
    (
        {"version_key": "a"},
        "version_key needs version beside it; add it, or remove version_key",
    ),
    ({"version": 5, "version_key": "a"}, "version is 5; use a path into the payload"),
    ({"version": "a", "version_key": True}, "version_key is True; use a path into the payload"),
    ({"version": "$.a", "version_key": "b"}, "version is '$.a'; write 'a'"),
    ({"version": "a", "version_key": ""}, "version_key is empty"),
    ({"version": "a", "version_key": "b[0]"}, "version_key is 'b[0]'; write the position in"),
    (
        {"version": "header:date", "version_key": "b"},
        "version is 'header:date'; it is read from the payload: use a path such as",
    ),
    (
        {"version": "a", "version_key": "b", "transaction": "shared"},
        "version does not work with transaction='shared': a stale job must roll back alone, ",
    ),
]


def test_options_that_cannot_work_are_refused(subtests: pytest.Subtests) -> None:
    for options, fault in WRONG_OPTIONS:
        with subtests.test(options=options):
            with pytest.raises(ConfigurationError, match=re.escape(fault)) as raised:
                rule(**options)
            assert len(raised.value.faults) == 1


# Reading.


def test_the_version_and_the_key_are_in_the_payload() -> None:
    assert read(b'{"created": 7, "data": {"id": "sub_1"}}') == ("sub_1", Decimal(7))
    enveloped = b'{"created": 1, "payload": {"created": 7, "data": {"id": 5}}}'
    assert read(enveloped, source="ingest") == ("5", Decimal(7))
    form = read_version(VersionRule("a", "b"), job(headers=FORM), b"a=7&b=x")
    assert form == ("x", Watermark("7", "evt_1", "stripe"))


KEYS: list[tuple[str, str]] = [
        ('"a"', "a"), ('""', ""), ("5", "5"), ('"5"', "5"), ("5.0", "5.0"), ("5.5", "5.5"),
        ("5.50", "5.5"), ("1E+30", "1e30"),
    ]  # fmt: skip


def test_a_key_is_the_text_that_an_ordering_key_would_be(subtests: pytest.Subtests) -> None:
    for value, key in KEYS:
        with subtests.test(value=value):
            body = b'{"created": 7, "data": {"id": %s}}' % value.encode()
            assert read(body)[0] == key
            assert read_keys("stripe", b"{}", body, ["data.id"]) == [key]


UNUSABLE: list[tuple[bytes, str]] = [
    (b'{"data": {"id": "a"}}', "version created is missing or null in the payload; "),
    (b'{"created": null, "data": {"id": "a"}}', "version created is missing or null in the "),
    (b'{"created": true, "data": {"id": "a"}}', "version created is a boolean; the path must"),
    (b'{"created": [1], "data": {"id": "a"}}', "version created is a list; the path must"),
    (b'{"created": {}, "data": {"id": "a"}}', "version created is an object; the path must"),
    (b'{"created": 1}', "version_key data.id is missing or null in the payload; "),
    (b'{"created": 1, "data": {"id": null}}', "version_key data.id is missing or null in the"),
    (b'{"created": 1, "data": {"id": false}}', "version_key data.id is a boolean; "),
    (b'{"created": 1, "data": {"id": ["a"]}}', "version_key data.id is a list; "),
    (b"[]", "version_key data.id is missing or null in the payload; "),
]


def test_a_payload_without_a_usable_version_or_key_fails_with_the_path(
    subtests: pytest.Subtests,
) -> None:
    for body, message in UNUSABLE:
        with (
            subtests.test(body=body),
            pytest.raises(PermanentError, match=f"^{re.escape(message)}"),
        ):
            read(body)


@pytest.mark.parametrize("value", ['"' + "a" * 1001 + '"', '"' + "é" * 501 + '"'])
def test_a_version_has_a_limit(value: str) -> None:
    reason = r"^version created is 100\d bytes long; the limit is 1000; name a counter or a time$"
    with pytest.raises(PermanentError, match=reason):
        version_of(value)


@pytest.mark.parametrize("value", ["1" * 500, '"' + "é" * 500 + '"', "0." + "1" * 498])
def test_a_version_may_be_as_long_as_its_limit(value: str) -> None:
    assert version_json(version_of(value)) == value


def test_a_malformed_payload_is_reported_with_its_fault() -> None:
    with pytest.raises(MalformedPayload, match=r"^Malformed payload: not JSON \(at "):
        read(b'{"created": 1,')
    with pytest.raises(MalformedPayload, match=r"payload: created: number out of range$"):
        read(b'{"created": 1e99999999999999999999, "data": {"id": "a"}}')


# Comparing.

NUMBERS = (
    "-1e300", "-1", "-0.5", "0", "1e-400", "0.1", "0.10000000000000000000000000000001", "1",
    "1.5", "9", "10", "1763400000.123456788", "1763400000.123456789",
    "9007199254740992", "9007199254740993", "9007199254740993.5",
    "18446744073709551616", "18446744073709551617", "1" + "0" * 299, "1" + "0" * 298 + "1", "1e300",
)  # fmt: skip
TEXTS = ("", "10", "2026-11-17T00:00:00Z", "9", "A", "a", "a\0", "aa", "é", "\uffff", "\U00010000")


def text_version(text: str) -> Version:
    return version_of(version_json(text))


def test_numbers_compare_exactly(subtests: pytest.Subtests) -> None:
    for earlier in range(len(NUMBERS)):
        with subtests.test(NUMBERS[earlier][:40]):
            first = Watermark(version_of(NUMBERS[earlier]), "z", "stripe")
            for text in NUMBERS[earlier + 1 :]:
                later = Watermark(version_of(text), "a", "stripe")
                assert first.is_older_than(later), text
                assert not later.is_older_than(first), text


@pytest.mark.parametrize("texts", [("5", "5.0", "5e0", "0.05E+2"), ("0", "-0", "0.000", "0e9")])
def test_one_number_written_in_two_ways_is_one_version(texts: tuple[str, ...]) -> None:
    for one, other in itertools.permutations(texts, 2):
        assert version_of(one) == version_of(other)


def test_texts_compare_by_code_point() -> None:
    for first, later in itertools.combinations(TEXTS, 2):
        assert Watermark(text_version(first), "z", "s").is_older_than(
            Watermark(text_version(later), "a", "s")
        ), (first, later)


def test_a_version_survives_its_text() -> None:
    for version in (*map(version_of, NUMBERS), *map(text_version, TEXTS)):
        stored = version_json(version)
        assert "\0" not in stored
        assert parse_version(stored) == version
        assert type(parse_version(stored)) is type(version)


def test_equal_versions_are_ordered_by_the_id_and_then_by_the_source() -> None:
    one = Watermark(Decimal(5), "evt_1", "stripe")
    in_order = [one, replace(one, source="stripf"), replace(one, event_id="evt_2", source="a")]
    for (a, first), (b, second) in itertools.product(enumerate(in_order), repeat=2):
        assert first.is_older_than(second) is (a < b)


def test_a_job_knows_whether_a_person_wants_it_even_if_stale() -> None:
    body = b'{"created": 7, "data": {"id": "sub_1"}}'
    assert not make_versioned(RULE, job(), body).even_if_stale
    assert make_versioned(RULE, job()._replace(even_if_stale=True), body).even_if_stale
