"""How each known sender signs, and where it puts the id and the type. One entry a sender."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.errors import ConfigurationError
from onceward.verify import HmacScheme, Pairs, Part, Plain, Scheme

BY_HAND: Final = "hmac"
"""The preset whose signature header and prefix are the user's to set."""


@dataclass(frozen=True, slots=True)
class Preset:
    """What is known about a sender before anything is configured."""

    name: str
    scheme: Scheme
    id: str
    type: tuple[str, ...]
    reference: str | None = None
    keep_headers: tuple[str, ...] = ()
    """Headers worth keeping with the payload, beyond content-type and user-agent."""


_ENTRIES: Final = (
    Preset(
        name="stripe",
        scheme=HmacScheme(
            header="Stripe-Signature",
            layout=Pairs(signature=b"v1", timestamp=b"t"),
            signed=(Part.TIMESTAMP, b".", Part.BODY),
            tolerance_seconds=300,
        ),
        id="json:id",
        type=("json:type",),
        reference="json:data.object.id",
    ),
    Preset(
        name="github",
        scheme=HmacScheme(header="X-Hub-Signature-256", layout=Plain(b"sha256=")),
        id="header:X-GitHub-Delivery",
        type=("header:X-GitHub-Event", "json:action"),
        reference="json:repository.full_name",
        keep_headers=(
            "X-GitHub-Delivery",
            "X-GitHub-Event",
            "X-GitHub-Hook-ID",
            "X-GitHub-Hook-Installation-Target-ID",
            "X-GitHub-Hook-Installation-Target-Type",
        ),
    ),
    Preset(
        name=BY_HAND,
        scheme=HmacScheme(header="X-Signature"),
        id="header:X-Event-Id",
        type=("json:type",),
    ),
)

PRESETS: Final = {entry.name: entry for entry in _ENTRIES}


def preset(name: str) -> Preset:
    """The preset of that name. Raises ConfigurationError with the known names."""
    try:
        return PRESETS[name]
    except KeyError:
        known = ", ".join(sorted(PRESETS))
        raise ConfigurationError(f"no preset {name!r}; there are: {known}") from None
