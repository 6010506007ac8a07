"""The ordering key of an event is the text of one value in its payload."""

import hashlib
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import PermanentError
from onceward.work.definition.ordering_keys import key_text, read_keys, require_key
from onceward.work.payloads.payload import decode

FORM = b'{"content-type":"application/x-www-form-urlencoded"}'
DEEP = 100_000


def key(body: bytes, path: str, *, source: str = "stripe", headers: bytes = b"{}") -> str | None:
    (found,) = read_keys(source, headers, body, [path])
    return found


def sha256(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


TEXT_KEYS: list[tuple[bytes, str, str]] = [
    (b'{"id": "a"}', "id", "a"),
    (b'{"data": {"object": {"id": "in_1"}}}', "data.object.id", "in_1"),
    (b'{"items": [{"id": 1}, {"id": 2}]}', "items.1.id", "2"),
    (b'["a", "b"]', "1", "b"),
    (b'{"0": "member"}', "0", "member"),
    (b'{"id": ""}', "id", ""),
    (b'{"id": " A "}', "id", " A "),
    (b'{"id": "1", "id": "2"}', "id", "2"),
    (b'{"\\u00e9": "\\u00e9"}', "é", "é"),
    (b'{"id": "' + b"a" * 255 + b'"}', "id", "a" * 255),
]


def test_a_text_is_taken_as_it_is(subtests: pytest.Subtests) -> None:
    for body, path, expected in TEXT_KEYS:
        with subtests.test(body=body):
            assert key(body, path) == expected


def test_a_number_and_its_text_are_the_same_key(subtests: pytest.Subtests) -> None:
    for text in ("5", "-7", "12345678901234567890123", "2.5", "1e-7"):
        with subtests.test(text=text):
            assert key(b'{"id": %s}' % text.encode(), "id") == text
            assert key(b'{"id": "%s"}' % text.encode(), "id") == text


def test_a_text_that_cannot_be_stored_is_hashed(subtests: pytest.Subtests) -> None:
    for text in ("a\0b", "é" * 128, "a" * 256, "9" * 300):
        with subtests.test(text=text):
            assert key(json.dumps({"id": text}).encode(), "id") == sha256(text)


def test_a_lone_surrogate_is_hashed() -> None:
    assert key_text("a\ud800") == sha256("a\ud800")


MISSING: list[tuple[bytes, str]] = [
    (b"{}", "id"),
    (b'{"id": null}', "id"),
    (b'{"id": "a"}', "id.more"),
    (b'{"id": ["a"]}', "id.1"),
    (b'{"id": ["a"]}', "id.-1"),
    (b'{"id": ["a"]}', "id.first"),
    (b'{"id": ["a"]}', "id.\N{ARABIC-INDIC DIGIT ZERO}"),
    (b'{"id": ["a"]}', "id." + "9" * 250),
    (b"[]", "id"),
    (b"null", "id"),
    (b"5", "id"),
    (b"", "id"),
    (b"not JSON", "id"),
    (b'{"id": "a"', "id"),
    (b'{"id": "a", "more": "\xff"}', "id"),
    (b'{"id":' * DEEP + b'"a"' + b"}" * DEEP, "id"),
    (b'{"id": "a", "deep": ' + b"[" * DEEP + b"]" * DEEP + b"}", "id"),
]


def test_a_missing_value_is_no_key_and_no_fault(subtests: pytest.Subtests) -> None:
    for body, path in MISSING:
        with subtests.test(body=body[:24], path=path):
            assert key(body, path) is None
            require_key("stripe", b"{}", body, path)


def test_a_value_of_another_type_is_no_key_and_a_fault(subtests: pytest.Subtests) -> None:
    for value, kind in (
        ("true", "a boolean"),
        ("false", "a boolean"),
        ("[]", "a list"),
        ("{}", "an object"),
    ):
        with subtests.test(value=value):
            body = b'{"a": {"id": %s}}' % value.encode()
            assert key(body, "a.id") is None
            message = f"ordering_key a.id is {kind}; the path must lead to a text or a number"
            with pytest.raises(PermanentError) as raised:
                require_key("stripe", b"{}", body, "a.id")
            assert str(raised.value) == message


def test_the_key_of_an_ingested_event_is_in_its_payload() -> None:
    body = b'{"event_id": "e", "id": "outside", "payload": {"id": "inside"}}'
    assert key(body, "id", source="ingest") == "inside"
    assert key(body, "payload.id", source="stripe") == "inside"
    assert key(body, "payload.id", source="ingest") is None
    assert key(b'{"id": "outside"}', "id", source="ingest") is None


def test_the_key_of_a_form_is_one_of_its_fields() -> None:
    assert key(b"CallSid=CA1&Note=a+b%20c", "CallSid", headers=FORM) == "CA1"
    assert key(b"CallSid=CA1&Note=a+b%20c", "Note", headers=FORM) == "a b c"
    assert key(b"CallSid=CA1", "CallSid.more", headers=FORM) is None
    assert key(b"CallSid=CA1", "CallSid") is None
    assert key(b"\xff=1", "CallSid", headers=FORM) is None


def test_each_path_has_its_own_key() -> None:
    assert read_keys("stripe", b"{}", b'{"a": 1, "b": "x"}', ["b", "c", "a"]) == ["x", None, "1"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from("ab01"), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def at(document: Any, path: list[str]) -> Any:
    """Return the value at a path, in the plainest way."""
    try:
        for name in path:
            document = document[int(name) if isinstance(document, list) else name]
    except (KeyError, ValueError, TypeError, IndexError):
        return None
    return document


@given(JSON, st.lists(st.sampled_from("ab01"), min_size=1, max_size=3))
def test_the_key_is_the_value_that_the_handler_sees(document: Any, path: list[str]) -> None:
    body = msgspec.json.encode(document)
    value = at(decode(body), path)
    expected = None
    if isinstance(value, str):
        expected = sha256(value) if "\0" in value else value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        expected = msgspec.json.encode(value).decode()
    assert key(body, ".".join(path)) == expected


@given(
    st.binary(max_size=80) | st.binary(max_size=40).map(lambda body: b'{"a":' + body + b"}"),
    st.sampled_from(["a", "a.b", "0", "a.0.b"]),
    st.sampled_from(["stripe", "ingest"]),
    st.sampled_from([b"{}", FORM, b"", b"[]", b'{"content-type": 5}']) | st.binary(max_size=20),
)
def test_no_bytes_raise(body: bytes, path: str, source: str, headers: bytes) -> None:
    found = key(body, path, source=source, headers=headers)
    assert found is None or len(found.encode()) <= 255
    assert found is None or "\0" not in found


@given(st.text(st.characters(codec=None), max_size=300) | st.integers() | st.floats())
def test_every_key_can_be_stored(value: float | str) -> None:
    text = key_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        assert text is None
    else:
        assert text is not None
        assert len(text.encode()) <= 255
        assert "\0" not in text
