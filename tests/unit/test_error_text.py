"""Error texts omit the values of the failing call."""

from types import SimpleNamespace

import psycopg
import pytest

from onceward.errors import HandlerTimeout, PermanentError
from onceward.runtime.error_text import describe


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("customer"), "KeyError: 'customer'"),
        (ValueError(), "ValueError"),
        (PermanentError(), "PermanentError"),
        (HandlerTimeout("took longer than 30 s"), "took longer than 30 s"),
        (ValueError("it failed\nDETAIL: Key (name)=(Jane) exists"), "ValueError: it failed …"),
        (ValueError("\n it failed \n"), "ValueError: it failed"),
        (psycopg.OperationalError("connection lost"), "OperationalError: connection lost"),
    ],
)
def test_an_error_is_described_by_its_type_and_first_line(error: Exception, text: str) -> None:
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
