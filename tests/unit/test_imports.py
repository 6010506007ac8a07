"""What each entry point imports: a process should start with little more than it needs."""

import ast
import gc
import importlib
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

import onceward
from onceward.cli import COMMANDS, main

STANDARD = "import msgspec, sqlite3, asyncio"
HEAVY = {"cryptography", "duckdb", "h11", "psycopg", "rich", "starlette", "uvicorn"}
NEEDED = {
    "onceward.cli": set(),
    "onceward.inbox": {"h11"},  # the framing of forwards
    "onceward.cli.serve": {"h11", "starlette", "uvicorn"},
}


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("module", NEEDED)
def test_an_entry_point_imports_only_the_libraries_it_needs(module: str) -> None:
    loaded = run(f"import {module}, sys; print(*sys.modules)").split()
    assert HEAVY & set(loaded) <= NEEDED[module]


def test_an_export_imports_only_the_bands_it_needs(subtests: pytest.Subtests) -> None:
    verifying = {"errors", "model", "runtime", "settings", "sources", "standalone", "version"}
    for code, bands in (
        ("import onceward", {"version"}),
        ("from onceward import verify", verifying),
        ("from onceward import Inbox", verifying - {"standalone"} | {"inbox", "ports", "work"}),
    ):
        with subtests.test(code=code):
            loaded = run(f"{code}; import sys; print(*sys.modules)").split()
            assert {name.split(".")[1] for name in loaded if name.startswith("onceward.")} == bands


def test_the_package_imports_in_little_more_time_than_what_it_stands_on() -> None:
    """The limit is 1.6; the fastest of several runs in turns is all but free of other load."""
    fastest = dict.fromkeys((STANDARD, "import onceward"), 1e9)
    for _ in range(5):
        for code in fastest:
            start = perf_counter()
            run(code)
            fastest[code] = min(fastest[code], perf_counter() - start)
    assert fastest["import onceward"] < 1.6 * fastest[STANDARD]


def test_type_checkers_see_the_exports_of_each_module() -> None:
    (block,) = [
        node
        for node in ast.parse(Path(onceward.__file__).read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {node.module: tuple(alias.name for alias in node.names) for node in imports}
    assert {name: sorted(names) for name, names in seen.items()} == {
        name: sorted(names) for name, names in onceward._MODULES.items()
    }


def test_a_command_is_imported_without_looking_for_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def observe(name: str) -> ModuleType:
        seen.append(gc.isenabled())
        return importlib.import_module(name)

    monkeypatch.setattr("onceward.cli.import_module", observe)
    for turn, was_enabled in ((gc.enable, True), (gc.disable, False)):
        turn()
        try:
            main.get_command(click.Context(main), "verify")
            assert gc.isenabled() is was_enabled
        finally:
            gc.enable()
    assert seen == [False, False]


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["srve"])
    assert (result.exit_code, "No such command 'srve'" in result.output) == (2, True)


def test_every_export_is_found() -> None:
    missing = [name for name in onceward.__all__ if getattr(onceward, name, None) is None]
    assert missing == []
    shown = run("import onceward; print(*dir(onceward))").split()  # before one is imported
    assert set(onceward.__all__) <= set(shown)
    exported = {name for names in onceward._MODULES.values() for name in names}
    assert set(onceward.__all__) == exported | {"__version__"}


def test_another_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Inbx'"):
        _ = onceward.Inbx  # type: ignore[attr-defined]


def test_the_list_of_commands_shows_the_first_sentence_of_each() -> None:
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    sentences = {name: each and each.get_short_help_str(200) for name, each in commands.items()}
    assert sentences == COMMANDS
