"""Handlers of inline sources: which of them need no worker, and which options they cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from onceward.sources.source import Source
from onceward.work.definition.handlers import Handler
from onceward.work.running.abandoned_calls import PauseMode

_FIXES: Final = {"on_batch": "Write @inbox.on"}


def inline_handlers(handlers: Iterable[Handler], sources: Iterable[Source]) -> list[str]:
    """Return the handlers that get events of inline sources alone: they need no worker."""
    inline = {source.name for source in sources if source.is_inline}
    return [
        handler.name
        for handler in handlers
        if all(route.source in inline for route in handler.routes)
    ]


def handlers_of_inline(handlers: Iterable[Handler], sources: Iterable[Source]) -> list[str]:
    """Return the handlers that get events of an inline source, and maybe others too."""
    inline = [source.name for source in sources if source.is_inline]
    return [handler.name for handler in handlers if _gets_events(handler, inline)]


def pause_modes(handlers: Iterable[Handler], sources: Iterable[Source]) -> dict[str, PauseMode]:
    """Return what a pause means for each handler that gets events of inline sources."""
    handlers, sources = list(handlers), list(sources)
    alone = inline_handlers(handlers, sources)
    return {
        name: PauseMode.INLINE if name in alone else PauseMode.BOTH
        for name in handlers_of_inline(handlers, sources)
    }


def inline_warnings(
    handlers: Iterable[Handler], sources: Iterable[Source], limit_seconds: float
) -> list[str]:
    """List the handlers whose own timeout is above the limit of an inline request."""
    inline = [source.name for source in sources if source.is_inline]
    return [
        f"{handler.label}: timeout_seconds is {handler.timeout_seconds:g}, but within a request "
        f"the handler ends after at most {limit_seconds:g} s (inline_timeout_seconds); shorten "
        "it, or raise the setting"
        for handler in handlers
        if _gets_events(handler, inline) and (handler.timeout_seconds or 0) > limit_seconds
    ]


def _gets_events(handler: Handler, sources: Iterable[str]) -> bool:
    return any(route.source in (None, source) for route in handler.routes for source in sources)


def inline_faults(handlers: Iterable[Handler], sources: Iterable[Source]) -> list[str]:
    """List the handlers whose options cannot hold within the request of an inline source."""
    inline = [source.name for source in sources if source.is_inline]
    return [
        f"{handler.label}: {option} cannot hold for source {source!r}, whose mode is 'inline': "
        f"{reason}. {_FIXES.get(option, f'Remove {option}')}, or {_advice(handler, source)}"
        for handler in handlers
        for source in inline
        if _gets_events(handler, [source])
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
    if handler.max_events is not None:
        yield "on_batch", "each request has a transaction of its own"
    if handler.giving_up is not None:
        yield "on_failed", "a failure within a request is not final: the next delivery runs again"
    if handler.forwards_to is not None:
        yield (
            "inbox.forward",
            "the sender may give up and send the event again before the outcome is known",
        )


def _advice(handler: Handler, source: str) -> str:
    if any(route.source is None for route in handler.routes):
        return "pass source= with another source"
    return f"set mode='background' on the source {source!r}"
