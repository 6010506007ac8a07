"""The interface of all contenders: their roles and their configuration."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, Protocol, Self

CONFIG_VARIABLE = "BENCH_CONFIG"
"""Environment variable with a config as JSON, for a contender whose app is loaded by name."""

TransactionMode = Literal["own", "shared"]
"""How Onceward's handler commits: in a transaction of its own, or together with other jobs."""

OWN: Final = "own"
SHARED: Final = "shared"

SHORT_LEASE_SECONDS: Final = 10.0
"""The short time-out for the jobs of a dead worker, for contenders that have a setting."""


@dataclass(frozen=True)
class ContenderConfig:
    """The database, the ports and the settings of one contender."""

    database: str
    port: int = 0
    redis_port: int = 0
    workload: str = "insert"
    shape: str = "own"
    """The shape of the handler that inserts, from `bench.shapes`."""
    concurrency: int = 8
    transaction: TransactionMode = OWN
    batch_size: int = 1
    has_worker: bool = False
    """Whether the serving process also runs the handlers."""
    has_notifications: bool = False
    """Whether a new event wakes idle workers: needed for latency, not for throughput."""
    lease_seconds: float | None = None
    """After how long the jobs of a dead worker go to another; None for the default."""
    worker: str = "worker"
    """The name of the worker process, for a contender that has one."""
    job_seconds: float = 0.0
    """How long the handler waits before its statement."""
    started_file: str = ""
    """A file to which the handler appends a byte when it starts."""
    neighbour: str = ""
    """The handler beside the measured one, from `bench.neighbours`; none if empty."""
    retention: Mapping[str, int] = field(default_factory=dict)
    """Onceward's settings of retention, in days, by their names."""

    def to_json(self) -> str:
        """Return the config as one command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a config from its command-line argument."""
        return cls(**json.loads(text))

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with some values replaced."""
        return replace(self, **changes)


class ContenderProgram(Protocol):
    """A system that receives webhooks and runs a handler for each event.

    The handler runs the statement in `bench.workloads`, the same for all. A contender leaves out
    the roles it does not have: the empty endpoint has no jobs, and Onceward's queue is filled
    through its receiver.
    """

    def __init__(self, config: ContenderConfig) -> None:
        """Keep the config; open nothing yet."""

    def create_tables(self) -> None:
        """Create the contender's tables and the handler's in an empty database."""

    def serve(self) -> None:
        """Receive on the port until killed; a 2xx means that the event is stored."""

    def work(self) -> None:
        """Run the handler for queued events until killed."""

    def enqueue(self, count: int) -> None:
        """Queue events by the fastest method the contender offers."""

    def maintain(self) -> None:
        """Purge what is old. Onceward alone has this role."""

    def received_ids(self) -> set[str]:
        """Return the ids of all stored events."""
