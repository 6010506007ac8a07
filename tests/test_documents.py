"""The documents match the code: generated pages are up to date, and examples run.

``ONCEWARD_WRITE_DOCS=1`` writes the generated pages instead of comparing them.
"""

import json
import os
import re
import runpy
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, fields
from operator import attrgetter
from pathlib import Path

import click
import pytest

from onceward import Inbox
from onceward.cli import COMMANDS, main
from onceward.cli.sources import resend_window, retry_window
from onceward.model.jobs import FailureType
from onceward.settings import ENV_PREFIX, Settings
from onceward.sources.configure import SourceOptions
from onceward.sources.presets import PRESETS, Preset
from onceward.sources.presets.preset import DEFAULT_SCHEME
from onceward.sources.schemes import Scheme
from onceward.sources.schemes.times import describe_window
from onceward.work.definition.batches import BatchOptions
from onceward.work.definition.handlers import HandlerOptions
from onceward.work.forwarding.forward import ForwardOptions
from prove.document import page as proof_page
from tests.coverage_page import coverage_table

ROOT = Path(__file__).parent.parent
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VECTORS = ROOT / "tests" / "unit" / "vectors.json"
LIBRARIES = ROOT / "oracles" / "libraries.json"
TABLE_BEGINS, TABLE_ENDS = "<!-- presets: begin -->", "<!-- presets: end -->"
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
FENCED_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
DECISIONS = ROOT / "docs" / "decisions"
PRESET_COUNT = re.compile(r"\b(\d+) (presets|providers)\b")
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
INDEXED_DECISION = re.compile(r"^\| \[(\d+)\]\(([^)]+)\) \| (.+?) \| ", re.MULTILINE)


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def examples() -> Iterator[tuple[str, str]]:
    for document in documents():
        for number, block in enumerate(PYTHON_BLOCK.findall(document.read_text()), start=1):
            yield f"{document.relative_to(ROOT)}:{number}", block


def settings_page() -> str:
    rows = [
        f"| `{entry.name}` | {shown(entry.default)} | {entry.metadata['doc']} |"
        for entry in fields(Settings)
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            (
                "Set a setting in code, `Inbox(max_attempts=5)`, or in the environment, "
                "`ONCEWARD_MAX_ATTEMPTS=5`. Some are also [command-line options](cli.md). The "
                "command line takes precedence over the code, and the code over the environment. "
                "All invalid settings are reported together. An empty variable counts as unset; an "
                'empty text in code or on the command line, such as `archive=""`, is refused by '
                "name. A variable spelled almost like a setting, such as `ONCEWARD_MAX_ATEMPTS`, "
                "is named in a warning at start."
            ),
            "",
            "| name | default | purpose |",
            "| --- | --- | --- |",
            *rows,
            "",
            (
                "Three environment variables are not settings: `ONCEWARD_ADMIN_TOKENS` "
                "(`name:token,name:token`), `ONCEWARD_SECRET` (the secret for `onceward send` and "
                "`verify`) and, for tests, `ONCEWARD_FAILPOINTS` (`name:action:n`)."
            ),
            "",
        ]
    )


def shown(default: object) -> str:
    if default is MISSING:
        return ""
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    if default == "":
        return "none"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


EXIT_CODES = (
    "Exit codes: 0 for success, 2 for an error in the options, the configuration or the database. "
    "`send` exits with 1 unless every response is 2xx, `verify` unless the request verifies, and "
    "`archive show`, `restore` and `verify` if a file is damaged or missing.\n"
)


def cli_page() -> str:
    rows = [
        f"| [`onceward {name}`](#onceward-{name}) | {purpose} |"
        for name, purpose in COMMANDS.items()
    ]
    table = "\n".join(["| command | purpose |", "| --- | --- |", *rows])
    parts = ["# Command line\n", f"{table}\n", EXIT_CODES]
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        parts += command_help("##", f"onceward {name}", command)
        if isinstance(command, click.Group):
            for part, subcommand in command.commands.items():
                parts += command_help("###", f"onceward {name} {part}", subcommand)
    return "\n".join(parts)


def command_help(heading: str, name: str, command: click.Command) -> list[str]:
    with click.Context(command, info_name=name, terminal_width=96) as context:
        return [f"{heading} {name}\n", f"```\n{command.get_help(context)}\n```\n"]


def sources_table() -> str:
    rows = [
        f"| `{preset.name}` | {preset.title} | {schemes_of(preset)} | {id_of(preset)} "
        f"| {retries_of(preset)} | {evidence_for(preset)} | {preset.note} |"
        for preset in sorted(PRESETS.values(), key=attrgetter("name"))
    ]
    return "\n".join(
        [
            f"{len(PRESETS)} presets:",
            "",
            "| preset | provider | signature | id | retries | checked by | notes |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
        ]
    )


def evidence_for(preset: Preset) -> str:
    """Return what a preset was checked against: libraries, a genuine request or documentation."""
    libraries: dict[str, str] = json.loads(LIBRARIES.read_text())
    if preset.name in libraries:
        return libraries[preset.name]
    tested = {vector["preset"] for vector in json.loads(VECTORS.read_text())}
    return "a genuine request" if preset.name in tested else "documentation"


def schemes_of(preset: Preset) -> str:
    return "; ".join(
        (f"`{name}`: " if name != DEFAULT_SCHEME else "") + summary_of(scheme)
        for name, scheme in preset.named_schemes.items()
    )


def summary_of(scheme: Scheme) -> str:
    tolerance = scheme.tolerance_seconds
    window = "" if tolerance is None else f", {describe_window(tolerance)}"
    return f"{escaped(scheme.summary)}{window}"


def id_of(preset: Preset) -> str:
    return " and ".join(f"`{escaped(selector)}`" for selector in preset.ids)


def retries_of(preset: Preset) -> str:
    retries, days = retry_window(preset.auto_retry_hours), preset.manual_resend_days
    return retries if days is None else f"{retries}; manual resend {resend_window(days)}"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def sources_page() -> str:
    return with_table("sources", sources_table())


def coverage_page() -> str:
    return with_table("coverage", coverage_table())


def with_table(name: str, table: str) -> str:
    """Return a page with a table between its marks."""
    before, mark, rest = (ROOT / "docs" / f"{name}.md").read_text().partition(TABLE_BEGINS)
    _, end, after = rest.partition(TABLE_ENDS)
    return f"{before}{mark}\n\n{table}\n\n{end}{after}"


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("settings", settings_page),
        ("cli", cli_page),
        ("sources", sources_page),
        ("coverage", coverage_page),
        ("proof", proof_page),
    ],
)
def test_a_generated_page_is_up_to_date(name: str, page: object) -> None:
    assert callable(page)
    path = ROOT / "docs" / f"{name}.md"
    if os.environ.get(f"{ENV_PREFIX}WRITE_DOCS"):
        path.write_text(page())
    assert page() == path.read_text()


@pytest.mark.parametrize(("name", "block"), list(examples()))
def test_an_example_in_the_documents_runs(
    name: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(block)
    assert {"inbox", "verified"} & runpy.run_path("example.py").keys(), name


def test_there_are_examples_to_run() -> None:
    assert len(list(examples())) >= 4


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = HEADING.findall(FENCED_BLOCK.sub("", document.read_text()))
    texts = [heading.lstrip("# ").lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def is_broken(document: Path, target: str, anchor: str) -> bool:
    path = document.parent / target if target else document
    return not path.exists() or bool(anchor and anchor not in anchors(path))


def test_every_link_has_a_target() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}#{anchor}"
        for document in documents()
        for target, anchor in LINK.findall(document.read_text())
        if is_broken(document, target, anchor)
    ]
    assert broken == []


def test_the_documents_agree_on_the_number_of_presets() -> None:
    counts = {len(PRESETS), len(json.loads(LIBRARIES.read_text()))}
    wrong = [
        f"{document.relative_to(ROOT)}: {count} {noun}"
        for document in documents()
        for count, noun in PRESET_COUNT.findall(document.read_text())
        if int(count) not in counts
    ]
    assert wrong == []


def test_every_option_of_a_source_is_documented() -> None:
    page = (ROOT / "docs" / "sources.md").read_text()
    assert [name for name in SourceOptions.__optional_keys__ if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("method", "options", "page"),
    [
        (Inbox.on, HandlerOptions.__optional_keys__, "handlers"),
        (Inbox.on_batch, BatchOptions.__optional_keys__, "batches"),
        (Inbox.forward, ForwardOptions.__optional_keys__ - {"model", "transaction"}, "forwarding"),
    ],
)
def test_every_option_of_a_method_is_documented(
    method: Callable[..., object], options: Collection[str], page: str
) -> None:
    table = (ROOT / "docs" / f"{page}.md").read_text().partition("\n## Options\n")[2]
    assert sorted(name for name in options if f"`{name}`" not in table.partition("\n## ")[0]) == []
    inherited = HandlerOptions.__optional_keys__ if method is Inbox.forward else ()
    text = method.__doc__ or ""
    own = set(options).difference(inherited)
    assert sorted(name for name in own if f"`{name}`" not in text) == []


def test_every_failure_type_is_documented() -> None:
    page = (ROOT / "docs" / "tables.md").read_text()
    states = page.partition("## States")[2].partition("## Stable tables")[0]
    assert [name for name in FailureType if f"| `{name}` |" not in states] == []


def decision_headings() -> dict[str, list[str]]:
    return {
        path.name: HEADING.findall(path.read_text()) for path in sorted(DECISIONS.glob("[0-9]*.md"))
    }


@pytest.mark.parametrize(("name", "headings"), decision_headings().items())
def test_a_decision_has_a_numbered_title_and_three_parts(name: str, headings: list[str]) -> None:
    title, *parts = headings
    assert title.startswith(f"# {int(name[:4])}. ")
    assert parts == ["## Context", "## Decision", "## Consequences"]


def test_the_index_lists_every_decision_with_its_title() -> None:
    indexed = INDEXED_DECISION.findall((DECISIONS / "README.md").read_text())
    titles = {name: headings[0] for name, headings in decision_headings().items()}
    assert titles == {name: f"# {number}. {title}" for number, name, title in indexed}
