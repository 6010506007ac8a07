"""Log lines about jobs that were alone in a worker when it died.

Nothing else would tell: the process that could have reported the error is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from onceward.model.jobs import WORKER_DIED, FailureType
from onceward.ports import Row
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable

_log = logging.getLogger("onceward.work")


def log_blamed(rows: Iterable[Row]) -> None:
    """Log each job that `reclaim` charged with an attempt, or failed."""
    for row in rows:
        fields = LogFields(
            event_id=printable(row["event_id"]),
            source=row["source"],
            job=row["id"],
            handler=row["handler"],
            attempt=row["attempts"],
            max_attempts=row["max_attempts"],
            error=WORKER_DIED,
        )
        name = f"job {row['id']} of handler {row['handler']!r}"
        if row["status"] == "failed":
            fields["failure_type"] = FailureType.EXHAUSTED
            message = "%s failed for good after %d attempts (exhausted): %s; %s"
            advice = "requeue it when the cause is fixed"
            _log.error(message, name, row["attempts"], WORKER_DIED, advice, extra=fields)
        else:
            message = "%s failed, attempt %d of %d: %s"
            attempts = row["attempts"], row["max_attempts"]
            _log.warning(message, name, *attempts, WORKER_DIED, extra=fields)
