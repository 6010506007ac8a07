"""Forwards: handlers that post their events to another app, each as an outside effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, Required, Unpack

from onceward.errors import ConfigurationError, EffectNotApplied, PermanentError, RetryLater
from onceward.model.effects import RESERVED_PREFIX
from onceward.model.events import Event
from onceward.model.retry import MAX_DELAY_SECONDS
from onceward.runtime.clock import Clock, SystemClock
from onceward.runtime.code_location import place_at
from onceward.runtime.log_fields import seconds_text
from onceward.work.definition.handlers import (
    Handler,
    HandlerOptions,
    make_handler,
    option_name_faults,
)
from onceward.work.forwarding.addresses import needs_encryption, special_kind
from onceward.work.forwarding.client import HttpClient, Post, Response
from onceward.work.forwarding.message import envelope, message_id, secret_faults, signed_headers
from onceward.work.forwarding.target import EXAMPLE, Target, parse_target
from onceward.work.outside.declaration import OutsideEffect, make_effect
from onceward.work.running.effects import Effects

DEFAULT_TIMEOUT_SECONDS: Final = 15.0
DEFAULT_RETRY_SAFE_FOR: Final = "3d"
MAX_TIMEOUT_SECONDS: Final = 600.0
_STORE_SECONDS: Final = 20.0
"""How much longer than the call its handler may take, to commit the intent and the outcome."""
_WAITS: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""Statuses whose Retry-After is honoured."""
_SECRET_STATUSES: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses for a signature that is not accepted."""
_DATE_CHARACTERS: Final = 40
_MISSING: Final = {
    "to": f"to is missing; pass the URL of the app by its name, to={EXAMPLE!r}",
    "secret": "secret is missing; pass a text that begins with whsec_, by its name",
}
_REFUSED_OPTIONS: Final = {
    name: f"{name} is not for forwards: {reason}; remove it"
    for name, reason in (
        ("model", "the payload is forwarded as it was received"),
        ("transaction", "an outside call has no transaction to share"),
    )
}


class ForwardOptions(HandlerOptions, total=False):
    """The options of a forward. `Inbox.forward` documents them."""

    to: Required[str]
    secret: Required[str | Sequence[str]]
    retry_safe_for: str | None
    allow_private: bool


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """Posts events to a target."""

    name: str
    target: Target
    secrets: Sequence[str] = field(repr=False)
    timeout_seconds: float
    allow_private: bool
    post: Post = field(repr=False)
    clock: Clock = field(repr=False)

    async def send(self, event: Event[Any], *, message: str) -> dict[str, int]:
        """Post an event once under the id of its message. Return the status of the response.

        Raise an error that means "not applied" for a status other than 2xx: EffectNotApplied,
        RetryLater if the target asks for it, or PermanentError if it is gone.
        """
        body = envelope(event)
        headers = signed_headers(self.secrets, message, body, self.clock.now())
        response = await self.post(
            self.target,
            headers.items(),
            body,
            allow_private=self.allow_private,
            seconds=self.timeout_seconds,
        )
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return {"status": response.status}
        raise self._refusal(response)

    def _refusal(self, response: Response) -> EffectNotApplied | RetryLater | PermanentError:
        status = response.status
        text = f"{self.target.host} responded {status}"
        if status == HTTPStatus.GONE:
            return PermanentError(f"{text}: it wants no more events; remove the forward")
        if status < HTTPStatus.BAD_REQUEST:
            return EffectNotApplied(f"{text}; redirects are not followed: correct to=")
        if status in _WAITS and response.retry_after is not None:
            seconds = _retry_after_seconds(response.retry_after, self.clock.now())
            if seconds > 0:
                return RetryLater(seconds, f"{text} and asked to wait {seconds_text(seconds)} s")
        if status in _SECRET_STATUSES:
            return EffectNotApplied(f"{text}; compare its secret with that of the forward")
        return EffectNotApplied(text)


def _retry_after_seconds(text: str, now: float) -> float:
    """Return the delay of a header Retry-After, a number or a date; 0 if it is neither."""
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_DELAY_SECONDS)
    try:
        date = parsedate_to_datetime(text[:_DATE_CHARACTERS])
    except (TypeError, ValueError, OverflowError):
        return 0.0
    seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return min(seconds, MAX_DELAY_SECONDS)


def make_forward(
    patterns: Sequence[str],
    *,
    line: str,
    post: Post | None = None,
    clock: Clock | None = None,
    **options: Unpack[ForwardOptions],
) -> tuple[Handler, OutsideEffect]:
    """Check and build the handler of a forward, and the effect that it calls.

    `line` is the line of the code that forwards. Raise ConfigurationError with every fault.
    """
    faults = list(_option_faults(options))
    given: Mapping[str, object] = options  # what is missing has its fault
    secret = given.get("secret")
    faults += secret_faults(secret) if "secret" in given else ()
    target = parse_target(given["to"]) if "to" in given else []
    if isinstance(target, Target):
        faults += _reach_faults(target, allow_private=options.get("allow_private", False))
    else:
        faults += target
    name = options.get("name")
    if faults or not isinstance(target, Target):
        label = "inbox.forward" if name is None else f"forward {name!r}"
        raise ConfigurationError([f"{label} ({line}): {fault}" for fault in faults])
    name = f"forward-{target.authority}" if name is None else name
    forward = Forward(
        name=name,
        target=target,
        secrets=(secret,) if isinstance(secret, str) else tuple(secret),  # type: ignore[arg-type] # checked above
        timeout_seconds=options.get("timeout_seconds") or DEFAULT_TIMEOUT_SECONDS,
        allow_private=options.get("allow_private", False),
        post=post or HttpClient().post,
        clock=clock or SystemClock(),
    )
    return _handler_and_effect(forward, patterns, line, options)


def _handler_and_effect(
    forward: Forward, patterns: Sequence[str], line: str, options: ForwardOptions
) -> tuple[Handler, OutsideEffect]:
    async def send(event: Event[Any], *, idempotency_key: str) -> dict[str, int]:
        message = idempotency_key.removeprefix(RESERVED_PREFIX)
        return await forward.send(event, message=message)

    async def deliver(event: Event[Any], effects: Effects) -> None:
        await effects.call(f"{RESERVED_PREFIX}{message_id(forward.name, event)}", send, event)

    for function in (send, deliver):
        place_at(function, line)
    handler_options: Any = {
        name: value for name, value in options.items() if name in HandlerOptions.__optional_keys__
    }
    handler = make_handler(
        deliver,
        patterns,
        **{
            **handler_options,
            "name": forward.name,
            "timeout_seconds": forward.timeout_seconds + _STORE_SECONDS,
        },
    )
    effect = make_effect(
        send,
        name=forward.name,
        timeout_seconds=forward.timeout_seconds,
        retry_safe_for=options.get("retry_safe_for", DEFAULT_RETRY_SAFE_FOR),
        not_applied=(RetryLater, PermanentError),
    )
    return replace(handler, forwards_to=forward.target.text), replace(effect, is_built_in=True)


def _option_faults(options: ForwardOptions) -> Iterator[str]:
    names = ForwardOptions.__annotations__.keys() | ForwardOptions.__optional_keys__
    yield from option_name_faults(options, names - _REFUSED_OPTIONS.keys(), _REFUSED_OPTIONS)
    yield from (fault for name, fault in _MISSING.items() if name not in options)
    timeout: object = options.get("timeout_seconds")
    if timeout is not None and not _is_timeout(timeout):
        limit = f"{MAX_TIMEOUT_SECONDS:g}"
        yield f"timeout_seconds is {timeout!r}; use a number of seconds above 0, up to {limit}"
    allow_private: object = options.get("allow_private", False)
    if not isinstance(allow_private, bool):
        yield f"allow_private is {allow_private!r}; use True or False"


def _is_timeout(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= MAX_TIMEOUT_SECONDS


def _reach_faults(target: Target, *, allow_private: object) -> Iterator[str]:
    """Yield why a target can never be sent to. Names are looked up with each call."""
    kind = "loopback" if target.is_local_name else None
    if target.address is not None:
        kind = special_kind(target.address)
    if kind is not None and not allow_private:
        yield (
            f"to has the host {target.host}, which is not public ({kind}); pass "
            "allow_private=True if the app is in your own network"
        )
    elif not target.is_encrypted and not allow_private:
        yield (
            "to begins with http://, which does not encrypt; use https://, or pass "
            "allow_private=True if the app is in your own network"
        )
    elif not target.is_encrypted and target.address is not None and needs_encryption(kind):
        yield (
            f"to has the {kind or 'public'} host {target.host}, and http:// does not encrypt; use "
            "https://"
        )
