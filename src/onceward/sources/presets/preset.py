"""The description of one provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from onceward.errors import ConfigurationError
from onceward.runtime.suggest import suggest_or_list
from onceward.sources.body_kind import BodyKind
from onceward.sources.challenge import Challenge, Reply
from onceward.sources.identify import IdentitySelectors, parse_identity_selectors
from onceward.sources.request import header_key
from onceward.sources.schemes import Coverage, Scheme
from onceward.sources.selectors import parse_selector
from onceward.sources.unpacking import EventLayout, EventPaths

DEFAULT_SCHEME: Final = "default"
DEFAULT_MANUAL_RESEND_DAYS: Final = 30
"""Assumed when a provider does not document how long it can resend an event on request."""


@dataclass(frozen=True, slots=True)
class Preset:
    """How one provider signs its requests, and where its events and their ids are.

    `id`, `type` and `reference` are selectors; an `id` of several parts joins all of them. The
    first of several `schemes` is used unless a source names another. Raises ConfigurationError if a
    selector or a header name is invalid.
    """

    name: str
    title: str
    schemes: Scheme | Mapping[str, Scheme]
    id: str | tuple[str, ...]
    type: str | tuple[str, ...] = ()
    reference: str | None = None
    form_field: str | None = None
    """The form field that contains the event or events."""
    events: str | None = None
    """The list of events, if a request holds several; the other selectors then apply to each."""
    body_kind: BodyKind | None = None
    """The kind of every body, for a provider that also signs other texts with the secret."""
    challenge: Challenge | None = None
    success_response: int | Reply = 202
    """The status, or the whole response, that the provider requires for an accepted request."""
    keep_headers: tuple[str, ...] = ()
    """Headers to keep with the payload, besides content-type and user-agent."""
    volatile_fields: tuple[str, ...] = ()
    """Fields of the body that may differ between deliveries of one event without a conflict."""
    auto_retry_hours: float | None = None
    """How long the provider retries a failed delivery; None if undocumented."""
    manual_resend_days: float | None = None
    """How long a user can have an event resent; None if undocumented."""
    time_of: Literal["delivery", "event"] = "delivery"
    """Whose time is signed: that of each delivery, or that of the event, which stays the same when
    the event is resent. An undocumented time counts as the event's: a window shorter than the time
    in which the provider resends would reject genuine requests.
    """
    builtin_handlers: Mapping[str, str] = field(default_factory=dict)
    """Event types handled by a handler in `onceward.work.builtin`, by its name."""
    refused_secrets: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of texts that are mistaken for the secret, each with the reason to refuse it."""
    other_uses: str = ""
    """Other texts that are signed with the same secret, and why they are not taken for events."""
    note: str = ""
    identity_selectors: IdentitySelectors = field(init=False, repr=False, compare=False)
    layout: EventLayout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.named_schemes:
            raise ConfigurationError(f"the preset {self.name!r} has no scheme")
        layout = EventLayout(
            None if self.form_field is None else parse_selector(self.form_field),
            None if self.events is None else EventPaths(self.events),
            self.body_kind,
        )
        object.__setattr__(self, "layout", layout)
        for name in self.keep_headers:
            header_key(name)  # raises for an invalid name
        selectors = parse_identity_selectors(
            self.ids, self.types, self.reference, is_batch=self.events is not None
        )
        object.__setattr__(self, "identity_selectors", selectors)

    @property
    def max_resend_days(self) -> float:
        """The longest time after which an event may still be resent, automatically or manually."""
        manual_days = self.manual_resend_days
        if manual_days is None:
            manual_days = DEFAULT_MANUAL_RESEND_DAYS
        return max((self.auto_retry_hours or 0) / 24, manual_days)

    @property
    def named_schemes(self) -> Mapping[str, Scheme]:
        """The schemes by name."""
        return self.schemes if isinstance(self.schemes, Mapping) else {DEFAULT_SCHEME: self.schemes}

    @property
    def ids(self) -> tuple[str, ...]:
        """The selectors of the id's parts."""
        return (self.id,) if isinstance(self.id, str) else self.id

    @property
    def types(self) -> tuple[str, ...]:
        """The selectors of the type's parts."""
        return (self.type,) if isinstance(self.type, str) else self.type

    def coverage(self, scheme: Scheme) -> Coverage:
        """Return what a scheme covers of the preset's events."""
        return scheme.coverage.of_events(self.layout.form_field)

    def flags_duplicates(self, scheme: Scheme) -> bool:
        """Return whether an event is flagged by default if its body came before under another id.

        It is if the proof covers a part of the request but not the id: a captured request can then
        be sent again under a new id.
        """
        coverage = self.coverage(scheme)
        return not coverage.is_sender_only and not self.identity_selectors.covers_id(coverage)

    def scheme(self, name: str | None = None) -> Scheme:
        """Return a scheme by name, or the first. Raises ConfigurationError with all names."""
        schemes = self.named_schemes
        if name is None:
            return next(iter(schemes.values()))
        try:
            return schemes[name]
        except KeyError:
            hint = suggest_or_list(name, schemes, "its schemes are")
            message = f"the preset {self.name!r} has no scheme {name!r}{hint}"
            raise ConfigurationError(message) from None
