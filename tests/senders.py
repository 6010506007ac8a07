"""Senders that keep at it, as real ones do: what is not accepted is sent again."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from support.processes import Serve, eventually
from tests.client_history import History, Payment, check_ledger


@contextmanager
def load(service: Serve, history: History, name: str = "load") -> Iterator[None]:
    """Senders that send new events, each until it is accepted, for as long as the block runs."""
    over = threading.Event()

    def send(account: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            payment = Payment(f"{name}-{account}-{number}", 1, account)
            while not history.send(service, payment).is_accepted and not over.wait(0.05):
                pass

    with ThreadPoolExecutor(4) as pool:
        senders = [pool.submit(send, account) for account in "abcd"]
        try:
            yield
        finally:
            over.set()
        for sender in senders:
            sender.result()


def finish(service: Serve, history: History) -> None:
    """Retry what has not been accepted, wait for rest, and check it all."""

    def retry() -> bool:
        for payment in history.unaccepted:
            history.send(service, payment)
        return not history.unaccepted

    eventually(retry, "everything is accepted")
    service.wait_until_idle()
    check_ledger(service.raw_db, history)


def accepted(history: History, at_least: int) -> Callable[[], bool]:
    """Whether so many requests were answered with 2xx, to be asked again and again."""
    return lambda: history.accepted >= at_least
