"""A Redis that replies anything costs little, is not believed and learns nothing."""

import asyncio
import tracemalloc

import pytest

from onceward.accelerators.redis import id_cache as redis_id_cache
from onceward.model.events import Outcome
from support.processes import eventually_async
from tests.factories import arrival, arrivals
from tests.hostile_redis import constantly, hostile_redis
from tests.id_cache import Receiver, receiver

MEGABYTE = 1 << 20
EVENTS = 100


@pytest.fixture(autouse=True)
def patient_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a busy machine time, so that no reply of this page is late by accident."""
    monkeypatch.setattr(redis_id_cache, "ASK_SECONDS", 0.2)


async def wait_for_warning(only: Receiver, kind: str) -> None:
    async def warns() -> bool:
        return any(kind in warning for warning in only.ids.warnings)

    await eventually_async(warns, f"a warning: {kind}")


async def test_a_late_reply_is_never_taken_for_that_of_the_next_command(postgres_url: str) -> None:
    replies = [b"*1\r\n$1\r\n7\r\n", b"*1\r\n$1\r\n8\r\n", b"*1\r\n$1\r\n9\r\n"]
    held: list[bytes] = []

    async def respond(writer: asyncio.StreamWriter, _: list[bytes]) -> None:
        held.append(replies[len(held)])
        if len(held) > 1:
            writer.write(held[-1] if len(held) > 2 else b"".join(held))

    async with hostile_redis() as hostile, receiver(postgres_url, hostile.url) as only:
        hostile.respond[b"MGET"] = respond
        found = [(await only.ids.find("ledger", [arrival()]))[0] for _ in replies]
        assert found == [None, 8, 9]
        assert not only.ids.warnings


UNFIT = {
    "shorter": b"*99\r\n" + b"$-1\r\n" * 99,
    "longer": b"*101\r\n" + b"$-1\r\n" * 101,
    "null": b"*-1\r\n",
    "text": b"+OK\r\n",
    "number": b":1\r\n",
    "lists": b"*100\r\n*3\r\n",
    "many items": b"*99999999999\r\n",
    "long text": b"$536870912\r\n",
    "negative": b"$-7\r\n",
    "deep": b"*1\r\n" * 50,
    "no end": b"+" + bytes(4 * MEGABYTE),
    "pushes": b">2\r\n+message\r\n+x\r\n" * 9_000,
    "flood": b"+\r\n" * MEGABYTE,
    "long numbers": b"*100\r\n" + b"$18446744073709551616\r\n" * 100,
    "other digits": b"*\xd9\xa1\r\n",
}


async def test_a_reply_that_does_not_fit_opens_the_circuit_and_changes_no_outcome(
    postgres_url: str, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for name, reply in UNFIT.items():
        with subtests.test(name):
            caplog.clear()
            events = arrivals(EVENTS, prefix=name)
            async with hostile_redis() as hostile, receiver(postgres_url, hostile.url) as only:
                hostile.respond[b"MGET"] = constantly(reply)
                outcomes = [receipt.outcome for receipt in await only.store.record(events)]
                assert outcomes == [Outcome.RECORDED] * EVENTS
                await wait_for_warning(only, "its replies are not valid")
                (again,) = await only.store.record(events[:1])
                assert again.outcome is Outcome.DUPLICATE
            (line,) = [each for each in caplog.messages if "is not used for now" in each]
            assert "repl" in line.partition("for now")[2]


async def test_a_connection_closed_at_any_byte_changes_no_outcome(postgres_url: str) -> None:
    reply = b"*2\r\n$19\r\n9223372036854775807\r\n:1\r\n"
    async with hostile_redis() as hostile, receiver(postgres_url, hostile.url) as only:
        for size in range(len(reply)):

            async def respond(
                writer: asyncio.StreamWriter, command: list[bytes], size: int = size
            ) -> None:
                if b"onceward:probe" in command:
                    writer.write(b"*2\r\n$-1\r\n$-1\r\n")
                    return
                writer.write(reply[:size])
                writer.close()

            hostile.respond[b"MGET"] = respond
            only.ids._connected_at = 0.0  # it lasted: it is replaced at once
            pair = [arrival(f"{size} a"), arrival(f"{size} b")]
            receipts = await only.store.record(pair)
            assert [receipt.outcome for receipt in receipts] == [Outcome.RECORDED] * 2

            async def is_connected() -> bool:
                return only.ids._is_connected

            await eventually_async(is_connected, "it is connected again")


async def test_the_replies_to_written_keys_are_not_collected(postgres_url: str) -> None:
    fills = b"$%d\r\n%b\r\n" % (MEGABYTE // 4, bytes(MEGABYTE // 4))
    written = asyncio.Event()

    async def respond(writer: asyncio.StreamWriter, _: list[bytes]) -> None:
        if not written.is_set():
            written.set()
            for _fill in range(200):
                writer.write(fills)
                await writer.drain()

    async with hostile_redis() as hostile, receiver(postgres_url, hostile.url) as only:
        hostile.respond[b"SET"] = respond
        tracemalloc.start()
        await only.store.record(arrivals(EVENTS * 3))
        await written.wait()
        await wait_for_warning(only, "its replies are not valid")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * MEGABYTE


QUOTES = (
    b"-ERR unknown command `AUTH`, with args beginning with: `HUNTERWORD`,",
    b"-HUNTERWORD",
    b"-ERR HUNTERW...",
    b"-<script>",
    b"-\x1b[2J",
)


async def test_an_error_that_quotes_the_password_is_not_shown(
    postgres_url: str, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for quote in QUOTES:
        with subtests.test(repr(quote)):
            caplog.clear()
            async with hostile_redis(":HUNTERWORD@") as hostile:
                hostile.respond[b"AUTH"] = constantly(quote + b"\r\n")
                async with receiver(postgres_url, hostile.url) as only:
                    (warning,) = only.ids.warnings
            assert warning.startswith(
                ("Redis is not used: it replied ERR.", "Redis is not used: it replied an error.")
            )
            assert "HUNT" not in warning + caplog.text
            assert "\x1b" not in caplog.text
