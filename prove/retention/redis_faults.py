"""A Redis that is killed, emptied, frozen and set back, and the check of its keys afterwards."""

import asyncio
import random
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from onceward.accelerators.redis.address import parse_address
from onceward.store.postgres.id_hints import LEDGER_IDENTITY
from support.database import RawDatabase
from support.ledger_checker import Findings, Violation
from support.redis import IN_MEMORY, RedisServer
from support.redis_dump import LedgerEvent, dump_keys, unexplained_keys

PAUSE_SECONDS = (1.5, 2.5)
"""The time between two faults: Redis is tried again two seconds after a failure."""
FAULT_SECONDS = (0.1, 0.5)

EVENTS = """
    SELECT e.id, s.name, e.event_id, e.body_sha256
    FROM onceward.events e JOIN onceward.sources s ON s.id = e.source
"""


class FaultyRedis:
    """A server, and a thread that injects one fault after another until the context ends."""

    def __init__(self, seed: int, tally: Counter[str]) -> None:
        self._server = RedisServer(_free_port(), *IN_MEMORY)
        self.url = self._server.url
        self.findings = Findings()
        """What is wrong with the keys that were checked."""
        self._rng = random.Random(f"{seed}/redis")  # noqa: S311 - reproducible
        self._tally = tally
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="faults of Redis", daemon=True)

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._server.__exit__(exc_type, exc, traceback)

    def calm_down(self) -> None:
        """Inject no more faults. Raise the exception that ended the thread, if any."""
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def check_if_up(self, ledger: RawDatabase) -> None:
        """Compare the keys with the events, unless Redis is down or frozen at this moment."""
        with suppress(OSError):
            self.check(ledger, is_calm=False)

    def check(self, ledger: RawDatabase, *, is_calm: bool = True) -> None:
        """Compare the keys of the ledger with its events, which are read after the keys.

        A key that is set after the commit is explained at every moment.
        """
        identity = str(ledger.value(LEDGER_IDENTITY))
        keys = asyncio.run(dump_keys(parse_address(self.url), identity))
        if not is_calm:  # emptied between the list of keys and their values
            keys = {key: value for key, value in keys.items() if value is not None}
        self._tally["keys in Redis checked"] += len(keys)
        events = (
            LedgerEvent(id_, source, event_id, bytes(sha256))
            for id_, source, event_id, sha256 in ledger.rows(EVENTS)
        )
        for detail in unexplained_keys(keys, identity, events):
            self.findings.add(Violation.FALSE_KEY, detail)

    def _run(self) -> None:
        faults: tuple[Callable[[], None], ...] = (
            self._flush,
            self._freeze,
            self._kill,
            self._restore,
        )
        try:
            while not self._ended.is_set():
                for fault in faults:
                    if self._ended.wait(self._rng.uniform(*PAUSE_SECONDS)):
                        return
                    fault()
        except BaseException as error:  # noqa: BLE001 - `calm_down` raises it in the other thread
            self._failure = error

    def _flush(self) -> None:
        self._server.command(b"SAVE")
        shutil.copy(self._server.folder / "dump.rdb", self._server.folder / "old.rdb")
        self._server.command(b"FLUSHALL")
        self._tally["Redis emptied"] += 1

    def _freeze(self) -> None:
        self._server.freeze()
        self._ended.wait(self._rng.uniform(*FAULT_SECONDS))
        self._server.thaw()
        self._tally["Redis frozen"] += 1

    def _kill(self) -> None:
        self._server.kill()
        self._ended.wait(self._rng.uniform(*FAULT_SECONDS))
        self._server.start()
        self._tally["Redis killed"] += 1

    def _restore(self) -> None:
        self._server.kill()
        shutil.copy(self._server.folder / "old.rdb", self._server.folder / "dump.rdb")
        self._server.start()
        self._tally["Redis restored from an old dump"] += 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
