"""One run: its options, its databases, and what all measures share."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TypeVar

from bench.contenders.interface import Place
from bench.database import Databases
from bench.deliveries import Deliveries, prepare, random_ids
from bench.field import Entry, chosen
from bench.generator import Order, Report
from bench.process import Failed, HandlerCall, do, free_port, send
from bench.redis_server import RedisServer
from bench.results import Sample

# More than the empty endpoint reaches, so that nobody runs out of requests.
PREPARED_A_SECOND = 40_000
WARM_UP_SECONDS = 0.7

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    rounds: int = 3
    seconds: float = 4.0
    store: str = "postgres"
    only: Sequence[str] = ()
    connections: int = 64
    jobs: int | None = None
    cap_seconds: float = 10.0
    growth_events: Sequence[int] = (1_000_000, 5_000_000)
    backlog_events: int = 1_000_000


@dataclass(frozen=True)
class Step:
    """A part of a measure that is done at one go, and about how long it takes."""

    label: str
    seconds: float
    run: Callable[[], list[Sample]]


@dataclass
class Run:
    """What the measures of a run share."""

    options: Options
    databases: Databases
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="onceward-bench-")))
    redis_servers: dict[int, RedisServer] = field(default_factory=dict)
    _copying: Lock = field(default_factory=Lock)
    _empty: dict[str, str] = field(default_factory=dict)
    _filled: dict[tuple[str, int], str] = field(default_factory=dict)

    def entries(self, measure: str) -> list[Entry]:
        """The contenders of a measure that can run here."""
        found = chosen(measure, self.options.store, self.options.only)
        return [entry for entry in found if entry.why_not() is None]

    # Requests: prepared once, sent to all.

    @cached_property
    def unique(self) -> Deliveries:
        """As many as the fastest can take."""
        count = int(PREPARED_A_SECOND * self.options.seconds)
        return prepare(self.folder / "unique", random_ids(count, seed=1))

    @cached_property
    def half(self) -> Deliveries:
        """Each of them is sent twice."""
        count = int(PREPARED_A_SECOND * self.options.seconds / 2)
        return prepare(self.folder / "half", random_ids(count, seed=2))

    @cached_property
    def storm(self) -> Deliveries:
        """One event."""
        return prepare(self.folder / "storm", random_ids(1, seed=3))

    @cached_property
    def burst(self) -> Deliveries:
        """As many as can be taken in a moment."""
        return prepare(self.folder / "burst", random_ids(30_000, seed=6))

    @cached_property
    def warm_up(self) -> Deliveries:
        """What goes before, and is not counted."""
        return prepare(self.folder / "warm_up", random_ids(15_000, seed=4))

    def order(self, place: Place, deliveries: Deliveries, **more: object) -> Order:
        """An order to send some requests to a place."""
        given = {"connections": self.options.connections, "seconds": self.options.seconds} | more
        return Order(
            port=place.port,
            file=str(deliveries.file),
            request_bytes=deliveries.request_bytes,
            **given,  # type: ignore[arg-type] # the order checks its own
        )

    # Databases: prepared once, copied for each measure.

    def template(self, entry: Entry) -> str:
        """A database with the contender's tables, and nothing in them."""
        if entry.module not in self._empty:
            database = self.databases.create()
            do(entry.module, "prepare", Place(database))
            self.databases.settle(database)
            self._empty[entry.module] = database
        return self._empty[entry.module]

    @contextmanager
    def place(self, entry: Entry, template: str | None = None, **more: object) -> Iterator[Place]:
        """A fresh copy of a database, and a port, for one measure."""
        with self._copying:
            database = self.databases.copy(template or self.template(entry))
        with ExitStack() as after:
            after.callback(self.databases.drop, database)
            self.databases.settle(database)
            yield Place(
                database,
                port=free_port(),
                redis_port=after.enter_context(self._redis(entry)) if entry.uses_redis else 0,
                concurrency=entry.concurrency,
                transaction=entry.transaction,
                batch_size=entry.batch_size,
                is_working=entry.is_working,
                **more,  # type: ignore[arg-type] # the place checks its own
            )

    @contextmanager
    def _redis(self, entry: Entry) -> Iterator[int]:
        with RedisServer(free_port(), is_durable=entry.is_redis_durable) as server:
            self.redis_servers[server.port] = server
            yield server.port

    @contextmanager
    def serving(self, entry: Entry, place: Place) -> Iterator[HandlerCall]:
        """The contender's receiver, warm."""
        with HandlerCall(entry.module, "serve", place) as server:
            server.wait_until_serving()
            must_be_good(send(self.order(place, self.warm_up, seconds=WARM_UP_SECONDS)), server)
            yield server

    def jobs(self, entry: Entry) -> int:
        """How many jobs a contender is given to work off."""
        return min(entry.jobs, self.options.jobs or entry.jobs)

    def filled(self, entry: Entry, count: int) -> str:
        """A database with queued jobs in it."""
        if entry.uses_redis:
            return self.template(entry)  # its queue is filled when its Redis has started
        if (entry.module, count) not in self._filled:
            database = self.databases.copy(self.template(entry))
            self.fill(entry, Place(database, port=free_port()), count)
            self.databases.settle(database)
            self._filled[entry.module, count] = database
        return self._filled[entry.module, count]

    def fill(self, entry: Entry, place: Place, count: int) -> None:
        """Queue jobs for a contender."""
        if entry.module != "ours":
            do(entry.module, "fill", place, str(count))
            return
        deliveries = prepare(self.folder / "jobs", random_ids(count, seed=5))
        with HandlerCall(entry.module, "serve", place) as server:
            server.wait_until_serving()
            must_be_good(send(self.order(place, deliveries, seconds=600.0)), server)


def in_turn(contenders: Sequence[T], turns: int) -> Iterator[tuple[int, T]]:
    """Each in each turn, with the turn's number; who is first in one is last in the next."""
    for turn in range(turns):
        for contender in contenders if turn % 2 == 0 else reversed(contenders):
            yield turn, contender


def must_be_good(found: Report, server: HandlerCall) -> Report:
    """A report of which every answer was 2xx. Raises Failed."""
    if found.refused or found.is_cut_off:
        raise Failed(f"not every request was accepted: {found.statuses}\n{server.log}")
    return found
