"""The errors that Onceward stores and logs show no values of the payload, unless a setting does."""

import logging
from typing import Any

import pytest

from onceward import Event, Inbox, PermanentError, Transaction
from support.database import RawDatabase
from tests.inprocess import run_inbox

CUSTOMER = {"name": "John Smith", "email": "john smith at example"}


@pytest.fixture
def inbox() -> Inbox:
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS people (email text PRIMARY KEY)")
        await tx.execute("INSERT INTO people VALUES ('john smith at example')")

    @inbox.on("a", max_attempts=1)
    async def parse(event: Event[Any]) -> None:
        int(event.payload["name"])

    @inbox.on("a", max_attempts=1)
    async def look_up(event: Event[Any]) -> None:
        prices: dict[str, int] = {}
        prices[event.payload["name"]]

    @inbox.on("a", max_attempts=1)
    async def cast(event: Event[Any], tx: Transaction) -> None:
        await tx.execute("SELECT CAST(:name AS integer) / 0", {"name": event.payload["name"]})

    @inbox.on("a", max_attempts=1)
    async def repeat(event: Event[Any], tx: Transaction) -> None:
        await tx.execute("INSERT INTO people VALUES (:email)", {"email": event.payload["email"]})

    @inbox.on("a")
    async def wrap(event: Event[Any]) -> None:
        try:
            float(event.payload["name"])
        except ValueError as error:
            raise PermanentError(f"no amount: {error}") from error

    return inbox


@pytest.mark.parametrize("shows", [False, True])
async def test_no_value_is_stored_or_logged_unless_the_setting_shows_it(
    inbox: Inbox, database_url: str, caplog: pytest.LogCaptureFixture, *, shows: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    async with run_inbox(inbox, database_url, show_error_values=shows) as bench:
        await bench.post("a", CUSTOMER)
        await bench.wait_until_idle()
        errors = {job.handler: job.last_error for job in (await bench.jobs()).values()}
    attempts = repr(RawDatabase(database_url).rows("SELECT error FROM onceward.attempts"))
    assert errors["parse"] == (
        "ValueError: invalid literal for int() with base 10: "
        + ("'John Smith'" if shows else "'…' (10 characters)")
    )
    assert errors["wrap"] == (
        "no amount: could not convert string to float: "
        + ("'John Smith'" if shows else "'…' (10 characters)")
    )
    for text in (repr(errors), attempts, caplog.text):
        assert ("Smith" in text) is shows
        assert "smith at example" not in text  # the detail of a database error
    assert any(name in str(errors["repeat"]) for name in ("people_pkey", "people.email"))
