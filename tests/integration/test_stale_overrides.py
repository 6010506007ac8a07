"""What a person says about stale events: run one all the same, or forget a watermark."""

from decimal import Decimal
from typing import Any

from onceward import Event, Transaction
from onceward.model.admin import PageQuery, Pausable
from onceward.model.versions import Watermark
from tests.factories import ACT
from tests.inprocess import run_inbox
from tests.integration.test_stale_events import (
    DONE,
    FAILED,
    STALE,
    outcome,
    plan,
    plans,
    send,
    statuses,
)

NEWEST = Watermark(Decimal(9), "c", "ingest")


async def test_even_if_stale_does_not_override_what_is_applied_after_the_requeue(
    database_url: str,
) -> None:
    inbox = plans()
    async with run_inbox(inbox, database_url) as running:
        await send(running, "b", 7, "cancelled")
        stale = await send(running, "a", 5, "active")
        handler = Pausable.HANDLER
        await running.store.pause(handler, "sync", ACT)
        await running.store.requeue(int(stale.id), ACT, even_if_stale=True)
        assert (await running.job("a")).even_if_stale
        async with running.store.begin(str) as transaction:
            applied = await transaction.lock_watermark("sync", "p", NEWEST)
            assert applied != NEWEST
            await transaction.set_watermark("sync", "p", NEWEST)
            await transaction.commit()
        await running.store.resume(handler, "sync", ACT)
        await running.wait_until_idle()
        assert outcome(await running.job("a")) == STALE
        assert statuses(database_url) == {"p": "cancelled"}
        await running.store.requeue(int(stale.id), ACT, even_if_stale=True)
        await running.wait_until_idle()
        assert outcome(await running.job("a")) == DONE
        assert not (await running.job("a")).even_if_stale


async def test_another_kind_of_version_fails_before_the_handler_even_if_stale(
    database_url: str,
) -> None:
    calls: list[str] = []

    async def note(event: Event[Any], _: Transaction) -> None:
        calls.append(event.id)

    async with run_inbox(plans(note), database_url) as running:
        await send(running, "a", 7, "active")
        text = await send(running, "b", "2026", "cancelled")
        await running.store.requeue(int(text.id), ACT, even_if_stale=True)
        await running.wait_until_idle()
        assert outcome(await running.job("b")) == FAILED
        assert calls == ["a"]
        assert await running.store.forget_watermark("sync", "p", ACT)
        await running.store.requeue(int(text.id), ACT)
        await running.wait_until_idle()
        assert outcome(await running.job("b")) == DONE
    assert statuses(database_url) == {"p": "cancelled"}


async def test_a_forgotten_watermark_and_a_requeue_end_in_the_newest_state(
    database_url: str,
) -> None:
    key = "p" * 300
    async with run_inbox(plans(), database_url) as running:
        await running.post("plan", plan(10**12, "too high", key), "x")
        await running.wait_until_idle()
        for version in (1, 2, 3):
            await running.post("plan", plan(version, f"state {version}", key), f"e{version}")
        await running.wait_until_idle()
        found = await running._http.get("/admin/watermarks", params={"key": key})
        (item,) = found.json()["items"]
        by_event = await running._http.get("/admin/watermarks?handler=sync&event_id=x")
        assert by_event.json()["items"] == [item]
        for failure_type, count in ("stale", 3), ("permanent", 0):
            listed = await running._http.get(f"/admin/jobs?failure_type={failure_type}")
            assert len(listed.json()["items"]) == count
        assert (await running._http.get("/admin/jobs?failure_type=x")).status_code == 422
        assert (item["version"], item["event_id"]) == (str(10**12), "x")
        assert item["key"].startswith("sha256:")
        body = {"actor": "ann", "reason": "milliseconds", "handler": "sync", "key": key}
        path = "/admin/watermarks/forget"
        assert (await running._http.post(path, json=body)).json()["watermark"] == item
        assert (await running._http.post(path, json=body)).status_code == 404
        assert (await running._http.post(path, json={**body, "key": None})).status_code == 422
        for job in await running.store.jobs(PageQuery(limit=9, status="ignored")):
            await running.store.requeue(int(job.id), ACT)
        await running.wait_until_idle()
    assert statuses(database_url) == {key: "state 3"}
