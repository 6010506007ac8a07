"""The memory of arriving bodies: counted once, freed once, and shared between addresses."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import ANY

import pytest

from onceward.errors import RequestRefused
from onceward.http.bodies import BodyReader
from onceward.http.body_memory import Body, BodyMemory
from onceward.http.errors import CLOSE, RETRY_AFTER, HttpError, error_fields
from onceward.settings import Settings
from onceward.sources.request import Headers

LIMIT = 1_024
NO_HEADERS = Headers([])


def unexpected(refusal: RequestRefused) -> None:
    raise AssertionError(f"refused: {refusal}")


@pytest.fixture
def reader() -> BodyReader:
    return BodyReader(Settings(max_body_bytes=LIMIT, max_pending_bytes=2 * LIMIT))


def test_a_body_that_is_taken_and_discarded_frees_its_memory_once(reader: BodyReader) -> None:
    for _ in range(5):  # as a request whose signature is rejected
        body = reader.start({}, NO_HEADERS)
        body.add(b"x" * LIMIT, unexpected)
        assert body.take() == b"x" * LIMIT
        body.discard()
    for _ in range(2):
        reader.start({}, NO_HEADERS).add(b"x" * LIMIT, unexpected)
    with pytest.raises(HttpError, match="Too many bodies"):
        reader.start({}, NO_HEADERS).add(b"x", unexpected)


def test_a_declared_length_that_is_no_number_within_the_limit_is_refused(
    reader: BodyReader, subtests: pytest.Subtests
) -> None:
    for length in (b"1025", b"9" * 5_000, b"-1", b"1_0", b"many", b""):
        with subtests.test(length=length):
            with pytest.raises(HttpError) as refusal:
                reader.start({}, Headers([(b"content-length", length)]))
            assert refusal.value.status == 413


def test_a_declared_length_within_the_limit_is_accepted(
    reader: BodyReader, subtests: pytest.Subtests
) -> None:
    for length in (b"0", b"1024", b"0001024", b"1024 "):
        with subtests.test(length=length):
            assert reader.start({}, Headers([(b"content-length", length)])).take() == b""


# Addresses.

KB = 1_000
MEMORY = 3_000 * KB
"""What large bodies may use: three quarters of 4 MB."""
LARGE = 500 * KB


class Sender:
    """Sends large bodies from one address, through a trusted proxy."""

    def __init__(self, reader: BodyReader, address: str) -> None:
        self._reader = reader
        self._headers = Headers([(b"x-forwarded-for", address.encode())])
        self.refusals: list[RequestRefused] = []
        """Of bodies that had to make room for others."""
        self.own_refusals: list[HttpError] = []
        """Of bodies for which there was no room."""

    def send(self, size: int = LARGE, part: int = 50 * KB) -> Body:
        """Send a body that stays incomplete. Raises RequestRefused."""
        body = self._reader.start({"client": ("127.0.0.1", 1)}, self._headers)
        try:
            for _ in range(size // part):
                body.add(b"x" * part, self.refusals.append)
        except RequestRefused:
            body.discard()
            raise
        return body

    def send_until_refused(self, size: int = LARGE, part: int = 50 * KB) -> list[Body]:
        bodies: list[Body] = []
        while (found := self._try_send(size, part)) is not None:
            bodies.append(found)
        return bodies

    def _try_send(self, size: int, part: int) -> Body | None:
        try:
            return self.send(size, part)
        except HttpError as refusal:
            self.own_refusals.append(refusal)
            return None


@pytest.fixture
def sender() -> Callable[[str], Sender]:
    settings = Settings(
        max_body_bytes=LARGE, max_pending_bytes=4_000 * KB, trusted_proxies=("127.0.0.1",)
    )
    shared = BodyReader(settings)
    return lambda address: Sender(shared, address)


def test_one_address_may_use_all_memory(sender: Callable[[str], Sender]) -> None:
    lone = sender("203.0.113.1")
    for body in lone.send_until_refused():
        assert len(body.take()) == LARGE
    assert len(lone.send_until_refused()) == MEMORY // LARGE
    assert lone.refusals == []


def test_the_address_that_holds_most_makes_room_for_others(
    sender: Callable[[str], Sender],
) -> None:
    hoarder, other = sender("203.0.113.1"), sender("203.0.113.2")
    held = hoarder.send_until_refused()
    for _ in range(2):
        bodies = [other.send() for _ in range(3)]  # up to the half of the memory
        assert len(hoarder.send_until_refused()) == 0
        assert [len(body.take()) for body in bodies] == [LARGE] * 3
    assert other.refusals == []
    assert len(hoarder.refusals) == 3  # no more than the others needed
    assert [body.is_empty for body in held] == [False] * 3 + [True] * 3  # the newest
    assert len(other.send_until_refused()) == 3
    for refusal in (*hoarder.refusals, *hoarder.own_refusals, *other.own_refusals):
        assert error_fields(refusal) == (503, "overloaded", ANY, (*CLOSE, *RETRY_AFTER))


@pytest.mark.parametrize(("size", "part"), [(10 * KB, 5 * KB), (4 * KB, 4 * KB), (KB, KB)])
def test_small_bodies_of_many_requests_are_counted_too(
    sender: Callable[[str], Sender], size: int, part: int
) -> None:
    hoarder, other = sender("203.0.113.1"), sender("203.0.113.2")
    hoarder.send_until_refused(size, part)
    assert len(other.send().take()) == LARGE


@pytest.mark.parametrize("hoarders", [2, 5, 500])
def test_many_addresses_leave_each_newcomer_a_fair_share(
    sender: Callable[[str], Sender], hoarders: int
) -> None:
    for number in range(hoarders):
        hoarder = sender(f"198.51.{number // 250}.{number % 250}")
        hoarder.send_until_refused()
    share = min(LARGE, MEMORY // (hoarders + 1)) // KB * KB
    assert len(sender("203.0.113.2").send(share, KB).take()) == share


def test_an_ipv6_network_is_one_address(sender: Callable[[str], Sender]) -> None:
    held = [sender(f"2001:db8::{number:x}").send() for number in range(MEMORY // LARGE)]
    assert sender("2001:db8::ffff").send_until_refused() == []
    bodies = [sender("2001:db8:0:1::1").send() for _ in range(3)]
    assert [len(body.take()) for body in bodies] == [LARGE] * 3
    assert [body.is_empty for body in held] == [False] * 3 + [True] * 3


def test_a_held_body_that_is_taken_and_discarded_frees_its_memory_once(
    sender: Callable[[str], Sender],
) -> None:
    """As a large request whose signature is rejected."""
    lone = sender("203.0.113.1")
    for _ in range(5):
        body = lone.send()
        assert len(body.take()) == LARGE
        body.discard()
    assert len(lone.send_until_refused()) == MEMORY // LARGE


def test_one_large_part_makes_as_much_room_as_it_needs(sender: Callable[[str], Sender]) -> None:
    hoarder, other = sender("203.0.113.1"), sender("203.0.113.2")
    held = hoarder.send_until_refused(10 * KB, 5 * KB)
    used = sum(not body.is_empty for body in held) * 10 * KB
    other.send(LARGE, part=LARGE)
    kept = sum(not body.is_empty for body in held) * 10 * KB
    assert kept + LARGE <= 4_000 * KB
    assert kept <= MEMORY - LARGE < used


def test_an_address_without_bodies_is_forgotten() -> None:
    memory = BodyMemory(Settings())
    for number in range(3):
        body = Body(memory, {"client": (f"203.0.113.{number}", 1)}, NO_HEADERS)
        body.add(b"x" * 5_000, unexpected)
        (body.take if number else body.discard)()
    assert (memory.used, memory._holders) == (0, {})


def test_a_body_of_the_largest_size_fits_into_the_least_memory() -> None:
    reader = BodyReader(Settings(max_body_bytes=100 * KB, max_pending_bytes=100 * KB))
    body = reader.start({}, NO_HEADERS)
    body.add(b"x" * 100 * KB, unexpected)
    assert len(body.take()) == 100 * KB


async def test_a_request_whose_body_makes_room_is_refused_and_not_cut_short() -> None:
    reader = BodyReader(Settings(max_body_bytes=100 * KB, max_pending_bytes=100 * KB))
    parts: asyncio.Queue[bytes] = asyncio.Queue()
    waits = asyncio.Event()

    async def receive() -> dict[str, object]:
        if parts.empty():
            waits.set()
        return {"type": "http.request", "body": await parts.get(), "more_body": True}

    async def receive_whatever_happens() -> dict[str, object]:
        """As a middleware that keeps a cancellation for itself."""
        with suppress(asyncio.CancelledError):
            return await receive()
        return {"type": "http.request", "body": b"the end", "more_body": False}

    for number, each in enumerate((receive, receive_whatever_happens)):
        held = reader.start({"client": ("203.0.113.1", 1)}, NO_HEADERS)
        reading = asyncio.create_task(reader.read(held, each))
        parts.put_nowait(b"x" * 80 * KB)
        await waits.wait()
        waits.clear()
        other = reader.start({"client": ("203.0.113.2", number)}, NO_HEADERS)
        other.add(b"x" * 50 * KB, unexpected)
        with pytest.raises(HttpError, match="Too many bodies"):
            await asyncio.wait_for(reading, 5)
        assert held.is_empty
        other.discard()


@pytest.mark.parametrize("then", ["another refusal", "a cancellation by others"])
async def test_the_first_refusal_of_a_body_decides_unless_others_cancel(then: str) -> None:
    reader = BodyReader(Settings())
    scope = {"client": ("203.0.113.1", 1)}
    body = reader.start(scope, NO_HEADERS)
    parts = [b"x" * 5_000]
    waits = asyncio.Event()

    async def receive() -> dict[str, object]:
        if not parts:
            waits.set()
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(), "more_body": True}

    reading = asyncio.create_task(reader.read(body, receive))
    await waits.wait()
    (refuse,) = reader._memory.holder(scope, NO_HEADERS).bodies.values()
    refuse(HttpError(503, "overloaded", "first"))
    if then == "another refusal":
        refuse(HttpError(408, "slow_request", "second"))
        with pytest.raises(HttpError, match="first"):
            await reading
    else:
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert body.is_empty
