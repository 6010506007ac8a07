"""Handlers of inline sources: which of them need no worker, and which options they cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onceward.sources.source import Source
from onceward.work.handlers import Handler


def inline_handlers(handlers: Iterable[Handler], sources: Iterable[Source]) -> list[str]:
    """Return the handlers that get events of inline sources alone: they need no worker."""
    inline = {source.name for source in sources if source.is_inline}
    return [
        handler.name
        for handler in handlers
        if all(route.source in inline for route in handler.routes)
    ]


def inline_faults(handlers: Iterable[Handler], sources: Iterable[Source]) -> list[str]:
    """List the handlers whose options cannot hold within the request of an inline source."""
    inline = [source.name for source in sources if source.is_inline]
    return [
        f"{handler.label}: {option} cannot hold for source {source!r}, whose mode is 'inline': "
        f"{reason}. Remove {option}, or {_advice(handler, source)}"
        for handler in handlers
        for source in inline
        if any(route.source in (None, source) for route in handler.routes)
        for option, reason in _options(handler)
    ]


def _options(handler: Handler) -> Iterator[tuple[str, str]]:
    """Yield the options of a handler that need a worker, each with the reason."""
    rules = handler.rules
    if rules.ordering_key is not None:
        yield "ordering_key", "a request cannot wait for the earlier jobs of a key"
    if rules.concurrency is not None:
        yield "concurrency", "only workers count the jobs that run in all processes"
    if rules.rate_interval_seconds is not None:
        yield "rate", "only workers spread the jobs over time"
    if handler.version_rule is not None:
        yield "version", "only workers keep the versions that a key has applied"
    if handler.shares_transaction:
        yield "transaction='shared'", "each request has a transaction of its own"


def _advice(handler: Handler, source: str) -> str:
    if any(route.source is None for route in handler.routes):
        return "pass source= with another source"
    return f"set mode='background' on the source {source!r}"
