"""Each process reports what operators paused, until it is resumed."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from onceward.errors import StoreUnavailable
from onceward.model.admin import Pausable, Pause
from onceward.operate.pause_watch import InlineNames, PauseWatch

AT = datetime(2026, 1, 1, 9, tzinfo=UTC)
SOURCE = Pause(Pausable.SOURCE, "stripe", AT)
SOURCE_TEXT = (
    "Source 'stripe' is paused by an operator (since 2026-01-01 09:00:00 UTC): its events are "
    "recorded, and their jobs wait until POST /admin/sources/stripe/resume. "
    "GET /admin/audit?subject=source:stripe says who paused it, and why."
)
HANDLER = Pause(Pausable.HANDLER, "credit", AT)


class Pauses:
    """Returns or raises what the test says, one read after the other."""

    def __init__(self, *reads: list[Pause] | Exception) -> None:
        self.reads = list(reads)

    async def pauses(self) -> list[Pause]:
        read = self.reads.pop(0)
        if isinstance(read, Exception):
            raise read
        return read


async def log_of(
    caplog: pytest.LogCaptureFixture, *reads: list[Pause] | Exception
) -> list[tuple[str, str]]:
    watch = PauseWatch(Pauses(*reads))
    with caplog.at_level(logging.INFO, "onceward.workers"):
        for _ in reads:
            await watch.refresh()
    return [(record.levelname, record.getMessage()) for record in caplog.records]


async def test_a_pause_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await log_of(caplog, [SOURCE], [SOURCE], []) == [
        ("WARNING", SOURCE_TEXT),
        ("INFO", "Source 'stripe' is no longer paused."),
    ]


async def test_the_pause_of_an_inline_source_says_that_nothing_is_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop, other = Pause(Pausable.SOURCE, "shop", AT), Pause(Pausable.HANDLER, "book", AT)
    inline = InlineNames(frozenset({"shop"}), frozenset({"book"}))
    watch = PauseWatch(Pauses([shop, other, SOURCE]), inline)
    await watch.refresh()
    lines = [record.getMessage() for record in caplog.records]
    since = "is paused by an operator (since 2026-01-01 09:00:00 UTC): "
    refused = "its senders get 503, and nothing is recorded until POST /admin/sources/shop/resume."
    assert f"Source 'shop' {since}{refused}" in lines[0]
    refused = "senders of its events to an inline source get 503, and nothing of these is recorded"
    assert f"Handler 'book' {since}its queued jobs wait, {refused} until" in lines[1]
    assert lines[2] == SOURCE_TEXT
    effect = "senders get 503, and nothing is recorded until the resume."
    assert watch.warnings == (
        f"A handler of an inline source {since}{effect} GET /admin/handlers has the names.",
        (
            "A source is paused by an operator (since 2026-01-01 09:00:00 UTC), and jobs wait. "
            "GET /admin/sources has the names."
        ),
        f"An inline source {since}{effect} GET /admin/sources has the names.",
    )


async def test_a_second_pause_between_two_reads_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    again = Pause(Pausable.HANDLER, "credit", AT + timedelta(seconds=5))
    lines = await log_of(caplog, [HANDLER], [again])
    assert [level for level, _ in lines] == ["WARNING", "WARNING"]


async def test_the_public_warnings_have_no_names_and_end_with_the_pause() -> None:
    later = Pause(Pausable.HANDLER, "ship", AT + timedelta(hours=1))
    watch = PauseWatch(Pauses([HANDLER, later, SOURCE], [], []))
    await watch.refresh()
    since = "paused by an operator (since 2026-01-01 09:00:00 UTC), and jobs wait."
    assert watch.warnings == (
        f"2 handlers are {since} GET /admin/handlers has the names.",
        f"A source is {since} GET /admin/sources has the names.",
    )
    await watch.refresh()
    assert not watch.warnings


async def test_a_warning_lasts_through_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    watch = PauseWatch(Pauses([SOURCE], StoreUnavailable("down")))
    await watch.refresh()
    await watch.refresh()
    assert len(watch.warnings) == 1
    assert len(caplog.records) == 1
