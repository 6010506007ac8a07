"""The command line loads the user's app, or says what is wrong with it and where."""

from pathlib import Path

import pytest

from tests.integration.commands import APP, error_of, run, serve, started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder that contains an app."""
    (tmp_path / "app.py").write_text(APP.format(arguments=""))
    return tmp_path


def folder_in(tmp_path: Path, file: str, text: str) -> Path:
    """Create a new folder that contains an app and a file, and no compiled code."""
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    (folder / file).parent.mkdir(parents=True)
    (folder / "app.py").write_text(APP.format(arguments=""))
    (folder / file).write_text(text)
    return folder


def test_an_app_is_named_by_file_or_module(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for app in ["app.py", "app.py:inbox", "./app.py", "app:inbox", "app"]:
        with subtests.test(app):
            text = APP.format(arguments="'sqlite:///of-the-app.db'")
            folder = folder_in(tmp_path, "app.py", text)
            migrated = run("migrate", app, cwd=folder).stdout
            assert migrated.startswith("sqlite:///of-the-app.db: 0001 schema")


def test_an_app_can_be_in_a_package_or_another_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "hooks.py").write_text(
        "from shop.parts import NAME\n" + APP.format(arguments="")
    )
    (folder / "shop" / "parts.py").write_text("NAME = 'x'")
    assert run("migrate", "shop.hooks:inbox", cwd=folder).returncode == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "beside.py").write_text("NAME = 'y'")
    (folder / "other.py").write_text("from beside import NAME\n" + APP.format(arguments=""))
    assert run("migrate", folder / "other.py", cwd=elsewhere).returncode == 0
    assert (elsewhere / "onceward.db").exists()


NOT_FOUND = [
    ("nothing.py", "no such file: nothing.py; the current folder is /"),
    ("ap.py", "no such file: ap.py; did you mean 'app.py'?"),
    ("hooks/app.py", "no such file: hooks/app.py; there is no folder hooks in /"),
    ("folder.py", "folder.py is a folder; use file.py, file.py:inbox or module:inbox"),
    ("json.py", "json.py has the name of the module 'json', which Onceward uses"),
    ("./app", "no such module: './app'; did you mean './app.py'?"),
    ("ap", "no such module: 'ap'; did you mean 'app'?"),
    ("nothing", "no such module: 'nothing'; the current folder is /"),
    ("nothing.at.all:inbox", "no such module: 'nothing.at.all';"),
    ("", "no such module: '';"),
    ("..app", "no such module: '..app';"),
    ("app.py:other", "app.py has no Inbox named 'other': it has no 'other'; use app.py:inbox"),
    ("app.py:inbx", "has no Inbox named 'inbx': it has no 'inbx'; did you mean 'inbox'?"),
    ("app:credit", "app has no Inbox named 'credit': its 'credit' is of type function; use"),
    ("empty.py", "empty.py defines no Inbox; it needs one at the top level: inbox = Inbox()"),
    (
        "two.py",
        "two.py defines several inboxes: first, second; choose one, such as two.py:first",
    ),
    (".", "no such module: '.';"),
]


def test_an_app_that_cannot_be_found_is_an_error(folder: Path, subtests: pytest.Subtests) -> None:
    (folder / "empty.py").write_text("")
    (folder / "json.py").write_text("")
    (folder / "folder.py").mkdir()
    (folder / "two.py").write_text(
        "from onceward import Inbox\nfirst, second = Inbox('sqlite:///1.db'), Inbox('sqlite:///2.db')"
    )
    for app, message in NOT_FOUND:
        with subtests.test(app):
            for command in ("serve", "work"):
                assert message in error_of(command, app, cwd=folder)


BROKEN = [
    ("inbox = Inbox(\n", "SyntaxError: '(' was never closed", ["line 1", "    inbox = Inbox("]),
    ("1 / 0\n", "ZeroDivisionError: division by zero", ["line 1, in <module>", "    1 / 0"]),
    (
        "def set_up():\n    print(missing)\n\nset_up()",
        "NameError: name 'missing' is not defined",
        ["line 4, in <module>", "    set_up()", "line 2, in set_up", "    print(missing)"],
    ),
]


def test_an_error_in_the_app_shows_the_users_lines(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for text, cause, frames in BROKEN:
        with subtests.test(cause):
            folder = folder_in(tmp_path, "broken.py", text)
            for location in ("broken.py", "broken"):
                done = run("serve", f"{location}:inbox", cwd=folder)
                first, *shown = done.stderr.splitlines()
                assert done.returncode == 2
                assert first == f"onceward: {location} cannot be loaded: {cause}"
                assert f'File "{folder}/broken.py"' in shown[0]
                code = [line for line in shown if not set(line) <= set(" ~^")]
                for line, frame in zip(code, frames, strict=True):
                    assert line.endswith(frame)


def test_an_error_in_the_app_shows_its_cause(folder: Path) -> None:
    text = "try:\n    1 / 0\nexcept ArithmeticError as error:\n    raise ValueError from error"
    (folder / "broken.py").write_text(text)
    done = run("serve", "broken.py", cwd=folder)
    assert done.stderr.startswith("onceward: broken.py cannot be loaded: ValueError\n")
    assert "ZeroDivisionError" in done.stderr
    assert "onceward/cli" not in done.stderr
    assert "importlib" not in done.stderr


LEAK = "print('whsec_0123456789', missing)"


LEAKS = {
    "error": LEAK,
    "context": f"try:\n    {LEAK}\nexcept NameError:\n    1 / 0",
    "cause": f"try:\n    {LEAK}\nexcept NameError as error:\n    raise OSError from error",
}


def test_an_error_in_the_app_shows_no_secret(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, text in LEAKS.items():
        with subtests.test(name):
            folder = folder_in(tmp_path, "broken.py", text)
            done = run("serve", "broken.py", cwd=folder)
            assert "[redacted]" in done.stderr
            assert "0123456789" not in done.stderr


def test_a_missing_key_that_is_no_environment_variable_has_no_hint(folder: Path) -> None:
    (folder / "broken.py").write_text("{}['SECRET']")
    done = run("serve", "broken.py", cwd=folder)
    assert done.stderr.startswith("onceward: broken.py cannot be loaded: KeyError: 'SECRET'\n")
    assert "environment" not in done.stderr


HELP = [
    ("app.py", "import not_there", "pip install …` (the package may have another name than"),
    ("app.py", "from oncward import Inbox", "Did you mean 'onceward'?"),
    ("app.py", "import os\nos.environ['SECRET']", "Set the environment variable SECRET."),
    ("shop/hooks.py", "import shop.parts", "Load the app as a module: onceward serve shop.ho"),
    ("shop/hooks.py", "from . import parts", "is loaded as a module: onceward serve shop.ho"),
]


def test_an_error_in_the_app_says_what_may_help(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for file, text, hint in HELP:
        with subtests.test(hint):
            folder = folder_in(tmp_path, file, text)
            done = run("serve", file, cwd=folder)
            assert done.returncode == 2
            assert hint in done.stderr.splitlines()[1]


ADVICE = [
    (["work", "shop/hooks.py"], "onceward work shop.hooks"),
    (["send", "stripe", "--app", "shop/hooks.py"], "onceward send … --app shop.hooks"),
    (["verify", "stripe", "--app", "shop/hooks.py"], "onceward verify … --app shop.hooks"),
]


def test_the_form_of_a_module_is_shown_for_the_command_that_ran(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for command, advice in ADVICE:
        with subtests.test(advice):
            folder = folder_in(tmp_path, "shop/hooks.py", "from . import parts")
            done = run(*command, cwd=folder)
            assert done.stderr.splitlines()[1].endswith(f"is loaded as a module: {advice}")


@pytest.mark.parametrize(
    ("name", "suggestion"), [("RetryLatr", "; did you mean 'RetryLater'?"), ("Warehouse", "")]
)
def test_a_name_that_cannot_be_imported_is_shown_without_paths(
    folder: Path, name: str, suggestion: str
) -> None:
    (folder / "app.py").write_text(f"from onceward import {name}")
    done = run("serve", "app.py", cwd=folder)
    assert done.stderr.splitlines()[0] == (
        "onceward: app.py cannot be loaded: ImportError: "
        f"cannot import name '{name}' from 'onceward'{suggestion}"
    )


@pytest.mark.parametrize(
    ("app", "state"), [("app.py", ""), ("app", "partially initialized module ")]
)
def test_a_circular_import_is_explained_without_paths(folder: Path, app: str, state: str) -> None:
    text = (folder / "app.py").read_text()
    (folder / "app.py").write_text(f"import parts\n{text}")
    (folder / "parts.py").write_text("from app import inbox")
    done = run("serve", app, cwd=folder)
    assert done.stderr.splitlines()[0] == (
        f"onceward: {app} cannot be loaded: ImportError: cannot import name 'inbox' from {state}"
        "'app'; the modules import each other: import the second one below the line that creates "
        "the inbox"
    )


MISCONFIGURED = [
    ("inbox.source('github', secrets=['short-1'])", "source 'github': secret 1 is 7 bytes"),
    (
        "inbox.source('github', secrets=[''])",
        "source 'github': secret 1 is empty; is its environment variable set?",
    ),
    (
        "inbox.source('github', secrets=[None])",
        "source 'github': secret 1 is None; is its environment variable set?",
    ),
    ("inbox.source('github')", "source 'github': there are no secrets"),
    ("inbox.source('stripe', unsigned=True)", "another source already has this name"),
    ("inbox.on('x', source='missing')(credit)", "the name is already in use"),
    (
        "inbox.on('x', source='missing', name='n')(credit)",
        "there is no source 'missing'; the sources",
    ),
    ("inbox.on('x', source='strpe', name='n')(credit)", "'strpe'; did you mean 'stripe'?"),
    ("inbox.on(credit)", "onceward: app.py:10: @inbox.on needs the event types"),
    (
        "__import__('onceward').Retry(600, 5)",
        "onceward: app.py:10: Retry: base_seconds is 600, more than",
    ),
]


def test_a_misconfigured_source_or_handler_is_named(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for line, message in MISCONFIGURED:
        with subtests.test(message):
            folder = folder_in(tmp_path, "app.py", APP.format(arguments="") + line)
            error = error_of("serve", "app.py", cwd=folder)
            assert message in error
            if "name='n'" not in line:  # the inbox sees this one when all sources are known
                assert error.startswith("onceward: app.py:10: ")
            assert "short-1" not in error
            assert not (folder / "onceward.db").exists()


FAULTS = [
    "@inbox.on\ndef f(event): ...",
    "@inbox.on('x', timeout=3)\ndef f(event): ...",
    "@inbox.at_start()\nasync def f(tx): ...",
    "inbox.source('strype', secrets=['a-long-secret'])",
]


def test_a_fault_names_its_line_once(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for code in FAULTS:
        with subtests.test(code):
            folder = folder_in(tmp_path, "app.py", APP.format(arguments="") + code)
            assert error_of("serve", "app.py", cwd=folder).count("app.py:10") == 1


AT_START = [
    (
        "await tx.execute('CREAT TABLE x')",
        'OperationalError: near "CREAT": syntax error (app.py:13 in tables)',
    ),
    ("helper()", "KeyError: 'x' (app.py:16 in helper)"),
    ("raise KeyError", "KeyError (app.py:13 in tables)"),
]


def test_an_error_at_start_is_reported_with_the_lines_of_the_app(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for statement, reason in AT_START:
        with subtests.test(reason):
            prepare = f"""
@inbox.at_start
async def tables(tx):
    {statement}

def helper():
    return {{}}['x']
"""
            folder = folder_in(tmp_path, "app.py", APP.format(arguments="") + prepare)
            done = run(*serve("app.py"), cwd=folder)
            assert done.returncode == 2
            first, *frames = done.stderr.splitlines()
            assert first == f"onceward: @inbox.at_start tables failed: {reason}"
            assert frames[0].strip().startswith(f'File "{folder}/app.py", line 13, in tables')
            assert "site-packages" not in done.stderr
            assert "onceward/" not in done.stderr


def test_a_misspelled_environment_variable_is_named_once_at_start(folder: Path) -> None:
    variables = {"ONCEWARD_MAX_ATEMPTS": "3", "ONCEWARD_TOKEN": "x", "ONCEWARD_CRM": "x"}
    with started(*serve("app.py", "--dev"), cwd=folder, **variables) as running:
        log = running.log
    warning = "ONCEWARD_MAX_ATEMPTS is not a setting; did you mean ONCEWARD_MAX_ATTEMPTS?"
    assert log.count(" is not a setting") == log.count(f"WARNING onceward.settings: {warning}") == 1
