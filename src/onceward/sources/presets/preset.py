"""What is known about a sender before anything is configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from onceward.errors import ConfigurationError
from onceward.sources.challenge import Challenge, Reply
from onceward.sources.identify import IdentitySelectors, parse_identity_selectors
from onceward.sources.request import header_key
from onceward.sources.schemes import Scheme
from onceward.sources.selectors import parse_selector
from onceward.sources.unpacking import EventLayout, EventPaths

DEFAULT_SCHEME: Final = "default"
DEFAULT_MANUAL_RESEND_DAYS: Final = 30
"""How long a sender is taken to resend by hand that does not say."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One sender: how it signs, and where it puts what its requests are about.

    An id of several parts is all of them together. `schemes` has more than one where the sender
    does; the first counts unless a source names another. Raises ConfigurationError for what cannot
    be.
    """

    name: str
    title: str
    schemes: Scheme | Mapping[str, Scheme]
    id: str | tuple[str, ...]
    type: str | tuple[str, ...] = ()
    reference: str | None = None
    form_field: str | None = None
    """The field of a form that holds the event, or the events, as JSON."""
    events: str | None = None
    """Where the events are, if a request holds several: all places are then those of one event."""
    challenge: Challenge | None = None
    success_response: int | Reply = 202
    """The status of the answer, or all of it, where the sender insists."""
    keep_headers: tuple[str, ...] = ()
    """Headers worth keeping with the payload, beyond content-type and user-agent."""
    volatile_fields: tuple[str, ...] = ()
    """Members of the body that differ between deliveries of one event: they make no conflict."""
    auto_retry_hours: float | None = None
    """How long the sender tries again by itself; None where it does not say."""
    manual_resend_days: float | None = None
    """How long somebody can have it send an event again; None where it does not say."""
    builtin_handlers: Mapping[str, str] = field(default_factory=dict)
    """Event types that a handler of `onceward.work.builtin` takes without being registered."""
    note: str = ""
    identity_selectors: IdentitySelectors = field(init=False, repr=False, compare=False)
    layout: EventLayout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.named_schemes:
            raise ConfigurationError(f"the preset {self.name!r} has no scheme")
        layout = EventLayout(
            None if self.form_field is None else parse_selector(self.form_field),
            None if self.events is None else EventPaths(self.events),
        )
        object.__setattr__(self, "layout", layout)
        for name in self.keep_headers:
            header_key(name)
        selectors = parse_identity_selectors(
            self.ids, self.types, self.reference, is_batch=self.events is not None
        )
        object.__setattr__(self, "identity_selectors", selectors)

    @property
    def max_resend_days(self) -> float:
        """How long the sender may send an event again, by itself or by hand, at most."""
        manual_days = self.manual_resend_days
        if manual_days is None:
            manual_days = DEFAULT_MANUAL_RESEND_DAYS
        return max((self.auto_retry_hours or 0) / 24, manual_days)

    @property
    def named_schemes(self) -> Mapping[str, Scheme]:
        """The schemes by their names."""
        return self.schemes if isinstance(self.schemes, Mapping) else {DEFAULT_SCHEME: self.schemes}

    @property
    def ids(self) -> tuple[str, ...]:
        """The places that make up the id."""
        return (self.id,) if isinstance(self.id, str) else self.id

    @property
    def types(self) -> tuple[str, ...]:
        """The places that make up the type."""
        return (self.type,) if isinstance(self.type, str) else self.type

    def scheme(self, name: str | None = None) -> Scheme:
        """The scheme of a name, or the first. Raises ConfigurationError with the known names."""
        schemes = self.named_schemes
        if name is None:
            return next(iter(schemes.values()))
        try:
            return schemes[name]
        except KeyError:
            names = ", ".join(schemes)
            message = f"the preset {self.name!r} has no scheme {name!r}; there are: {names}"
            raise ConfigurationError(message) from None
