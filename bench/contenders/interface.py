"""What every contender does, whoever wrote it, and where it is told to do it."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Protocol, Self

PLACE_VARIABLE = "BENCH_PLACE"
"""The environment variable that carries a place, for a program that loads its app by name."""

TransactionMode = Literal["own", "shared"]
"""How Onceward's handler commits: in a transaction of its own, or together with other jobs."""

OWN: Final = "own"
SHARED: Final = "shared"


@dataclass(frozen=True)
class Place:
    """Where a contender runs, and how."""

    database: str
    port: int = 0
    redis_port: int = 0
    workload: str = "insert"
    concurrency: int = 8
    transaction: TransactionMode = OWN
    batch_size: int = 1
    is_working: bool = False
    is_announcing: bool = False
    lease_seconds: float | None = None

    def to_json(self) -> str:
        """As one argument of a command line."""
        return json.dumps(asdict(self))

    def having(self, **changes: Any) -> Self:
        """The same place, with some things otherwise."""
        return replace(self, **changes)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Back from that argument."""
        return cls(**json.loads(text))


class Contender(Protocol):
    """A way to take webhooks in and to work them off.

    The handler is the same for all: `bench.effects` has its statement. One leaves out what it does
    not have: the empty endpoint has no jobs, and Onceward's queue is filled through its receiver.
    """

    def __init__(self, place: Place) -> None:
        """Told where; nothing is opened yet."""

    def prepare(self) -> None:
        """Make its tables in an empty database."""

    def serve(self) -> None:
        """Receive on the port until killed; a 2xx says that the event is kept."""

    def work(self) -> None:
        """Run the handler for whatever is queued, until killed."""

    def fill(self, count: int) -> None:
        """Queue jobs, by the fastest way it has."""

    def received(self) -> set[str]:
        """The ids of the events that it holds."""
