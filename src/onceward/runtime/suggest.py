"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Final

SIMILARITY: Final = 0.7
"""How alike two names must be, from 0 to 1: ``strype`` finds ``stripe``, ``crm`` finds nothing."""

SHORTEST_MISSPELLING: Final = 5
"""Below this length, words that differ by one letter are different words: ``ping``, ``pong``."""

_SEPARATORS: Final = re.compile(r"[-_. ]")
_SPELLING_SEPARATORS: Final = re.compile(r"[-_./: ]")


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option that is spelled most like `word`, or None if none is similar.

    Else a whole part counts, if it is in one option only: ``sns`` finds ``aws-sns``,
    ``stripe_live`` finds ``stripe``.
    """
    by_key = {option.casefold(): option for option in options}
    key = word.casefold()
    matches = difflib.get_close_matches(key, by_key, n=1, cutoff=SIMILARITY)
    if not matches:
        matches += [option for option in by_key if key in _SEPARATORS.split(option)]
        matches += [part for part in _SEPARATORS.split(key) if part in by_key]
    return by_key[matches[0]] if len(matches) == 1 else None


def is_misspelling(word: str, other: str) -> bool:
    """Return whether two texts differ only in case or separators, or by one mistyped letter.

    This is stricter than `nearest`: ``opened`` and ``reopened`` are two words, and so are names
    that differ by a digit.
    """
    first, second = (_SPELLING_SEPARATORS.sub("", text.casefold()) for text in (word, other))
    if first == second:
        return True
    at = _first_difference(first, second)
    one, two = first[at : at + 1], second[at : at + 1]
    if max(len(first), len(second)) < SHORTEST_MISSPELLING or not (one + two).isalpha():
        return False
    rest, other_rest = first[at + 1 :], second[at + 1 :]
    is_swapped = (rest[:1], other_rest[:1]) == (two, one) and rest[1:] == other_rest[1:]
    return is_swapped or rest == other_rest or one + rest == other_rest or rest == two + other_rest


def is_respelling(word: str, other: str) -> bool:
    """Return whether two texts have the same words but one, spelled alike: ``paid``, ``payed``.

    Two letters may differ, unless they begin the word: ``paid`` and ``unpaid`` are two words.
    """
    parts, other_parts = (_SPELLING_SEPARATORS.split(text.casefold()) for text in (word, other))
    if len(parts) != len(other_parts):
        return False
    pairs = [pair for pair in zip(parts, other_parts, strict=True) if pair[0] != pair[1]]
    if len(pairs) != 1 or not "".join(pairs[0]).isalpha():
        return False
    one, two = pairs[0]
    is_long = max(len(one), len(two)) >= SHORTEST_MISSPELLING
    return is_long and one[:2] == two[:2] and _is_within(one[2:], two[2:], edits=2)


def _is_within(one: str, two: str, *, edits: int) -> bool:
    """Return whether a number of edits, each of one letter, turns one text into the other."""
    at = _first_difference(one, two)
    one, two = one[at:], two[at:]
    if not one or not two or not edits:
        return len(one) + len(two) <= edits
    changes = ((one[1:], two[1:]), (one[1:], two), (one, two[1:]))
    return any(_is_within(*pair, edits=edits - 1) for pair in changes)


def _first_difference(one: str, two: str) -> int:
    """Return the first index at which two texts differ, or the length of the shorter one."""
    pairs = enumerate(zip(one, two, strict=False))
    shorter = min(len(one), len(two))
    return next((index for index, (first, second) in pairs if first != second), shorter)


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return a suggestion to append to an error: ``; did you mean 'stripe'?``, or an empty text."""
    option = nearest(word, options)
    return "" if option is None else f"; did you mean {option!r}?"


def suggest_or_list(
    word: str, options: Collection[str], heading: str, used: Collection[str] = ()
) -> str:
    """Return a clause to append to an error: the nearest option, or all of them.

    ``; did you mean 'retry'?``, or with its heading ``; the options are model, name, retry``. An
    option that is not `used` yet is preferred.
    """
    listed = ", ".join(sorted(options)) or "none"
    unused = [option for option in options if option not in used]
    suggestion = did_you_mean(word, unused) or did_you_mean(word, options)
    return suggestion or f"; {heading} {listed}"
