"""The work for a request that is not verified yet is bounded, and bounded reading changes no value.

`MAX_…` constants are the bounds; these tests count operations and do not measure time.
"""

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.sources.forms import (
    MAX_FIELDS,
    MAX_LENIENT_ESCAPES,
    strict_urlencoded_fields,
    urlencoded_fields,
)
from onceward.sources.presets.vendor_schemes import box
from onceward.sources.request import MAX_CONTAINERS, MAX_PARSED_BYTES, Headers, Request
from onceward.sources.schemes.public_keys import PublicKey
from onceward.sources.schemes.scheme import MAX_SIGNATURES

ENOUGH = MAX_LENIENT_ESCAPES + 1
PIECES = ["%0A", "%0d", "\n", "\r", "=", "&", "_", " ", "\t", "+", "a", "%3D", "%26", "%25", "\0"]
PIECES += ["%C3%A9", "%FF", "%c3", "-", "."]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_fields_with_many_escapes_are_read_as_others_are(text: str) -> None:
    assert strict_urlencoded_fields(text) == parse_qsl(text, keep_blank_values=True)


def test_forms_that_differ_in_a_byte_are_not_read_alike() -> None:
    forms = [Request(Headers([]), b"a=" + bytes([byte])).form for byte in range(128, 256)]
    assert all(forms.count(form) == 1 for form in forms)


def test_a_large_form_with_valid_escapes_is_read() -> None:
    value = '{"name":"Zoë","at":"10:00"}' * 4000
    text = f"events={quote_plus(value)}&b="
    assert text.count("%") > MAX_LENIENT_ESCAPES
    assert urlencoded_fields(text) == [("events", value), ("b", "")]


def test_a_form_with_many_escapes_and_an_invalid_one_is_not_read(subtests: pytest.Subtests) -> None:
    for text in ("%", "%4", "%zz", "%4g", "%%41", "é%41"):
        with subtests.test(text=text):
            request = Request(Headers([]), (f"a={text * ENOUGH}").encode())
            assert request.exceeds_form_limits
            assert request.form == []
            assert not Request(Headers([]), f"a={text}".encode()).exceeds_form_limits


def test_a_form_with_one_escape_among_many_characters_beyond_ascii_is_not_read() -> None:
    runs = "aé".encode("latin-1") * ENOUGH
    assert Request(Headers([]), b"a=%41" + runs).exceeds_form_limits
    assert not Request(Headers([]), b"a=A" + runs).exceeds_form_limits
    assert not Request(Headers([]), b"a=%41" + runs[:9]).exceeds_form_limits


def test_a_form_with_many_escapes_has_the_same_limit_of_fields() -> None:
    for count, is_read in ((MAX_FIELDS, True), (MAX_FIELDS + 1, False)):
        text = "&".join(["a=" + "%41" * 11] * count)
        assert text.count("%") > MAX_LENIENT_ESCAPES
        assert (urlencoded_fields(text) is not None) == is_read


@pytest.mark.parametrize("open_and_close", ["[]", "{}"])
def test_json_of_many_lists_and_objects_is_not_decoded(open_and_close: str) -> None:
    def document(count: int) -> object:
        body = f"[{','.join([open_and_close] * (count - 1))}]".encode()
        assert len(body) <= MAX_PARSED_BYTES
        return Request(Headers([]), body).document

    assert document(MAX_CONTAINERS) is not None
    assert document(MAX_CONTAINERS + 1) is None


def test_json_over_the_limit_of_bytes_is_not_decoded() -> None:
    text = b'"' + b"a" * (MAX_PARSED_BYTES - 2) + b'"'
    assert Request(Headers([]), text).document is not None
    assert Request(Headers([]), text + b" ").document is None


def test_fewer_signatures_of_a_large_content_are_tried(subtests: pytest.Subtests) -> None:
    calls: list[bytes] = []

    def verifier(signature: bytes, _: bytes) -> None:
        calls.append(signature)
        raise ValueError

    signatures = [bytes([number]) for number in range(MAX_SIGNATURES)]
    for megabytes, tried in ((0, 10), (1, 10), (2, 8), (5, 3), (8, 2), (20, 2)):
        with subtests.test(megabytes=megabytes):
            calls.clear()
            assert not PublicKey(verifier).verifies(b"x" * (megabytes * 2**20), signatures)
            assert calls == signatures[:tried]


def character_by_character(text: str) -> str:
    """Escape a body as Box's library does, one character at a time."""
    short = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

    def escape(match: re.Match[str]) -> str:
        units = match[0].encode("utf-16-be").hex("-", 2).split("-")
        return short.get(match[0]) or "".join(rf"\u{unit}" for unit in units)

    return re.sub(r"[^\x20-\x7e]", escape, re.sub(r"\\(?!/)", r"\\\\", text))


escape_body: Callable[[bytes], bytes | None] = box._escape_body


@given(
    st.text(st.sampled_from('ab"\\/\n\r\t\x00\x1f\x7fé☕😀\u2028') | st.characters(codec="utf-8"))
)
def test_box_escapes_are_those_of_its_library(text: str) -> None:
    expected = None if {"\b", "\f"} & set(text) else character_by_character(text).encode()
    assert escape_body(text.encode()) == expected


def test_a_body_of_box_that_is_not_utf_8_has_no_escaped_form() -> None:
    assert escape_body("é".encode("latin-1")) is None
