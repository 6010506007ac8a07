"""Notifications are sent apart from the commits, and shared by many."""

import asyncio

import pytest

from onceward.errors import StoreUnavailable
from onceward.store.postgres import announcer
from onceward.store.postgres.announcer import Announcer
from support.processes import eventually_async


class Server:
    """Counts notifications, and lets them wait or fail."""

    def __init__(self) -> None:
        self.count = 0
        self.responds = asyncio.Event()
        self.fails = False

    async def notify(self) -> None:
        self.count += 1
        await self.responds.wait()
        if self.fails:
            raise StoreUnavailable("no connection")


async def test_commits_during_a_notification_share_the_next_one() -> None:
    server = Server()
    sender = Announcer(server.notify)
    for _ in range(100):
        sender.announce()
        await asyncio.sleep(0)
    assert server.count == 1
    server.responds.set()
    await sender.close()
    assert server.count == 2


async def test_a_failed_notification_ends_nothing() -> None:
    server = Server()
    server.fails = True
    server.responds.set()
    sender = Announcer(server.notify)
    for number in range(3):
        sender.announce()

        async def is_sent(number: int = number) -> bool:
            return server.count > number

        await eventually_async(is_sent, "the notification is sent")
    await sender.close()


async def test_a_commit_during_a_failed_notification_is_announced() -> None:
    server = Server()
    server.fails = True
    sender = Announcer(server.notify)
    sender.announce()
    await asyncio.sleep(0)
    sender.announce()
    server.responds.set()
    await sender.close()
    assert server.count == 2


async def test_closing_ends_the_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "CLOSE_SECONDS", 0.01)
    server = Server()
    sender = Announcer(server.notify)
    sender.announce()
    await asyncio.sleep(0)
    sender.announce()
    await sender.close()
    server.responds.set()
    await asyncio.sleep(2 * announcer.PAUSE_SECONDS)
    assert server.count == 1


async def test_closing_does_not_wait_for_a_server_that_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcer, "CLOSE_SECONDS", 0.01)
    sender = Announcer(Server().notify)
    sender.announce()
    await asyncio.wait_for(sender.close(), 5)
    sender_without_jobs = Announcer(Server().notify)
    await sender_without_jobs.close()


async def yield_often() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_commits_soon_after_a_notification_share_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcer, "PAUSE_SECONDS", 60.0)
    monkeypatch.setattr(announcer, "CLOSE_SECONDS", 0.0)
    server = Server()
    server.responds.set()
    sender = Announcer(server.notify)
    for _ in range(3):
        sender.announce()
        await yield_often()
    assert server.count == 1
    await sender.close()


async def test_a_commit_after_a_quiet_time_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "PAUSE_SECONDS", 0.0)
    server = Server()
    server.responds.set()
    sender = Announcer(server.notify)
    for number in (1, 2):
        sender.announce()
        await yield_often()
        assert server.count == number
    await sender.close()


async def test_the_pause_grows_while_jobs_are_created_in_every_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) < 6:
            sender.announce()

    monkeypatch.setattr("onceward.store.postgres.announcer.asyncio.sleep", sleep)
    server = Server()
    server.responds.set()
    sender = Announcer(server.notify)
    sender.announce()
    await sender.close()
    assert pauses == [0.001, 0.002, 0.004, 0.004, 0.004, 0.004]
    sender.announce()
    await sender.close()
    assert pauses[-1] == announcer.PAUSE_SECONDS
