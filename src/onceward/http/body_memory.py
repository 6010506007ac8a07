"""The memory that all arriving bodies share, so that no address can keep the others out."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from onceward.errors import RequestRefused
from onceward.http.addresses import network_of
from onceward.http.errors import CLOSE, RETRY_AFTER, HttpError
from onceward.http.proxies import Proxies
from onceward.http.responses import Scope
from onceward.settings import Settings
from onceward.sources.request import Headers

SMALL_BODY_BYTES: Final = 64 * 1024
"""Larger bodies may use only three quarters of the memory: the rest is for small ones."""
UNATTRIBUTED_BYTES: Final = 4096
"""A body up to this size is not counted for its address, until the memory is full.

Most are complete before the address is needed.
"""

Refuse = Callable[[RequestRefused], None]
"""Refuses the request of a body that was discarded."""


def _overloaded() -> HttpError:
    message = "Too many bodies are arriving at once. Retry later."
    return HttpError(503, "overloaded", message, headers=(*CLOSE, *RETRY_AFTER))


class _Holder:
    """The bodies that are arriving from one address, the oldest first."""

    __slots__ = ("address", "bodies", "used")

    def __init__(self, address: str) -> None:
        self.address = address
        self.bodies: dict[Body, Refuse] = {}
        self.used = 0


class Body:
    """The body of one request while it arrives. Its creator must `take` or `discard` it."""

    __slots__ = ("_data", "_headers", "_holder", "_memory", "_scope")

    def __init__(self, memory: BodyMemory, scope: Scope, headers: Headers) -> None:
        self._memory = memory
        self._scope = scope
        self._headers = headers
        self._holder: _Holder | None = None
        self._data: bytes | bytearray = b""

    def add(self, chunk: bytes, refuse: Refuse) -> None:
        """Add a part. Raises RequestRefused (413, 503) if it exceeds a limit.

        `refuse` is called if the body has to make room for those of other addresses.
        """
        if not self._data:
            self._data = chunk
        elif isinstance(self._data, bytearray):
            self._data += chunk
        else:  # one buffer: an object for each tiny part would take many times its bytes
            self._data = bytearray(self._data) + chunk
        memory, length = self._memory, len(self._data)
        memory.used += len(chunk)
        if self._holder is not None:
            self._holder.used += len(chunk)
        elif length > UNATTRIBUTED_BYTES:
            self.hold(refuse)
        else:
            memory.unattributed[self] = refuse
        if length > memory.max_body_bytes:
            raise memory.too_large()
        if memory.is_full_for(length):
            memory.make_room(length, self._holder or self.hold(refuse))

    def hold(self, refuse: Refuse) -> _Holder:
        """Count the body for its address from now on."""
        self._memory.unattributed.pop(self, None)
        holder = self._holder = self._memory.holder(self._scope, self._headers)
        holder.bodies[self] = refuse
        holder.used += len(self._data)
        return holder

    @property
    def is_empty(self) -> bool:
        """Whether no byte has arrived."""
        return not self._data

    def take(self) -> bytes:
        """Return the complete body and free its memory."""
        data = self._data
        self.discard()
        return bytes(data)

    def discard(self) -> None:
        """Free the memory of the body."""
        self._memory.used -= len(self._data)
        self._memory.unattributed.pop(self, None)
        if self._holder is not None:
            self._holder.used -= len(self._data)
            del self._holder.bodies[self]
            self._memory.forget_idle(self._holder)
            self._holder = None
        self._data = b""


class BodyMemory:
    """Limits the memory of arriving bodies. One address may use all of it while no other needs it.

    When it is full, the address that holds most makes room: its next part is refused, and its
    newest bodies are discarded for the parts of others. Addresses are those of `Proxies.client`; an
    IPv6 network is one.
    """

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_pending_bytes
        self.max_body_bytes = settings.max_body_bytes
        self._limit_of_large = max(self._limit * 3 // 4, self.max_body_bytes)
        self.used = 0
        self._proxies = Proxies(settings.trusted_proxies)
        self._holders: dict[str, _Holder] = {}
        self.unattributed: dict[Body, Refuse] = {}
        """The arriving bodies that are not counted for an address yet."""

    def holder(self, scope: Scope, headers: Headers) -> _Holder:
        """Return the holder of the bodies from the address that sent a request."""
        address = network_of(self._proxies.client(scope, headers))
        holder = self._holders.get(address)
        if holder is None:
            holder = self._holders[address] = _Holder(address)
        return holder

    def forget_idle(self, holder: _Holder) -> None:
        """Forget a holder without bodies."""
        if not holder.bodies:
            del self._holders[holder.address]

    def is_full_for(self, length: int) -> bool:
        """Return whether too much is used for a body of this length to go on arriving."""
        return self.used > (self._limit if length <= SMALL_BODY_BYTES else self._limit_of_large)

    def make_room(self, length: int, holder: _Holder) -> None:
        """Discard bodies of those who hold most. Raises HttpError (503) if `holder` does itself."""
        for body, refuse in [*self.unattributed.items()]:
            body.hold(refuse)
        while self.is_full_for(length):
            largest = max(self._holders.values(), key=attrgetter("used"))
            if largest.used <= holder.used:
                raise _overloaded()
            newest, refuse = next(reversed(largest.bodies.items()))
            newest.discard()
            refuse(_overloaded())

    def too_large(self) -> RequestRefused:
        """Return the refusal of a body that exceeds the limit on each."""
        limit = self.max_body_bytes
        message = f"The body exceeds {limit} bytes. Send less, or raise max_body_bytes."
        return HttpError(413, "too_large", message, headers=CLOSE)
