"""Two receivers and two workers on one database, and one after the other is killed."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.checker import Journal, Sending, check_at_rest
from tests.processes import APPS, Process, Serve, Work

PROBE = APPS / "probe.py"
FAST: dict[str, Any] = {"lease_seconds": 0.5, "poll_seconds": 0.1, "max_attempts": 100}
SECONDS = 6.0
SEED = 20_261_115


class Town:
    """The processes: each that is killed is replaced by one of its kind."""

    def __init__(self, url: str, graves: ExitStack) -> None:
        self._url = url
        self._graves = graves
        self.receivers = [self._receiver(), self._receiver()]
        self.workers = [self._worker(), self._worker()]
        self.kills = 0

    def _receiver(self) -> Serve:
        serve = Serve(PROBE, self._url, "--workers", "0", forked=True, **FAST)
        return self._graves.enter_context(serve)

    def _worker(self) -> Work:
        return self._graves.enter_context(Work(PROBE, self._url, forked=True, **FAST))

    def kill_one(self, dice: random.Random) -> None:
        """Kill a process, any of them, and start another in its place."""
        place = dice.randrange(4)
        victim: Process = [*self.receivers, *self.workers][place]
        victim.kill()
        self.kills += 1
        if place < 2:
            self.receivers[place] = self._receiver()
        else:
            self.workers[place - 2] = self._worker()


def mixed_load(town: Town, journal: Journal, over: threading.Event, name: str) -> None:
    """Send new events, some of them again, some with another body, some without what they need."""
    dice = random.Random(f"{SEED}-{name}")  # noqa: S311 - the same each time
    recent = [Sending(f"{name}-0", 1, name)]
    while not over.is_set():
        fresh = Sending(f"{name}-{len(recent)}", dice.randint(1, 9), name)
        again = dice.choice(recent[-20:])
        sending = dice.choices(
            [fresh, again, Sending(again.event_id, 99, name), Sending(fresh.event_id, None)],
            [6, 2, 1, 1],
        )[0]
        recent.append(sending)
        journal.send(dice.choice(town.receivers), sending)
        over.wait(0.005)


def test_processes_that_are_killed_one_by_one_lose_and_double_nothing(postgres_url: str) -> None:
    dice = random.Random(SEED)  # noqa: S311 - the same each time
    journal, over = Journal(), threading.Event()
    with ExitStack() as graves, ThreadPoolExecutor(4) as pool:
        town = Town(postgres_url, graves)
        senders = [pool.submit(mixed_load, town, journal, over, name) for name in "abcd"]
        try:
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                time.sleep(dice.uniform(0.02, 0.3))
                town.kill_one(dice)
        finally:
            over.set()
        for sender in senders:
            sender.result()
        while journal.open:
            for sending in journal.open:
                journal.send(town.receivers[0], sending)
        town.receivers[0].wait_until_at_rest()
        check_at_rest(town.receivers[0].direct, journal)
    assert town.kills > 15
    assert journal.ids("ok").total() > 200
    assert journal.ids("unknown").total() > 0
