"""Senders that keep at it, as real ones do: what is not accepted is sent again."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from support.processes import Serve, eventually
from tests.checker import Journal, Sending, check_at_rest


@contextmanager
def load(service: Serve, journal: Journal, name: str = "load") -> Iterator[None]:
    """Senders that send new events, each until it is accepted, for as long as the block runs."""
    over = threading.Event()

    def send(account: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            sending = Sending(f"{name}-{account}-{number}", 1, account)
            while journal.send(service, sending) != "ok" and not over.wait(0.05):
                pass

    with ThreadPoolExecutor(4) as pool:
        senders = [pool.submit(send, account) for account in "abcd"]
        try:
            yield
        finally:
            over.set()
        for sender in senders:
            sender.result()


def finish(service: Serve, journal: Journal) -> None:
    """Retry what has not been accepted, wait for rest, and check it all."""

    def retry() -> bool:
        for sending in journal.open:
            journal.send(service, sending)
        return not journal.open

    eventually(retry, "everything is accepted")
    service.wait_until_at_rest()
    check_at_rest(service.raw_db, journal)


def accepted(journal: Journal, at_least: int) -> Callable[[], bool]:
    """Whether so many requests were answered with 2xx, to be asked again and again."""
    return lambda: journal.ids("ok").total() >= at_least
