"""Error texts omit the values of the failing call."""

from types import SimpleNamespace

import psycopg
import pytest

from onceward.errors import HandlerTimeout, PermanentError
from onceward.runtime.error_text import describe, sender_reason

DESCRIPTIONS: list[tuple[Exception, str]] = [
    (KeyError("customer"), "KeyError: 'customer'"),
    (ValueError(), "ValueError"),
    (PermanentError(), "PermanentError"),
    (HandlerTimeout("took longer than 30 s"), "took longer than 30 s"),
    (ValueError("it failed\nDETAIL: Key (name)=(Jane) exists"), "ValueError: it failed …"),
    (ValueError("\n it failed \n"), "ValueError: it failed"),
    (psycopg.OperationalError("connection lost"), "OperationalError: connection lost"),
]


def test_an_error_is_described_by_its_type_and_first_line(subtests: pytest.Subtests) -> None:
    for error, text in DESCRIPTIONS:
        with subtests.test(error=error):
            assert describe(error) == text


def test_a_database_error_is_described_by_its_primary_message_only() -> None:
    class UniqueViolation(Exception):
        diag = SimpleNamespace(message_primary='violates constraint "accounts_key"')

    error = UniqueViolation('violates constraint "accounts_key", Key (name)=(Jane) exists')
    assert describe(error) == 'UniqueViolation: violates constraint "accounts_key"'


@pytest.mark.parametrize("diag", [None, 5, SimpleNamespace(message_primary=None)])
def test_a_diag_without_a_primary_message_is_ignored(diag: object) -> None:
    class OddError(Exception):
        pass

    error = OddError("no")
    error.diag = diag  # type: ignore[attr-defined]
    assert describe(error) == "OddError: no"


def test_an_error_that_cannot_be_read_is_still_described() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(BrokenError()) == "BrokenError: the error text cannot be read"


def test_a_sender_sees_no_path_and_no_url(subtests: pytest.Subtests) -> None:
    for message, shown in [
        ("cannot import name x (/srv/app/lib/x.py)", "RuntimeError: cannot import name x (…)"),
        ("no answer of http://billing.internal:80/a?card=1", "RuntimeError: no answer of …"),
        ("no template at /srv/app/mail.html", "RuntimeError: no template at …"),
        ("either/or and 3/4 stay", "RuntimeError: either/or and 3/4 stay"),
    ]:
        with subtests.test(message=message):
            assert sender_reason(RuntimeError(message)) == shown


def test_a_sender_sees_no_line_of_code() -> None:
    error = PermanentError("app/mail.py:31 in send_mail: effects.once: the key is empty")
    assert sender_reason(error) == "effects.once: the key is empty"
    idle = PermanentError("handler 'note' (app/mail.py:31): waited over 250 ms")
    assert sender_reason(idle) == "handler 'note': waited over 250 ms"
