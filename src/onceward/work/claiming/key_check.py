"""The check of jobs without an ordering key, although their handler names one."""

from __future__ import annotations

import logging

from onceward.model.jobs import Job
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable
from onceward.work.definition.handlers import Handler
from onceward.work.definition.ordering_keys import require_key

_log = logging.getLogger("onceward.work")


class KeyCheck:
    """Checks the jobs of one handler before they run."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._is_settled = False
        """Whether a job had a key, so that the path is right, or a warning was logged."""

    def check(self, job: Job, body: bytes) -> None:
        """Raise PermanentError if the value at the path of the key can be no key.

        Warn once if nothing is there, unless an earlier job had a key: the path may be misspelled.
        """
        path = self._handler.rules.ordering_key
        if path is None:
            return
        if job.ordering_key is not None or require_key(job.source, job.headers, body, path):
            self._is_settled |= job.ordering_key is not None
        elif not self._is_settled:
            self._is_settled = True
            message = (
                "%s: an event of type %r has nothing at ordering_key %r, so its job has no key and "
                "waits for no other; compare the path with the payload"
            )
            fields = LogFields(handler=job.handler, source=job.source, job=job.id)
            label, type_ = self._handler.label, printable(job.type)
            _log.warning(message, label, type_, path, extra=fields)
