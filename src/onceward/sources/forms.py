"""Form fields, URL-encoded or multipart. They are read before the proof: the work is bounded."""

from __future__ import annotations

import binascii
import re
from typing import Final
from urllib.parse import parse_qsl

MAX_FIELDS: Final = 1_000
MAX_LENIENT_ESCAPES: Final = 10_000
"""Text with more escapes and non-ASCII characters must be ASCII with valid escapes: urllib takes a
second for a megabyte.
"""
_BOUNDARY: Final = re.compile(rb"(?:\r\n)?--([^\r\n]{1,70})\r\n")
"""The beginning of a multipart form. Its Content-Type is not asked: few senders sign the header,
and it must not decide how signed bytes are read.
"""
_FIELD_NAME: Final = re.compile(
    rb'^content-disposition:.*?\bname="([^"]*)"', re.IGNORECASE | re.MULTILINE
)
_ESCAPED_TEXT: Final = re.compile(r"(?>(?:[^%]++|%[0-9A-Fa-f]{2})*)", re.ASCII)
_PLAIN_FORM: Final = re.compile(rb"(?>(?:[0-9A-Za-z._~!$'()*+,:@/?&=-]++|%[0-9A-Fa-f]{2})*)")

Fields = list[tuple[str, str]]


def form_fields(body: bytes) -> Fields | None:
    """Return the fields of a form; None if they are too many or too expensive to read."""
    boundary = _BOUNDARY.match(body)
    if boundary is None:
        return urlencoded_fields(body.decode("latin-1"))
    return _multipart_fields(body, boundary[1])


def is_plain_form(body: bytes) -> bool:
    """Return whether every parser reads the same fields in a URL-encoded body.

    No other body has that property: one with a boundary, a brace, a semicolon or a byte beyond
    ASCII is a multipart form, JSON or another form to somebody else.
    """
    return _PLAIN_FORM.fullmatch(body) is not None


def _multipart_fields(body: bytes, boundary: bytes) -> Fields | None:
    """Return the fields of a multipart form without its files; None if there are too many."""
    _, *parts = body.split(b"--" + boundary, MAX_FIELDS + 2)
    if len(parts) > MAX_FIELDS + 1:  # the last part is the end mark
        return None
    fields = []
    for part in parts:
        head, blank, value = part.partition(b"\r\n\r\n")
        name = _FIELD_NAME.search(head)
        if blank and name is not None and b"filename=" not in head:
            text = value.removesuffix(b"\r\n").decode(errors="surrogateescape")
            fields.append((name[1].decode(errors="surrogateescape"), text))
    return fields


def urlencoded_fields(text: str) -> Fields | None:
    """Return the fields of URL-encoded text; None if they are too many or too expensive to read."""
    if _is_expensive(text):
        return strict_urlencoded_fields(text)
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        return None


def _is_expensive(text: str) -> bool:
    """Return whether urllib would take long: it decodes each run of ASCII by itself."""
    escapes = text.count("%")
    non_ascii = len(text.encode(errors="surrogatepass")) - len(text)
    return escapes > 0 and escapes + non_ascii > MAX_LENIENT_ESCAPES


def strict_urlencoded_fields(text: str) -> Fields | None:
    """Return the fields of URL-encoded ASCII text whose escapes are all valid, else None."""
    is_strict = text.isascii() and _ESCAPED_TEXT.fullmatch(text) is not None
    if text.count("&") >= MAX_FIELDS or not is_strict:
        return None
    pairs = [pair.partition("=") for pair in text.split("&") if pair]
    return [(_unquote(name), _unquote(value)) for name, _, value in pairs]


def _unquote(text: str) -> str:
    """Decode the escapes of ASCII text, all of them valid.

    The decoder of quoted-printable text, whose escapes begin with ``=``, is ten times as fast as
    urllib's.
    """
    quoted = text.replace("+", " ").replace("=", "=3D").replace("%", "=")
    return binascii.a2b_qp(quoted).decode(errors="replace")
