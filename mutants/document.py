"""docs/mutants.md: the mutation score and the survivors."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from mutants.results import Entry, Result, load_reasons
from mutants.targets import PARTS, ROOT

PAGE: Final = ROOT / "docs" / "mutants.md"
BEGIN, END = "<!-- result: begin -->\n", "<!-- result: end -->\n"
OPEN: Final = "**Open.**"


def update_page(result: Result) -> None:
    """Write the result into the page, between its two markers."""
    PAGE.write_text(page(PAGE.read_text(), result))


def page(text: str, result: Result) -> str:
    """Return the page with a result."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{_section(result)}\n{END}{after}"


def _section(result: Result) -> str:
    sample = f"The sample has {len(result.entries)} of {result.candidates:,} mutants"
    parts = "\n".join(_parts(result))
    survivors = "\n".join(_survivors(result)) or "No mutant survived.\n"
    return f"**{result.headline}** {sample} (seed {result.seed}).\n\n{parts}\n\n{survivors}\n"


def _parts(result: Result) -> Iterator[str]:
    yield "| part | mutants | killed | survived |"
    yield "| --- | ---: | ---: | ---: |"
    for name, patterns in PARTS.items():
        entries = [
            entry
            for entry in result.entries
            if any(fnmatchcase(entry.module, pattern) for pattern in patterns)
        ]
        killed = sum(entry.is_killed for entry in entries)
        yield f"| {name} | {len(entries)} | {killed} | {len(entries) - killed} |"


def _survivors(result: Result) -> Iterator[str]:
    reasons = load_reasons()
    if result.survivors:
        yield "| where | change | why no test kills it |"
        yield "| --- | --- | --- |"
    for entry in result.survivors:
        reason = reasons.get((entry.module, entry.scope, entry.change), OPEN)
        yield f"| `{entry.module}`, `{entry.scope}` | {_change(entry)} | {reason} |"


def _change(entry: Entry) -> str:
    before, after = (text.replace("|", "\\|") for text in (entry.before, entry.after))
    return f"{entry.kind}: `{before}`" + (f" → `{after}`" if after not in ("", "pass") else "")
