"""The fields of log records: one table of their names, types and meanings.

Pass them as ``extra=LogFields(…)``. No name is one of the logging module's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypedDict, get_type_hints


class LogFields(TypedDict, total=False):
    """The fields that a log record may have. Each is present where it is known."""

    event_id: Annotated[str, "the sender's id of the event"]
    source: Annotated[str, "the source"]
    type: Annotated[str, "the type of the event"]
    job: Annotated[int, "the id of the job"]
    handler: Annotated[str, "the name of the handler"]
    attempt: Annotated[int, "the number of the attempt, from 1"]
    max_attempts: Annotated[int, "the attempts that the job may take"]
    retry_in_seconds: Annotated[float, "the time until the next try"]
    failure_type: Annotated[str, "why the job failed for good or was ignored"]
    error: Annotated[str, "the error, redacted"]
    location: Annotated[str, "the innermost line of your code: file, line and function"]
    traceback: Annotated[str, "one frame a line, in calling order, without values"]
    worker: Annotated[str, "the worker: host and process id"]
    task: Annotated[str, "the background task"]
    count: Annotated[
        int,
        "how many events, jobs, leases, calls, handlers, requests or connections the line is about",
    ]
    suppressed: Annotated[int, "lines of the same kind that were left out before this one"]
    seconds: Annotated[float, "how long it took"]
    method: Annotated[str, "the method of the request"]
    path: Annotated[str, "the path of the request, without its query"]
    status: Annotated[int, "the status of the response"]
    milliseconds: Annotated[float, "the time from the request to its response"]
    bytes: Annotated[int, "the size of the response's body"]
    client: Annotated[str, "the address of the client; in the access log, of the peer"]
    outcome: Annotated[str, "recorded, duplicate or conflict; or the code of the error"]


FIELDS: Final[Mapping[str, str]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(LogFields, include_extras=True).items()
}
"""The meaning of each field, by name."""


def seconds_text(seconds: float) -> str:
    """Return a duration for a message: at most one decimal."""
    return f"{seconds:.1f}".removesuffix(".0")
