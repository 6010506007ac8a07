"""An error of PostgreSQL says whether a statement may have committed."""

import psycopg
import pytest
from psycopg import errors

from onceward.errors import OutcomeUnknown, StoreError, StoreUnavailable, Unwritable
from onceward.store.postgres.connections import translate_error

ERRORS: list[tuple[psycopg.Error, type[StoreError], type[StoreError]]] = [
    (errors.AdminShutdown("ended by an administrator"), OutcomeUnknown, StoreUnavailable),
    (errors.ConnectionFailure("broken"), OutcomeUnknown, StoreUnavailable),
    (psycopg.OperationalError("the connection is closed"), OutcomeUnknown, StoreUnavailable),
    (errors.DiskFull("no space left"), StoreUnavailable, StoreUnavailable),
    (errors.UniqueViolation("exists"), Unwritable, Unwritable),
]


def test_a_lost_statement_that_was_sent_has_an_unknown_outcome(subtests: pytest.Subtests) -> None:
    for error, sent, unsent in ERRORS:
        with subtests.test(error=error):
            assert type(translate_error(error)) is sent
            assert type(translate_error(error, is_sent=False)) is unsent
