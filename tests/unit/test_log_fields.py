"""The fields of log records, and the two forms in which the command line writes them."""

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward.cli._logging import JsonFormatter, TextFormatter
from onceward.runtime.log_fields import FIELDS, seconds_text

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "logging.md"
AT = 1_792_000_000.1239
CREATED = "2026-10-14T17:46:40.123Z"
MESSAGE = (
    "job 12 of handler 'send' failed, attempt 2 of 40; retrying in 4 s: OSError: no (a.py:3 in f)"
)
JOB_FIELDS: dict[str, Any] = {
    "job": 12,
    "handler": "send",
    "attempt": 2,
    "max_attempts": 40,
    "retry_in_seconds": 4.0,
    "error": "OSError: no",
    "location": "a.py:3 in f",
    "event_id": "evt_1",
    "source": "stripe",
    "type": "invoice.paid",
    "traceback": "a.py:2 in g\na.py:3 in f",
}


def record(message: str = MESSAGE, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("onceward.work", logging.WARNING, "runner.py", 1, message, (), None)
    made.created = AT
    vars(made).update(fields)
    return made


# The table.


def test_no_field_is_an_attribute_of_every_record() -> None:
    reserved = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
    assert reserved & FIELDS.keys() == set()


def test_no_field_replaces_the_message_of_structlog() -> None:
    assert "event" not in FIELDS


def test_the_page_has_every_field() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [row for row in rows if row[0] in FIELDS] == list(FIELDS.items())


def test_the_page_has_every_logger() -> None:
    documented = set(re.findall(r"^\| `(onceward\.\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert documented == set(loggers())


def loggers() -> Iterator[str]:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes(), path)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger":
                match node.args:
                    case [ast.Constant(value=str(name))] if name.startswith("onceward."):
                        yield name


def test_a_duration_has_at_most_one_decimal(subtests: pytest.Subtests) -> None:
    for seconds, text in [(0.04, "0"), (0.5, "0.5"), (4.0, "4"), (31622400.0, "31622400")]:
        with subtests.test(seconds=seconds):
            assert seconds_text(seconds) == text


# Text.


def test_text_shows_the_fields_that_the_message_lacks() -> None:
    first, *rest = TextFormatter().format(record(**JOB_FIELDS)).split("\n")
    assert first == (
        f"{CREATED} WARNING onceward.work: {MESSAGE} event_id=evt_1 source=stripe type=invoice.paid"
    )
    assert rest == ["    a.py:2 in g", "    a.py:3 in f"]


def test_a_value_counts_as_shown_only_as_a_whole_word() -> None:
    assert TextFormatter().format(record("job 12", job=1)).endswith("job 12 job=1")
    assert TextFormatter().format(record("job 12", job=12)).endswith(": job 12")
    assert TextFormatter().format(record("job 1", event_id="1")).endswith("job 1 event_id=1")


def test_a_value_with_spaces_or_quotes_is_quoted() -> None:
    line = TextFormatter().format(record("x", type='a "b" c', source="p=q"))
    assert line.endswith(r'x type="a \"b\" c" source="p=q"')
    assert TextFormatter().format(record("x", type='\\" y=1')).endswith(r'x type="\\\" y=1"')


def test_a_field_without_a_value_is_left_out() -> None:
    assert TextFormatter().format(record("x", source=None)).endswith(": x")
    assert "source" not in json.loads(JsonFormatter().format(record("x", source=None)))


# JSON.


def test_json_has_the_fields_at_its_top_level() -> None:
    line = JsonFormatter().format(record(**JOB_FIELDS))
    assert "\n" not in line
    entry = json.loads(line)
    assert list(entry)[:4] == ["at", "level", "logger", "message"]
    assert entry == {
        "at": CREATED,
        "level": "warning",
        "logger": "onceward.work",
        "message": MESSAGE,
        **JOB_FIELDS,
    }


def test_a_field_cannot_replace_the_time_or_the_level() -> None:
    entry = json.loads(JsonFormatter().format(record("x", at="never", level="none", logger="?")))
    assert (entry["at"], entry["level"], entry["logger"]) == (CREATED, "warning", "onceward.work")


def test_a_field_of_any_type_is_written() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd\ud800"

    fields = {"odd": Odd(), "big": 2**70, "none": None, "list": [{1, 2}], "nan": float("nan")}
    entry = json.loads(JsonFormatter().format(record("x", **fields)))
    assert (entry["odd"], entry["big"], entry["nan"]) == ("odd\\ud800", str(2**70), None)


# Both.


def test_control_characters_are_escaped(subtests: pytest.Subtests) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        for attack in ("\x1b[31m", "\r", "\x9b0m", "\u2028", "\x7f", "\ud800", "\0"):
            with subtests.test(formatter=formatter, attack=attack):
                made = record(
                    f"a{attack}b", source=f"c{attack}d", traceback=f"e{attack}f\ng{attack}h"
                )
                for line in formatter.format(made).split("\n"):
                    assert line.isprintable()


def test_a_line_break_cannot_begin_a_line_of_its_own() -> None:
    line = TextFormatter().format(record("a\nERROR fake", source="b\nERROR fake"))
    assert "\n" not in line


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_exception_of_the_apps_own_log_call_is_written(formatter: logging.Formatter) -> None:
    made = record("own")
    try:
        int("twelve")
    except ValueError:
        made.exc_info = sys.exc_info()
    text = formatter.format(made)
    assert "ValueError: invalid literal" in text
    for line in text.split("\n")[1:]:
        assert line.startswith("    ")


AT_THE_END = """
import logging, sys
from onceward.cli._logging import TextFormatter

class Late:
    def __init__(self):
        self.format = TextFormatter().format
        self.record = logging.LogRecord("late", logging.ERROR, "", 1, "the end", (), None)
        self.stdout = sys.stdout

    def __del__(self):
        self.stdout.write(self.format(self.record))
        self.stdout.flush()

sys.late = Late()  # deleted when nothing can be imported any more
"""


def test_a_line_at_the_end_of_the_process_is_formatted() -> None:
    command = [sys.executable, "-c", AT_THE_END]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("Z ERROR   late: the end")
