"""The table of what each scheme proves: a row per scheme, from the presets."""

from collections.abc import Iterable
from operator import attrgetter

from onceward.sources.identify import Alternatives
from onceward.sources.presets import PRESETS, Preset
from onceward.sources.presets.preset import DEFAULT_SCHEME
from onceward.sources.schemes import Coverage, Scheme
from onceward.sources.schemes.times import describe_window


def coverage_table() -> str:
    """Return the table."""
    rows = [
        row(preset, name, scheme)
        for preset in sorted(PRESETS.values(), key=attrgetter("name"))
        for name, scheme in preset.named_schemes.items()
    ]
    header = (
        "| preset | covers | id | type | reference | time | window | joined values | also signed |"
    )
    return "\n".join([f"{len(rows)} schemes:", "", header, "| --- " * 9 + "|", *rows])


def row(preset: Preset, name: str, scheme: Scheme) -> str:
    coverage, selectors = preset.coverage(scheme), preset.identity_selectors
    selectors = selectors.under(coverage)
    reference = () if selectors.reference is None else (selectors.reference,)
    cells = [
        f"`{preset.name}`" + ("" if name == DEFAULT_SCHEME else f" `{name}`"),
        scheme.coverage.summary,
        covered(coverage, selectors.id) + (", flagged" if preset.flags_duplicates(scheme) else ""),
        covered(coverage, selectors.type),
        covered(coverage, reference),
        "yes" if coverage.has_time else "no",
        "none" if scheme.tolerance_seconds is None else describe_window(scheme.tolerance_seconds),
        scheme.separator_safety,
        preset.other_uses or "nothing known",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def covered(coverage: Coverage, parts: Iterable[Alternatives]) -> str:
    """Return whether the values that become an id, a type or a reference are covered."""
    results = {
        coverage.covers(selector, part[:place])
        for part in parts
        for place, selector in enumerate(part)
    }
    if not results:
        return "none"
    return "in part" if len(results) == 2 else "yes" if results == {True} else "no"
