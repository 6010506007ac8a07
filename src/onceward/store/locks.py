"""The locks under which transactions of all processes exclude each other.

PostgreSQL takes them as advisory locks. SQLite needs none: its only writer excludes everything.
"""

from enum import IntEnum
from typing import Final

PRESENCE_NAMESPACE: Final = 7136232
"""The first key of the locks that workers hold while they live. The second is their number."""

INLINE_NAMESPACE: Final = 7136233
"""The first key of the locks on events whose handlers run within a request. The second comes
from the event's key."""


class Lock(IntEnum):
    """One lock for each purpose. A transaction takes it first and holds it until it ends.

    Recording takes none: the unique key of an event and the order of the rows are enough.
    """

    CLAIMS = 1
    """Reclaim and claim: two claims that do not see each other's leases would share jobs.

    Cancel a job, resume a source and look for jobs to wake, too: all of them wake jobs, which only
    claims park. These three also take the lock of migrations, shared. Every worker waits meanwhile,
    so they must be short.
    """

    MIGRATIONS = 2
    """Migrate: each migration is applied once.

    The purposes below also take this lock, shared. A migration locks whole tables, and would
    deadlock with a transaction that has already written to one of them. Claims do not: they are
    one message each, and run all the time.
    """

    PARTITIONS = 3
    """Create partitions: the second process to create one would fail."""

    SETUP = 4
    """Run `at_start` functions: CREATE TABLE IF NOT EXISTS fails when two processes race."""

    REGISTRY = 5
    """Register sources, handlers and routes, and store tokens and secrets.

    Processes register the same rows in different orders and would deadlock. Two processes that
    start at once must agree on the first admin token.
    """

    REJECTIONS = 6
    """Store and trim rejections: receivers count the same causes in different orders."""

    LEDGER = 7
    """Requeue, pause, resume a handler, forget a watermark, receive a rejection, accept a conflict,
    purge, drop.

    Operator actions are recorded one after the other. A purge deletes the finished jobs of an old
    event; without the lock it could delete one that an operator has just requeued.
    """

    MAINTENANCE = 8
    """Do the maintenance: a session holds it, so that one process does the work of all."""
