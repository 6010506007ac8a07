"""Senders that retry until a request is accepted, as providers do."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from support.processes import Serve, eventually
from tests.payment_history import History, Payment, check_ledger


@contextmanager
def load(service: Serve, history: History, name: str = "load") -> Iterator[None]:
    """Send new events from four threads while the block runs, each until it is accepted."""
    stopped = threading.Event()

    def send(account: str) -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            payment = Payment(f"{name}-{account}-{number}", 1, account)
            while not history.send(service, payment).is_accepted and not stopped.wait(0.05):
                pass

    with ThreadPoolExecutor(4) as pool:
        senders = [pool.submit(send, account) for account in "abcd"]
        try:
            yield
        finally:
            stopped.set()
        for sender in senders:
            sender.result()


def finish(service: Serve, history: History) -> None:
    """Retry until every event is accepted, wait until the service is idle, check the ledger."""

    def retry() -> bool:
        for payment in history.unaccepted:
            history.send(service, payment)
        return not history.unaccepted

    eventually(retry, "every event is accepted")
    service.wait_until_idle()
    check_ledger(service.raw_db, history)


def accepted(history: History, at_least: int) -> Callable[[], bool]:
    """Return a condition: at least so many requests were accepted."""
    return lambda: history.accepted >= at_least
