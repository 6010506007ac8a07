"""Senders that retry until a request is accepted, as providers do."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from support.processes import Serve, eventually
from tests.checker import Journal, Sending, check_at_rest


@contextmanager
def load(service: Serve, journal: Journal, name: str = "load") -> Iterator[None]:
    """Send new events from four threads while the block runs, each until it is accepted."""
    stopped = threading.Event()

    def send(account: str) -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            sending = Sending(f"{name}-{account}-{number}", 1, account)
            while journal.send(service, sending) != "ok" and not stopped.wait(0.05):
                pass

    with ThreadPoolExecutor(4) as pool:
        senders = [pool.submit(send, account) for account in "abcd"]
        try:
            yield
        finally:
            stopped.set()
        for sender in senders:
            sender.result()


def finish(service: Serve, journal: Journal) -> None:
    """Retry until every event is accepted, wait until the service is idle, and check the ledger."""

    def retry() -> bool:
        for sending in journal.open:
            journal.send(service, sending)
        return not journal.open

    eventually(retry, "every event is accepted")
    service.wait_until_at_rest()
    check_at_rest(service.raw_db, journal)


def accepted(journal: Journal, at_least: int) -> Callable[[], bool]:
    """Return a condition: at least so many requests were accepted."""
    return lambda: journal.ids("ok").total() >= at_least
