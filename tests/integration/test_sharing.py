"""Shared transactions in a running service: each job is done once, and no handler starves."""

import asyncio
from collections import Counter
from typing import Any

from onceward import Event, Inbox, PermanentError, Transaction
from onceward.model.jobs import JobStatus
from support.database import RawDatabase
from tests.inprocess import run_inbox

TABLE = "CREATE TABLE probes (event varchar(255))"
INSERT = "INSERT INTO probes (event) VALUES (:event)"


async def probe(event: Event[Any], tx: Transaction) -> None:
    await tx.execute(INSERT, {"event": event.id})


async def test_every_job_is_done_once_although_others_of_its_batch_fail(
    database_url: str, raw_db: RawDatabase
) -> None:
    inbox = Inbox()

    @inbox.at_start
    async def table(tx: Transaction) -> None:
        await tx.execute(TABLE)

    @inbox.on("order.*", transaction="shared")
    async def book(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.payload % 7 == 0:
            raise PermanentError("no such order")

    async with run_inbox(inbox, database_url, workers=2) as bench:
        await asyncio.gather(*(bench.post("order.paid", n, f"evt_{n}") for n in range(150)))
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert {job.attempts for job in jobs.values()} == {1}
    failed = {name for name, job in jobs.items() if job.status is JobStatus.FAILED}
    assert failed == {f"evt_{n}/book" for n in range(0, 150, 7)}
    assert Counter(raw_db.rows("SELECT event FROM probes")) == {
        (f"evt_{n}",): 1 for n in range(150) if n % 7
    }


async def test_a_failure_never_calls_a_handler_with_its_own_transaction_again(
    database_url: str,
) -> None:
    inbox = Inbox()
    calls: Counter[str] = Counter()

    @inbox.at_start
    async def table(tx: Transaction) -> None:
        await tx.execute(TABLE)

    @inbox.on("order.*")
    async def book_and_mail(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        calls[event.id] += 1  # stands for a call outside the transaction
        if event.payload % 5 == 0:
            raise PermanentError("no such order")

    @inbox.on("order.*", transaction="shared")
    async def book(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.payload % 7 == 0:
            raise PermanentError("no such order")

    async with run_inbox(inbox, database_url, workers=2) as bench:
        await asyncio.gather(*(bench.post("order.paid", n, f"evt_{n}") for n in range(100)))
        await bench.wait_until_idle()
    assert calls == {f"evt_{n}": 1 for n in range(100)}


async def test_sharing_can_be_turned_off(postgres_url: str) -> None:
    inbox = Inbox()
    raw_db = RawDatabase(postgres_url)
    raw_db.rows(TABLE)

    @inbox.on("order.*", transaction="shared")
    async def book(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)

    async with run_inbox(inbox, postgres_url, workers=1, max_jobs_per_transaction=1) as bench:
        await asyncio.gather(*(bench.post("order.paid", n, f"evt_{n}") for n in range(20)))
        await bench.wait_until_idle()
    assert raw_db.value("SELECT count(DISTINCT xmin::text) FROM probes") == 20


async def test_a_single_job_does_not_wait_for_all_batches(sqlite_url: str) -> None:
    inbox = Inbox()
    order: list[str] = []

    @inbox.on("order.*", transaction="shared")
    async def book(event: Event[Any], tx: Transaction) -> None:
        order.append("shared")

    @inbox.on("mail.*")
    async def send(event: Event[Any]) -> None:
        order.append("alone")

    async with run_inbox(inbox, sqlite_url, workers=1, max_jobs_per_transaction=4) as bench:
        for n in range(10):  # enough runs to count as quick
            await bench.post("order.paid", n, f"first_{n}")
        await bench.wait_until_idle()
        order.clear()
        posts = [bench.post("order.paid", n, f"evt_{n}") for n in range(100)]
        await asyncio.gather(bench.post("mail.due", 0, "mail"), *posts)
        await bench.wait_until_idle()
    assert "shared" in order[order.index("alone") :]
