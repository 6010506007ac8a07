"""Redaction of error texts, and escaping of values for log lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

LIMIT_CHARACTERS: Final = 500
MASK: Final = "[redacted]"

# The search looks this far beyond the limit. A match that reaches the end of this window may
# continue, so the text is cut after it.
_REACH_CHARACTERS: Final = 4_096
_SHORTEST_SECRET: Final = 4

# Names of secrets. A word such as "token" is also an ordinary word before a colon.
_SENSITIVE_NAMES: Final = r"""
      passw(?:or)?d | passphrase | (?<![a-z])pwd
    | (?<![a-z])(?:cvc2? | cvv2? | otp | pin | ssn)
    | (?:access|account|api|auth|client|encryption|license|private|service|shared|signing|webhook)
      [ _-]?key
    | (?<=[a-z_-])(?:secret|token)
    | (?:jsession|phpsess|session)id | connect\.sid
"""
_SEPARATOR: Final = r"""
    (?: \\?["']?+\s{0,2}+(?>(?:=>|[:=]){1,2})\s{0,2}+ | ["'],\s?+ )b?\\?["']?+
"""
_ASSIGNMENT: Final = r"""
    (?: \\?["']\s{0,2}+:\s{0,2}+ | \s{0,2}+=\s{0,2}+ | ["'],\s?+ )b?\\?["']?+
"""
_REST: Final = r"""
    (?: (?<=\\["'])[^"'\n]++ | (?<=")(?>(?:[^"\\\n]|\\.)+) | (?<=')(?>(?:[^'\\\n]|\\.)+)
"""

# The search takes linear time on any text, because each alternative starts with a literal, or only
# at the start of a run of its characters, or has a small bound. The groups `keep…` are not masked.
_SENSITIVE: Final = re.compile(
    rf"""
      -----BEGIN[ A-Z]{{0,40}}KEY-----[^-]*+
    | (?<=://)[^\s"'<>]{{1,256}}(?=@)
    | (?P<keep_header>
        (?i: (?:set-)?cookie | authorization )
        (?: \\?["']?+:\s{{0,2}}+ | ["'],\s?+ )b?\\?["']?+ (?!(?i:bearer|basic)\s)
      ) {_REST} | [^"'\n]++ )
    | (?P<keep>
          (?<![A-Za-z])(?i:bearer|basic)\s{{1,4}}
        | (?i: {_SENSITIVE_NAMES} ) {_SEPARATOR}
        | (?i: secret | token ) {_ASSIGNMENT}
        | (?i: secret | token ): \s? (?=[a-z]*+[^a-z\s"'&,;)])
      ) {_REST} | [^\s"'&,;]++ )
    | (?<![A-Za-z0-9])(?:
          (?:sk|pk|rk|rzp)_(?:live|test)_\w++
        | whsec_[\w+/=-]++
        | (?:gh[a-z]|github_pat|glpat)[_-][\w-]{{8,}}+
        | (?:xox[a-z]|xapp)-[\w-]++
        | (?:AKIA|ASIA)[0-9A-Z]{{8,}}+
        | sk-[\w-]{{16,}}+
        | SG\.[\w-]{{8,}}+(?:\.[\w-]++)?
        | (?:AIza|GOCSPX-|ATATT|NRAK-|AGE-SECRET-KEY-|EAAA)[\w-]{{16,}}+
        | (?:ya29|hv[sbr]|dp\.[a-z]{{2,5}})\.[\w-]{{8,}}+
        | (?:do[a-z]_v1|gl[a-z]{{1,4}}|hf|lin_[a-z]{{2,6}}|npm|ntn|pscale_[a-z]{{2,6}}|pypi|sbp
            |secret|shp[a-z]{{2}}|sntry[a-z]|sq0[a-z]{{3}})[_-](?=[a-z_-]*+[A-Z0-9])[\w-]{{12,}}+
        | eyJ[\w-]++\.[\w-]++(?:\.[\w-]*+)?
      )
    | (?<![\w.+-])[\w.+-]++@[\w-]++(?>(?:\.[\w-]++)+)
    | (?<!\d)\d(?>(?:[ -]?\d){{11,}})
    | (?<!\d)\d{{8,10}}:AA[\w-]{{20,}}+
    | (?<![A-Za-z0-9+/_-])
      (?![0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}(?![\w-]))  # a UUID, not a key
      (?![a-z/_-]++(?![A-Za-z0-9+/_-]))                                  # words, not a key
      [A-Za-z0-9+/_-]{{32,}}+={{0,2}}
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
        kept = match["keep"] or match["keep_header"] or ""
        shown += escape_controls(text[position : match.start()] + kept) + MASK
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
    scheme, separator, rest = url.partition("://")
    # As libpq reads it: the password ends at the first @, and may contain ? and #.
    user, at, address = rest.partition("@")
    if not at or "/" in user:
        user, at, address = "", "", rest
    name = re.split("[:?#]", user)[0]
    password = ":…" if name != user else ""
    return f"{scheme}{separator}{name}{password}{at}{re.split('[?#]', address)[0]}"


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
