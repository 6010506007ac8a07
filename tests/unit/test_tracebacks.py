"""Tracebacks show the file, line and function of the user's frames, and no values."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import onceward
from onceward.errors import PermanentError
from onceward.runtime import tracebacks
from onceward.runtime.code_location import (
    definition_line,
    instruction_location,
    is_own,
    short_path,
)
from onceward.runtime.tracebacks import (
    LIMIT_CHARACTERS,
    MAX_FRAMES,
    TracebackText,
    traceback_from,
    traceback_text,
)
from onceward.work.payloads.decoders.msgspec_decoder import UNCHECKED
from onceward.work.payloads.payload import decode
from tests.cpu_time import within

APP = """
import json

def send(mail):
    connect(mail)

def connect(mail):
    raise ConnectionError("4242 4242 4242 4242")

def parse(text):
    return json.loads(text)

def wrap(mail):
    try:
        connect(mail)
    except ConnectionError as error:
        raise LookupError("wrapped") from error

def handle(mail):
    try:
        connect(mail)
    except ConnectionError:
        raise LookupError("handled")

def hide(mail):
    try:
        connect(mail)
    except ConnectionError:
        raise LookupError("hidden") from None

def recurse(mail):
    recurse(mail)

def retry(times):
    try:
        if times:
            retry(times - 1)
        connect(None)
    except Exception as error:
        raise LookupError("again") from error

class Mailer:
    def post(self):
        def inner():
            connect(None)
        inner()

def compile_it(text):
    compile(text, "rules.py", "exec")
"""
PAYLOAD = "ann@example.com"


def load(text: str = APP, path: str = "app/mail.py", name: str = "app.mail") -> Any:
    """Return the names of a module as if it were in a file below the working directory."""
    names: dict[str, Any] = {"__name__": name}
    exec(compile(text, os.path.abspath(path), "exec"), names)  # noqa: S102, PTH100 - the test's own code
    return type("Module", (), {key: staticmethod(value) for key, value in names.items()})


def trace_of(function: Callable[..., object], *arguments: object, **options: Any) -> TracebackText:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - the error is the subject
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # not this frame
        return traceback_text(error, **options)
    raise AssertionError("nothing was raised")


def test_frames_are_listed_in_calling_order() -> None:
    trace = trace_of(load().send, PAYLOAD)
    assert trace.text == "app/mail.py:5 in send\napp/mail.py:8 in connect"
    assert trace.location == "app/mail.py:8 in connect"


def test_a_method_is_shown_with_its_class_and_a_local_function_without_its_parent() -> None:
    trace = trace_of(load().Mailer().post)
    assert trace.text.splitlines() == [
        "app/mail.py:46 in Mailer.post",
        "app/mail.py:45 in inner",
        "app/mail.py:8 in connect",
    ]


def test_of_a_run_of_library_frames_the_innermost_is_kept() -> None:
    trace = trace_of(load().parse, "{")
    user, library = trace.text.splitlines()
    assert user == "app/mail.py:11 in parse"
    assert library.startswith("json/decoder.py:")
    assert trace.location == user  # the line to look at is in the user's code


def test_library_frames_between_frames_of_the_user_are_kept() -> None:
    app = load(
        "import json\ndef outer():\n    json.loads('{}', object_hook=hook)\n"
        "def hook(value):\n    raise KeyError(value)\n"
    )
    trace = trace_of(app.outer)
    outer, library, inner = trace.text.splitlines()
    assert (outer, inner) == ("app/mail.py:3 in outer", "app/mail.py:5 in hook")
    assert library.startswith("json/decoder.py:")


def test_an_error_without_a_frame_of_the_user_has_no_traceback() -> None:
    with pytest.raises(PermanentError) as caught:
        decode(b"{", UNCHECKED, content_type="application/json")
    trace = caught.value.__traceback__
    assert trace is not None
    caught.value.__traceback__ = trace.tb_next  # without the frame of this test
    assert traceback_text(caught.value) == TracebackText("", "")


def test_an_installed_app_is_the_users_code_and_not_a_library() -> None:
    path = "venv/site-packages/app/mail.py"
    with_package = trace_of(load(path=path).send, PAYLOAD, package="app")
    assert with_package.text.splitlines()[0].endswith("app/mail.py:5 in send")
    assert len(with_package.text.splitlines()) == 2
    assert trace_of(load(path=path).send, PAYLOAD, package="shop") == TracebackText("", "")


# Causes and groups.


@pytest.mark.parametrize(("name", "line"), [("wrap", 17), ("handle", 23)])
def test_the_causes_follow_with_their_type_and_without_their_text(name: str, line: int) -> None:
    assert trace_of(getattr(load(), name), PAYLOAD).text.splitlines() == [
        f"app/mail.py:{line} in {name}",
        "caused by ConnectionError",
        f"app/mail.py:{line - 2} in {name}",
        "app/mail.py:8 in connect",
    ]


def test_a_suppressed_context_is_not_shown() -> None:
    assert trace_of(load().hide, PAYLOAD).text == "app/mail.py:29 in hide"


def test_many_causes_stay_within_the_limits() -> None:
    lines = trace_of(load().retry, 300).text.splitlines()
    assert len([line for line in lines if " in " in line]) <= MAX_FRAMES
    assert lines.count("caused by LookupError") == 4
    assert lines[-1] == "… more causes"


def test_causes_in_a_circle_end() -> None:
    def fail() -> None:
        first, second = ValueError("a"), ValueError("b")
        first.__cause__, second.__cause__ = second, first
        raise first

    assert trace_of(fail).text.splitlines()[1:] == ["caused by ValueError"]


async def test_a_group_is_shown_from_the_handler_to_its_leading_error() -> None:
    app = load(
        "import asyncio\nfrom onceward.errors import PermanentError\n"
        "async def handler():\n    async with asyncio.TaskGroup() as group:\n"
        "        group.create_task(child())\n"
        "async def child():\n    raise PermanentError('no such account')\n"
    )
    with pytest.raises(ExceptionGroup) as caught:
        await app.handler()
    trace = traceback_text(caught.value)
    lines = [line for line in trace.text.splitlines() if line.startswith("app/")]
    assert lines == ["app/mail.py:4 in handler", "app/mail.py:7 in child"]
    assert trace.location == "app/mail.py:7 in child"


# Limits.


def test_a_recursion_is_cut_in_its_middle_and_cheap() -> None:
    text = within(1, lambda: trace_of(load().recurse, PAYLOAD).text)
    lines = text.splitlines()
    assert lines[0] == "app/mail.py:32 in recurse"
    assert lines[MAX_FRAMES // 2] == "… more frames"
    assert len(lines) == MAX_FRAMES + 1


def test_a_huge_traceback_is_read_only_at_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[FrameType] = []
    origin = tracebacks._origin

    def observe(frame: FrameType, package: str) -> object:
        read.append(frame)
        return origin(frame, package)

    monkeypatch.setattr(tracebacks, "_origin", observe)
    frame = next(iter(sys._current_frames().values()))
    error = ValueError("deep")
    error.__traceback__ = traceback_from(frame for _ in range(50_000))
    text = traceback_text(error).text
    assert len(read) <= 1_000
    assert len(text.splitlines()) <= MAX_FRAMES + 1
    while error.__traceback__ is not None:  # a long chain is freed link by link
        error.__traceback__ = error.__traceback__.tb_next


def test_library_frames_that_were_not_read_are_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_READ_FRAMES", 100)
    app = load("import copy\ndef clone(value):\n    copy.deepcopy(value)\n")
    value: list[Any] = []
    for _ in range(sys.getrecursionlimit()):
        value = [value]
    lines = trace_of(app.clone, value).text.splitlines()
    assert lines[0] == "app/mail.py:3 in clone"
    assert "… more frames" in lines


def test_long_paths_are_cut_at_whole_lines() -> None:
    app = load(path=f"app/{'long' * 100}/mail.py")
    text = trace_of(app.recurse, PAYLOAD).text
    assert len(text) <= LIMIT_CHARACTERS
    for line in text.splitlines():
        assert line.startswith(("app/long", "…"))
    assert "\n…\n" in text


def test_a_line_longer_than_the_limit_is_cut() -> None:
    text = trace_of(load(path=f"app/{'x' * 3 * LIMIT_CHARACTERS}/mail.py").connect, PAYLOAD).text
    assert len(text) <= LIMIT_CHARACTERS
    assert text.startswith("app/x")
    assert text.endswith("x/mail.py:8 in connect")


def test_a_syntax_error_shows_where_the_user_compiled_and_no_source() -> None:
    trace = trace_of(load().compile_it, f"x = = '{PAYLOAD}'")
    assert trace.text == "app/mail.py:49 in compile_it"


# Nothing leaks.


def test_no_value_and_no_source_line_is_shown() -> None:
    for name in ("send", "wrap", "handle"):
        text = trace_of(getattr(load(), name), PAYLOAD).text
        for leak in (PAYLOAD, "4242", "raise", "mail)", "wrapped"):
            assert leak not in text


def test_a_secret_in_a_path_is_masked_and_control_characters_are_escaped() -> None:
    app = load(path="app/s3cr3t\n\x1b[31m/mail.py")
    trace = trace_of(app.send, PAYLOAD, secrets=[b"s3cr3t"])
    assert trace.text.splitlines()[0] == "app/[redacted]\\n\\x1b[31m/mail.py:5 in send"
    assert trace.location == "app/[redacted]\\n\\x1b[31m/mail.py:8 in connect"


# Paths and running frames.


def test_a_path_is_relative_to_the_working_directory_or_to_its_entry_of_sys_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/elsewhere/apps")
    assert short_path(str(tmp_path / "app" / "mail.py")) == "app/mail.py"
    assert short_path("/elsewhere/apps/shop/mail.py") == "shop/mail.py"
    assert short_path(asyncio.__file__) == "asyncio/__init__.py"
    assert short_path("/nowhere/mail.py") == "/nowhere/mail.py"


def test_a_path_is_relative_to_the_longest_entry_that_contains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / ".venv" / "lib" / "site-packages"
    monkeypatch.chdir(tmp_path)
    for entry in ("/elsewhere/apps", "/elsewhere", str(packages)):
        monkeypatch.syspath_prepend(entry)
    assert short_path("/elsewhere/apps/shop/mail.py") == "shop/mail.py"
    assert short_path(str(packages / "stripe" / "http.py")) == "stripe/http.py"


def test_a_path_is_shown_even_if_the_working_directory_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert short_path("/nowhere/mail.py") == "/nowhere/mail.py"


def test_a_decorated_function_is_defined_at_its_own_line() -> None:
    app = load(
        "import functools\ndef keep(function):\n    @functools.wraps(function)\n"
        "    def wrapper():\n        function()\n    return wrapper\n"
        "@keep\ndef send():\n    pass\n"
    )
    assert definition_line(app.send) == "app/mail.py:7"


def test_every_instruction_is_located_at_its_line() -> None:
    code = load().wrap.__code__
    for start, end, line in code.co_lines():
        for offset in range(start, end, 2) if line else ():
            assert instruction_location(code, offset) == f"app/mail.py:{line} in wrap"


def test_a_traceback_can_be_made_of_running_frames() -> None:
    frames: list[FrameType] = [sys._getframe(), sys._getframe(1)]
    trace = traceback_from(frames)
    assert trace is not None
    assert trace.tb_next is not None
    assert (trace.tb_frame, trace.tb_next.tb_frame) == (frames[1], frames[0])
    assert traceback_from([]) is None


def test_a_package_whose_name_begins_like_onceward_is_not_onceward() -> None:
    own = Path(onceward.__file__)
    assert is_own(str(own))
    assert not is_own(str(own.parent.with_name("onceward_shop") / "app.py"))
