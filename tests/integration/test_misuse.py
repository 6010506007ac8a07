"""A mistake with `event`, `tx`, `effects` or RetryLater fails the job and names the line."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from onceward import Effects, Event, Inbox, RetryLater, Transaction, transition, upsert
from onceward.errors import TransactionMisuse
from onceward.model.jobs import JobStatus
from tests.inprocess import run_inbox

KEY = 'f"mail:{event.id}"'
UPSERT = 'upsert(tx, "table", {"id": …}, {"column": …})'
TRANSITION = 'transition(tx, "table", id, to="paid", only_from=["open"])'


async def no_key(effects: Any) -> None:
    await effects.once()


async def unknown_keyword(event: Event[Any], effects: Any) -> None:
    await effects.once(event.id, ref="x")


async def number(effects: Any) -> None:
    await effects.once(5)


async def missing_key(effects: Any) -> None:
    await effects.once(None)


async def bad_reference(event: Event[Any], effects: Any) -> None:
    await effects.once(event.id, reference=["x"])


async def positional(tx: Any) -> None:
    await tx.execute("SELECT :a, :b", 1, 2)


async def keyword(tx: Any) -> None:
    await tx.fetch("SELECT :a", a=1)


async def no_statement(tx: Any) -> None:
    await tx.fetch_value()


def sync_no_key(effects: Any) -> None:
    effects.once()


def sync_number(effects: Any) -> None:
    effects.once(5)


def sync_keyword(tx: Any) -> None:
    tx.execute("SELECT :a", a=1)


async def data(event: Any) -> None:
    event.data["id"]


async def json(event: Any) -> None:
    event.json()


async def item(event: Any) -> None:
    event["id"]


async def misspelled(event: Any) -> None:
    assert event.paylod


async def driver_name(tx: Any) -> None:
    await tx.commit()


async def unknown_method(tx: Any) -> None:
    await tx.zap()


async def run(effects: Any) -> None:
    await effects.run("mail")


def sync_data(event: Any) -> None:
    event.data["id"]


def sync_driver_name(tx: Any) -> None:
    tx.rollback()


async def text_as_delay() -> None:
    raise RetryLater("no warehouse yet")  # type: ignore[arg-type]


async def no_delay() -> None:
    raise RetryLater(None)  # type: ignore[arg-type]


async def row_by_number(tx: Any) -> Any:
    return (row := await tx.fetch_one("SELECT 1 AS a")) and row[0]


def sync_row_by_number(tx: Any) -> Any:
    return (row := tx.fetch_one("SELECT 1 AS a")) and row[1]


async def nothing_for_retry_later() -> None:
    raise RetryLater  # type: ignore[call-arg]


def sync_nothing_for_retry_later() -> None:
    raise RetryLater  # type: ignore[call-arg]


async def upsert_without_values(tx: Any) -> None:
    await upsert(tx, "plans", {"id": "a"})  # type: ignore[call-overload]


async def positional_states(tx: Any) -> None:
    await transition(tx, "plans", "a", "paid", ["open"])  # type: ignore[call-overload]


def sync_unknown_state(tx: Any) -> None:
    transition(tx, "plans", "a", to="paid", from_="open")  # type: ignore[call-overload]


async def upsert_into_text(tx: Any) -> None:
    await upsert("plans", tx, {}, {})  # type: ignore[call-overload]


async def upsert_as_method(tx: Any) -> None:
    await tx.upsert("plans", {"id": "a"}, {})


MISTAKES: list[tuple[Callable[..., Any], str]] = [
    (no_key, f"effects.once needs a key, such as effects.once({KEY})"),
    (unknown_keyword, f"effects.once has no argument 'ref'; write effects.once({KEY})"),
    (number, f"effects.once: the key is an int; pass a text such as {KEY}"),
    (missing_key, f"effects.once: the key is None; pass a text such as {KEY}"),
    (bad_reference, f"effects.once: the reference is a list; pass a text such as {KEY}"),
    (
        positional,
        'tx.execute got the wrong number of arguments; write tx.execute(sql, {"name": …})',
    ),
    (keyword, """tx.fetch has no argument 'a'; write tx.fetch(sql, {"name": …})"""),
    (
        no_statement,
        'tx.fetch_value needs a statement, such as tx.fetch_value(sql, {"name": …})',
    ),
    (sync_no_key, f"effects.once needs a key, such as effects.once({KEY})"),
    (sync_number, f"effects.once: the key is an int; pass a text such as {KEY}"),
    (data, "there is no event.data; use event.payload"),
    (sync_data, "there is no event.data; use event.payload"),
    (json, "there is no event.json; use event.payload"),
    (
        item,
        'an event has no items of its own; use event.payload, such as event.payload["id"]',
    ),
    (misspelled, "there is no event.paylod; did you mean 'payload'?"),
    (
        driver_name,
        "there is no tx.commit; the transaction commits when the handler returns",
    ),
    (sync_driver_name, "there is no tx.rollback; raise an error to roll back"),
    (
        unknown_method,
        "there is no tx.zap; tx has execute, fetch, fetch_one, fetch_value",
    ),
    (
        upsert_without_values,
        f"upsert() missing 1 required positional argument: 'values'; write {UPSERT}",
    ),
    (
        positional_states,
        f"transition() takes 3 positional arguments but 5 were given; write {TRANSITION}",
    ),
    (
        sync_unknown_state,
        f"transition() got an unexpected keyword argument 'from_'; write {TRANSITION}",
    ),
    (upsert_into_text, "upsert: the first argument is a str; pass the handler's tx"),
    (upsert_as_method, f"there is no tx.upsert; write {UPSERT}"),
    (run, f"there is no effects.run; use effects.call({KEY}, function, …)"),
    (text_as_delay, 'RetryLater: seconds is a str; write RetryLater(60, "reason")'),
    (no_delay, 'RetryLater: seconds is None; write RetryLater(60, "reason")'),
    (row_by_number, 'row is a dict, as every row of tx is, by column; write row["column"]'),
    (
        sync_row_by_number,
        'row is a dict, as every row of tx is, by column; write row["column"]',
    ),
    (nothing_for_retry_later, 'RetryLater needs seconds; write RetryLater(60, "reason")'),
    (sync_nothing_for_retry_later, 'RetryLater needs seconds; write RetryLater(60, "reason")'),
    (sync_keyword, """tx.execute has no argument 'a'; write tx.execute(sql, {"name": …})"""),
]


async def test_a_wrong_call_is_permanent_and_names_the_line(
    sqlite_url: str, subtests: pytest.Subtests
) -> None:
    inbox = Inbox()
    for function, _ in MISTAKES:
        inbox.on(function.__name__)(function)
    async with run_inbox(inbox, sqlite_url) as bench:
        for function, reason in MISTAKES:
            name = function.__name__
            with subtests.test(name):
                await bench.post(name, event_id=name)
                await bench.wait_until_idle()
                job = await bench.job(name)
                line = function.__code__.co_firstlineno + 1
                place = f"tests/integration/test_misuse.py:{line} in {name}"
                assert job.last_error == f"{place}: {reason}"
                assert (job.status, job.failure_type) == (JobStatus.FAILED, "permanent")


async def test_other_type_errors_are_retried(sqlite_url: str) -> None:
    class Effects:  # a class of the app with the same name
        def once(self, key: str) -> None: ...

    mine: Any = Effects()
    inbox = Inbox()

    @inbox.on("a", max_attempts=2)
    async def handler(tx: Transaction) -> None:
        mine.once()

    async with run_inbox(inbox, sqlite_url, retry_base_seconds=0.01) as bench:
        job = await bench.run_event("a")
    assert (job.failure_type, job.attempts) == ("exhausted", 2)
    assert (job.last_error or "").startswith("TypeError: ")


async def test_a_function_of_the_same_name_is_retried(sqlite_url: str) -> None:
    def upsert(row: str) -> None: ...

    mine: Any = upsert
    inbox = Inbox()

    @inbox.on("a", max_attempts=2)
    async def handler(tx: Transaction) -> None:
        mine()

    async with run_inbox(inbox, sqlite_url, retry_base_seconds=0.01) as bench:
        job = await bench.run_event("a")
    assert (job.failure_type, job.attempts) == ("exhausted", 2)


async def test_an_attribute_of_another_object_is_retried(sqlite_url: str) -> None:
    inbox = Inbox()

    @inbox.on("a", max_attempts=2)
    async def handler(event: Any) -> None:
        assert event.payload.data

    async with run_inbox(inbox, sqlite_url, retry_base_seconds=0.01) as bench:
        job = await bench.run_event("a", {})
    assert (job.failure_type, job.attempts) == ("exhausted", 2)
    assert (job.last_error or "").startswith("AttributeError: ")


@pytest.mark.parametrize("prices", [{}, {1: "one"}])
async def test_a_missing_number_in_another_dict_is_retried(
    sqlite_url: str, prices: dict[int, str]
) -> None:
    inbox = Inbox()

    @inbox.on("a", max_attempts=2)
    async def handler(tx: Transaction) -> None:
        await tx.fetch_one("SELECT 1 AS a")
        known = dict(prices)
        assert known[7]

    async with run_inbox(inbox, sqlite_url, retry_base_seconds=0.01) as bench:
        job = await bench.run_event("a")
    assert (job.failure_type, job.attempts) == ("exhausted", 2)
    assert (job.last_error or "").startswith("KeyError")


async def test_a_mistake_in_a_task_group_is_permanent(sqlite_url: str) -> None:
    async def read(event: Any) -> None:
        assert event.data

    inbox = Inbox()

    @inbox.on("a")
    async def handler(event: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(read(event))

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("a")
    assert job.failure_type == "permanent"
    assert (job.last_error or "").endswith(" in read: there is no event.data; use event.payload")


async def test_a_mistake_at_start_names_the_line(sqlite_url: str) -> None:
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Any) -> None:
        await tx.commit()

    with pytest.raises(TransactionMisuse, match=r"test_misuse\.py:\d+ in tables: there is no tx"):
        await inbox.service({"database_url": sqlite_url}, dev=True).open()


async def test_an_error_whose_attributes_raise_is_still_retried(sqlite_url: str) -> None:
    class Odd(RetryLater):
        @property
        def seconds(self) -> float:
            raise RuntimeError

        @seconds.setter
        def seconds(self, value: float) -> None: ...

    inbox = Inbox()

    @inbox.on("a", max_attempts=2)
    async def handler() -> None:
        raise Odd(1)

    async with run_inbox(inbox, sqlite_url, retry_base_seconds=0.01) as bench:
        job = await bench.run_event("a")
    assert (job.failure_type, job.attempts) == ("exhausted", 2)


@pytest.mark.parametrize("transaction", ["own", "shared"])
async def test_a_task_that_outlives_its_handler_is_logged_with_its_line(
    database_url: str, caplog: pytest.LogCaptureFixture, transaction: Any
) -> None:
    inbox = Inbox()
    tasks: list[asyncio.Task[Any]] = []
    may_go_on = asyncio.Event()

    async def later(tx: Transaction) -> None:
        await may_go_on.wait()
        await tx.execute("SELECT 1")

    async def mark(effects: Effects) -> None:
        await may_go_on.wait()
        await effects.once("late")

    @inbox.on("a", transaction=transaction)
    async def book(tx: Transaction, effects: Effects) -> None:
        tasks.append(asyncio.create_task(later(tx)))
        tasks.append(asyncio.create_task(mark(effects)))

    async with run_inbox(inbox, database_url) as bench:
        assert (await bench.run_event("a")).status is JobStatus.DONE
        may_go_on.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert await bench.effects() == []
    file = "tests/integration/test_misuse.py"
    for function, error in zip((later, mark), errors, strict=True):
        assert str(error) == (
            f"{file}:{function.__code__.co_firstlineno + 2} in {function.__name__}: the "
            "transaction is over, because the handler has returned; await every task that uses tx "
            "or effects before it returns"
        )
        label = f"handler 'book' ({file}:{book.__code__.co_firstlineno})"
        assert f"{label}: {error}; the job ended without this statement" in caplog.messages
