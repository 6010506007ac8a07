"""Sign a request as its sender would: to try a source out, and in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onceward.runtime.clock import SystemClock
from onceward.sources.outgoing import Draft
from onceward.sources.presets import Preset
from onceward.sources.schemes import Scheme
from onceward.sources.source import preset_of, scheme_of


@dataclass(frozen=True, slots=True)
class Signed:
    """A request as its sender would send it."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def sign_request(
    preset: str | Preset,
    *,
    secret: str | bytes,
    headers: Mapping[str, str] | None = None,
    body: bytes,
    url: str = "",
    method: str = "POST",
    now: float | None = None,
    scheme: str | Scheme | None = None,
) -> Signed:
    """Make a request that `onceward.verify` takes for genuine.

    The secret is the one that both sides have, or the sender's private key. Some senders put their
    proof into the body or the URL: send what comes back. Raises ConfigurationError.
    """
    draft = Draft(headers or {}, body, url=url, method=method)
    chosen = scheme_of(preset_of("", preset), scheme)
    chosen.sign(secret, draft, SystemClock().now() if now is None else now)
    return Signed(draft.method, draft.url, draft.headers, draft.body)
