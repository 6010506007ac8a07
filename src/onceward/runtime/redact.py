"""What may leave the process: error texts without secrets, and values that a log line can hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

LIMIT_CHARACTERS: Final = 500
MASK: Final = "[redacted]"

# How far beyond the limit the end of a match is looked for; after a longer one the text ends.
_REACH_CHARACTERS: Final = 4_096
_SHORTEST_SECRET: Final = 4

# Each alternative either begins with a literal, or only where a run of its characters begins, or
# has a small bound: so the search takes linear time, whatever the text. What the group `keep`
# matches stays.
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
      (?![0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-]))  # an id, not a key
      (?![a-z/_-]++(?![A-Za-z0-9+/_-]))                                  # words, not a key
      [A-Za-z0-9+/_-]{32,}+={0,2}
    """,
    re.VERBOSE,
)


def redact(text: str, secrets: Iterable[str | bytes] = ()) -> str:
    """An error text as it may be stored, logged and shown.

    Masks the given secrets and whatever looks like a credential, an address or a card number;
    escapes what a terminal or a log would act on; ends after 500 characters.
    """
    text = _without(text, secrets)
    shown = ""
    position = 0
    while position < len(text) and len(shown) <= LIMIT_CHARACTERS:
        reach = position + LIMIT_CHARACTERS + _REACH_CHARACTERS
        found = _SENSITIVE.search(text, position, reach)
        if not found:
            shown += _escaped(text[position : position + LIMIT_CHARACTERS + 1])
            break
        shown += _escaped(text[position : found.start()] + (found["keep"] or "")) + MASK
        position = found.end()
        if position == reach:  # what follows may belong to the match
            return _cut(shown + "…")
    return _cut(shown)


def printable(value: str | bytes) -> str:
    """A value for a log line: nothing in it acts on a terminal, and it is no longer than 500."""
    text = value if isinstance(value, str) else _decoded(value[: LIMIT_CHARACTERS * 4])
    return _cut(_escaped(text[: LIMIT_CHARACTERS + 1]))


def _without(text: str, secrets: Iterable[str | bytes]) -> str:
    known = {secret if isinstance(secret, str) else _decoded(secret) for secret in secrets}
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def _decoded(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _escaped(text: str) -> str:
    """Whatever is not a visible character or a plain space, spelled out."""
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
