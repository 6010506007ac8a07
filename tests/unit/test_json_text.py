"""The limits of JSON are found in the bytes alone: every process finds the same ones."""

import json
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.errors import InvalidEnvelope, NoEventId
from onceward.model.events import Identity
from onceward.sources.envelope import identify_envelope
from onceward.sources.identify import identify, parse_identity_selectors
from onceward.sources.json_text import (
    LONG_NUMBER,
    MAX_LEVELS,
    MAX_NUMBER_CHARACTERS,
    TOO_DEEP,
    decode_json,
    exceeded_limit,
    is_too_deep,
)
from onceward.sources.request import Headers, Request
from onceward.sources.unpacking import EventPaths

T = TypeVar("T")
STACK_FRAMES = 350
"""Calls of a framework around ours: with these, the interpreter stops at 600 levels or less."""


def deep(levels: int) -> bytes:
    return b'{"a":[' * (levels // 2) + b"1" + b"]}" * (levels // 2)


def below(frames: int, call: Callable[[], T]) -> T:
    """Call a function as deep in the stack as a framework would."""
    return below(frames - 1, call) if frames else call()


def body(levels: int) -> bytes:
    """Return a body with two usable parts of an id, and as many levels beside them."""
    return b'{"id": "evt_1", "n": 1, "type": "t", "x": %s}' % deep(levels)


BATCH = parse_identity_selectors(["json:id", "json:n"], ["json:type"], None)
SINGLE = parse_identity_selectors(["json:id"], ["json:type"], None)


def identity(selectors: Any, content: bytes) -> Identity | str:
    try:
        return identify(selectors, Request(Headers([]), content))
    except NoEventId as error:
        return str(error)


@pytest.mark.parametrize("selectors", [BATCH, SINGLE], ids=["two parts", "one part"])
def test_a_body_has_the_same_id_at_every_depth_of_the_stack(selectors: Any) -> None:
    found = set()
    for levels in range(460, 1100, 4):
        content = body(levels)
        alone = identity(selectors, content)
        assert below(STACK_FRAMES, partial(identity, selectors, content)) == alone
        is_read = alone in (Identity("evt_1|1", "t"), Identity("evt_1", "t"))
        assert is_read == (levels + 1 <= MAX_LEVELS)
        found.add(is_read)
    assert found == {True, False}


def test_a_body_has_the_same_id_at_every_limit_of_digits() -> None:
    content = b'{"id": -0, "type": %s, "type": "paid"}' % (b"1" * 700)
    found = identity(SINGLE, content)
    default = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert identity(SINGLE, content) == found == Identity("0", "paid")
    finally:
        sys.set_int_max_str_digits(default)


def test_a_batch_is_split_alike_at_every_depth_of_the_stack() -> None:
    paths = EventPaths("json:[]")
    for levels in range(460, 1100, 4):
        content = b"[1, %s]" % deep(levels)
        events = [b"1", deep(levels)] if levels + 1 <= MAX_LEVELS else [content]
        assert paths.split(content) == events
        assert below(STACK_FRAMES, partial(paths.split, content)) == events


def test_an_own_event_is_refused_beyond_the_limit_alone() -> None:
    envelope = b'{"event_id": "1", "event_type": "t", "payload": %s}'
    assert below(STACK_FRAMES, lambda: identify_envelope(envelope % deep(498))).event_id == "1"
    for levels in (500, 700, 5_000):
        with pytest.raises(InvalidEnvelope, match="nested more than 500 levels deep"):
            identify_envelope(envelope % deep(levels))


def document_of(content: bytes) -> Any:
    return Request(Headers([]), content).document


def test_a_scheme_that_signs_members_reads_a_body_alike_too() -> None:
    for levels in (498, 500, 502, 600, 900):
        content = deep(levels)
        is_read = levels <= MAX_LEVELS
        for frames in (0, STACK_FRAMES):
            document = below(frames, partial(document_of, content))
            assert (document is not None) is is_read


def depth(value: object) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


TEXTS = st.text(alphabet='[]{}"\\/ab,:0é\n', max_size=8)
DOCUMENTS = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


STYLES: list[dict[str, Any]] = [{}, {"ensure_ascii": False, "separators": (",", ":")}]


@settings(deadline=None)  # a busy machine must not fail a test
@given(DOCUMENTS, st.sampled_from(STYLES), st.sampled_from([498, 499, 500, 501]))
def test_the_scan_counts_the_levels_that_a_decoder_would(
    document: object, style: dict[str, Any], levels: int
) -> None:
    text = json.dumps(document, **style).encode()
    around = levels - depth(document)
    # The document comes twice: beside levels that open and close, and within them.
    nested = b"[%s,%s%s%s]" % (text, b"[" * (around - 1), text, b"]" * (around - 1))
    assert is_too_deep(nested) is (levels > MAX_LEVELS)
    if levels <= MAX_LEVELS:
        decode_json(nested)


@settings(deadline=None)
@given(st.sampled_from([b"%s", b"-%s", b"%s.5", b"0.%s", b"%se9"]), st.integers(480, 520), TEXTS)
def test_the_scan_finds_long_numbers_and_no_long_texts(form: bytes, digits: int, text: str) -> None:
    number = form % (b"1" * digits)
    around = json.dumps([text, "1" * 600, text]).encode()[:-1]
    is_long = len(number) > MAX_NUMBER_CHARACTERS
    content = b"%s, %s]" % (around, number)
    assert (exceeded_limit(content) is not None) is is_long
    if is_long:
        with pytest.raises(ValueError, match="a number of more than 500 characters"):
            decode_json(content)


def naive_depth(text: bytes) -> int:
    depth = deepest = 0
    is_in_string = is_escaped = False
    for byte in text:
        if is_in_string:
            is_in_string = is_escaped or byte != ord('"')
            is_escaped = byte == ord("\\") and not is_escaped
        elif byte == ord('"'):
            is_in_string = True
        else:
            depth += (byte in b"[{") - (byte in b"]}")
            deepest = max(deepest, depth)
    return deepest


PIECES = (b'"[[["', b'"]"', b'"\\\\"', b'"\\"["', b'""', b'"a"', b'",,"')


@pytest.mark.parametrize("limit", [500, 501])
@pytest.mark.parametrize("seed", range(3))
def test_the_scan_counts_across_its_blocks(seed: int, limit: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - not a secret
    parts, depth = [], 0
    for _ in range(60_000):
        if rng.random() < 0.4:
            parts.append(rng.choice(PIECES))
        elif depth < limit and (depth == 0 or rng.random() < 0.55):
            parts.append(rng.choice((b"[", b"{")))
            depth += 1
        else:
            parts.append(b"]")
            depth -= 1
    text = b"".join(parts)
    assert naive_depth(text) == limit
    assert is_too_deep(text) is (limit > MAX_LEVELS)


def test_the_shortest_texts_beyond_a_limit_are_found() -> None:
    """Shorter ones are not scanned at all."""
    assert exceeded_limit(b"9" * MAX_NUMBER_CHARACTERS) is None
    assert exceeded_limit(b"9" * (MAX_NUMBER_CHARACTERS + 1)) == LONG_NUMBER
    assert exceeded_limit(b"[" * MAX_LEVELS) is None
    assert exceeded_limit(b"[" * (MAX_LEVELS + 1)) == TOO_DEEP
