"""Redaction of error texts, and escaping of values for log lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit, urlunsplit

LIMIT_CHARACTERS: Final = 500
MASK: Final = "[redacted]"

# The search looks this far beyond the limit. A match that reaches the end of this window may
# continue, so the text is cut after it.
_REACH_CHARACTERS: Final = 4_096
_SHORTEST_SECRET: Final = 4

# The search takes linear time on any text, because each alternative starts with a literal, or only
# at the start of a run of its characters, or has a small bound. The group `keep` is not masked.
_SENSITIVE: Final = re.compile(
    r"""
      -----BEGIN[ A-Z]{0,40}KEY-----[^-]*+
    | (?<=://)[^\s"'<>]{1,256}(?=@)
    | (?P<keep>
          (?<![A-Za-z])(?i:bearer|basic)\s{1,4}
        | (?i:password|passwd|secret|token|api_?key)(?:["']\s?:|=)\s?["']?
      )[^\s"'&,;]++
    | (?<![A-Za-z0-9])(?:
          (?:sk|pk|rk)_(?:live|test)_\w++
        | whsec_[\w+/=-]++
        | (?:gh[a-z]|github_pat|glpat)[_-][\w-]{8,}+
        | xox[a-z]-[\w-]++
        | (?:AKIA|ASIA)[0-9A-Z]{8,}+
        | sk-[\w-]{16,}+
        | eyJ[\w-]++\.[\w-]++(?:\.[\w-]*+)?
      )
    | (?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)++
    | (?<!\d)\d(?:[ -]?\d){11,}+
    | (?<![A-Za-z0-9+/_-])
      (?![0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-]))  # a UUID, not a key
      (?![a-z/_-]++(?![A-Za-z0-9+/_-]))                                  # words, not a key
      [A-Za-z0-9+/_-]{32,}+={0,2}
    """,
    re.VERBOSE,
)


def redact(text: str, secrets: Iterable[str | bytes] = ()) -> str:
    """Return an error text that is safe to store, log and show.

    Mask the given secrets and anything that looks like a credential, an email address or a card
    number. Escape control characters. Limit the text to 500 characters.
    """
    text = mask_secrets(text, secrets)
    shown = ""
    position = 0
    while position < len(text) and len(shown) <= LIMIT_CHARACTERS:
        reach = position + LIMIT_CHARACTERS + _REACH_CHARACTERS
        match = _SENSITIVE.search(text, position, reach)
        if not match:
            shown += escape_controls(text[position : position + LIMIT_CHARACTERS + 1])
            break
        shown += escape_controls(text[position : match.start()] + (match["keep"] or "")) + MASK
        position = match.end()
        if position == reach:
            return _cut(shown + "…")
    return _cut(shown)


def printable(value: str | bytes) -> str:
    """Return a value for a log line: control characters escaped, at most 500 characters."""
    text = value if isinstance(value, str) else _decoded(value[: LIMIT_CHARACTERS * 4])
    return _cut(escape_controls(text[: LIMIT_CHARACTERS + 1]))


def as_sentence(text: str) -> str:
    """Return a text with a full stop, unless it ends with a mark of its own."""
    return text if text.endswith((".", "?", "!", "…", ":", ",", ";")) else f"{text}."


def one_line(text: str) -> str:
    """Return a text of several lines, such as a driver's error, as one line of sentences."""
    *lines, last = (" ".join(line.split()) for line in text.strip().split("\n"))
    return " ".join([*(as_sentence(line) for line in lines if line), last])


def redact_url(url: str) -> str:
    """Return a database URL without its password and query."""
    if url.startswith("sqlite:"):
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}{colon}{'…' if colon else ''}{at}{host}"
    return urlunsplit(parts._replace(netloc=netloc, query="", fragment=""))


def mask_secrets(text: str, secrets: Iterable[str | bytes]) -> str:
    """Return the text with the given secrets masked."""
    texts = {secret if isinstance(secret, str) else _decoded(secret) for secret in secrets}
    for secret in sorted(texts, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def _decoded(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def escape_controls(text: str) -> str:
    """Replace every character that is not printable by its escape sequence."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def _cut(text: str) -> str:
    if len(text) <= LIMIT_CHARACTERS:
        return text
    return f"{text[: LIMIT_CHARACTERS - 1]}…"
