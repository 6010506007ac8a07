"""Decodes payloads for tests, and checks that no error quotes them."""

import functools
from typing import Any

import pytest

from onceward.errors import MalformedPayload
from onceward.work.payloads.models import make_decoder
from onceward.work.payloads.payload import decode

SECRET = "hunter"
"""The value that the payloads of tests contain, and no error may contain."""


def decoded(model: Any, body: bytes, **options: Any) -> Any:
    return decode(body, make_decoder(model), **options)


def fault(model: Any, body: bytes, **options: Any) -> str:
    with pytest.raises(MalformedPayload) as rejected:
        decoded(model, body, **options)
    text = str(rejected.value)
    assert text.startswith("Malformed payload: ")
    assert SECRET not in text
    return text.removeprefix("Malformed payload: ")


def get(value: Any, *names: str) -> Any:
    """Follow attributes, or the keys of a TypedDict."""
    return functools.reduce(
        lambda owner, name: owner[name] if isinstance(owner, dict) else getattr(owner, name),
        names,
        value,
    )
