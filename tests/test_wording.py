"""The project's prose avoids words that are vague, private or not the field's.

The prose is docstrings, comments, string literals, names of tests, SQL comments and Markdown text.
Bytes, JSON and strings without a space are data; so is code in Markdown. The words of others are
exempt: block quotes in Markdown, and strings on a line with the comment ``# quoted``.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
CHECKED = (
    "src", "tests", "support", "bench", "prove", "mutants", "oracles", "examples", "docs",
    "README.md", "CONTRIBUTING.md", "SECURITY.md",
)  # fmt: skip
SUFFIXES = {".md", ".py", ".sql"}
SKIPPED_FOLDERS = {".venv", "__pycache__", "node_modules"}

# Regular expressions, matched as whole words and without regard to case. A space matches any
# white space, so that a phrase is found across a line break.
SAY_INSTEAD = {
    r"whoever": "the sender, the caller, the operator",
    r"whatever": "any, every, or the thing itself",
    r"answers? with": "return, respond with",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"upkeep": "maintenance",
    r"twins?": "duplicate, counterpart",
    r"peculiar(?:ity|ities)?": "vendor-specific, unusual",
    r"(?:is|are|was|were|be|been|being) told": "gets, receives, is notified",
    r"(?:tell|tells|told|telling) of": "report, log, announce",
    r"(?:break|breaks|broke|broken|breaking) off": "cancel, interrupt, abort",
    r"(?:let|lets|letting) go": "release, close",
    r"look(?:s|ed|ing)? after": "supervise, maintain",
    r"(?:has|have) had one": "already got a response",
    r"hand(?:s|ed|ing)? over": "pass, provision",
    r"(?:go|goes|going|went) on to": "continue to, then",
    r"as it is known": "currently, so far",
    r"in a way that is none": "in a way that we do not recognise",
    r", and nothing else": "only",
    r"by hand": "manually",
}


def compiled(words: str) -> re.Pattern[str]:
    spaced = words.replace(" ", r"\s+")
    return re.compile(rf"(?<!\w)(?:{spaced})(?!\w)", re.IGNORECASE)


PATTERNS = {compiled(words): instead for words, instead in SAY_INSTEAD.items()}

# Matches a file's words if any pattern may match its prose. Most files need not be parsed then.
NOT_WORDS = re.compile(r"[\W_]+")
ANY_PATTERN = compiled("|".join(f"(?:{words.removeprefix(', ')})" for words in SAY_INSTEAD))

FENCED_BLOCK = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
BLOCK_QUOTE = re.compile(r"^ *>.*$", re.MULTILINE)
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK_TARGET = re.compile(r"\]\([^)]*\)")
QUOTED = re.compile(r"# quoted$")
COMMENT_SQL = re.compile(r"--(.*)$")


class Passage(NamedTuple):
    """Consecutive lines of prose. The text has one line for each line of the file."""

    line: int
    text: str


class Hit(NamedTuple):
    """A word that the project does not use."""

    line: int
    words: str
    instead: str


def find_words(passage: Passage) -> Iterator[Hit]:
    for pattern, instead in PATTERNS.items():
        for match in pattern.finditer(passage.text):
            line = passage.line + passage.text.count("\n", 0, match.start())
            yield Hit(line, " ".join(match[0].split()), instead)


# Where the prose is.


def passages(suffix: str, text: str) -> Iterator[Passage]:
    match suffix:
        case ".py":
            yield from python_comments(text)
            yield from python_strings(text)
            yield from names_of_tests(text)
        case ".sql":
            yield from joined(sql_comments(text))
        case ".md":
            yield Passage(1, markdown_prose(text))


def python_comments(text: str) -> Iterator[Passage]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = (
        Passage(token.start[0], token.string.lstrip("#"))
        for token in tokens
        if token.type == tokenize.COMMENT
    )
    yield from joined(comments)


def python_strings(text: str) -> Iterator[Passage]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if is_prose(node.value) and not QUOTED.search(lines[(node.end_lineno or 1) - 1]):
            yield Passage(node.lineno, node.value)


def is_prose(value: str) -> bool:
    text = value.strip()
    return " " in text and not text.startswith(("{", "["))


def names_of_tests(text: str) -> Iterator[Passage]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("test_"):
            yield Passage(node.lineno, node.name.replace("_", " "))


def sql_comments(text: str) -> Iterator[Passage]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := COMMENT_SQL.search(line):
            yield Passage(number, match[1])


def markdown_prose(text: str) -> str:
    """Blank out code and the targets of links, but keep every line break."""
    for pattern in (FENCED_BLOCK, BLOCK_QUOTE, INLINE_CODE, LINK_TARGET):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n") or "-", text)
    return text


def joined(lines: Iterator[Passage]) -> Iterator[Passage]:
    """Join comments on consecutive lines, so that a phrase is found across a line break."""
    block: Passage | None = None
    for comment in lines:
        if block is not None and comment.line == block.line + block.text.count("\n") + 1:
            block = Passage(block.line, f"{block.text}\n{comment.text}")
            continue
        if block is not None:
            yield block
        block = comment
    if block is not None:
        yield block


# The tests.


def hits_in(suffix: str, text: str) -> list[Hit]:
    if not ANY_PATTERN.search(NOT_WORDS.sub(" ", text)):
        return []
    hits = [hit for passage in passages(suffix, text) for hit in find_words(passage)]
    return sorted(hits)


def checked_files() -> Iterator[Path]:
    for name in CHECKED:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            relative = path.relative_to(ROOT)
            is_skipped = bool(SKIPPED_FOLDERS & set(relative.parts)) or path == Path(__file__)
            if path.suffix in SUFFIXES and not is_skipped:
                yield path


def test_the_prose_uses_the_words_of_the_field() -> None:
    faults = [
        f'{path.relative_to(ROOT)}:{hit.line}: "{hit.words}"; say instead: {hit.instead}'
        for path in checked_files()
        for hit in hits_in(path.suffix, path.read_text())
    ]
    if faults:
        pytest.fail("\n  ".join(["words that the project does not use:", *faults]), pytrace=False)


@pytest.mark.parametrize(
    ("suffix", "text", "expected"),
    [
        (".py", '"""A job.\n\n    It is\n    told.\n    """', [(3, "is told")]),
        (".py", "# a worker lets\n# go of it", [(1, "lets go")]),
        (".py", "x = 1  # Whoever waits", [(1, "Whoever")]),
        (".py", 'x = f"{y} answers with {z}"', [(1, "answers with")]),
        (".py", 'x = "broken " "off"', [(1, "broken off")]),
        (".py", "def test_it_is_told() -> None: ...", [(1, "is told")]),
        (".sql", "SELECT 1;\n-- the upkeep\n-- of it", [(2, "upkeep")]),
        (".md", "# Title\n\nDo it by\nhand.", [(3, "by hand")]),
        (".md", "```\ncode\n```\n`x`, and nothing else", [(4, ", and nothing else")]),
    ],
)
def test_words_are_found_in_prose(suffix: str, text: str, expected: list[tuple[int, str]]) -> None:
    assert [(hit.line, hit.words) for hit in hits_in(suffix, text)] == expected


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".py", 'x = b"whoever is told"'),
        (".py", 'x = "whoever"'),
        (".py", """x = '{"note": "whoever is told"}'"""),
        (".py", "def whoever() -> None: ..."),
        (".py", 'x = "the vendor is told"  # quoted'),
        (".py", '"""Amendments to a handover."""'),
        (".sql", "SELECT whoever FROM twins"),
        (".md", "Run `by hand` or\n\n```\nwhoever\n```\n"),
        (".md", "> Do it by hand.\n"),
        (".md", "See [the page](by hand) and [it](docs/whoever.md)."),
        (".json", '{"note": "whoever is told"}'),
    ],
)
def test_words_are_not_looked_for_in_data(suffix: str, text: str) -> None:
    assert hits_in(suffix, text) == []
