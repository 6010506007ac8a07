"""A filter function decides in the worker, or within the request, before the handler starts."""

import asyncio
import logging
from typing import Any

import pytest

from onceward import Effects, Event, Inbox, RetryLater, Transaction
from onceward.model.admin import PageQuery
from onceward.model.events import ProcessingState
from onceward.model.jobs import FailureType, JobStatus
from support.processes import eventually_async
from tests.factories import ACT
from tests.inline_sources import INSERT, hookmesh_webhook, inline_inbox, send
from tests.inprocess import RunningInbox, notes, receive_only, run_inbox

DONE = (JobStatus.DONE, None)
FILTERED = (JobStatus.IGNORED, FailureType.FILTERED)
FAILED = (JobStatus.FAILED, FailureType.PERMANENT)
SHOP: Any = {"preset": "hmac", "unsigned": True, "id": "json:id", "type": "json:type"}
PAID, OPEN = {"status": "paid"}, {"status": "open"}


def is_paid(event: Event[Any]) -> bool:
    return bool(event.payload["status"] == "paid")


async def is_paid_async(event: Event[Any]) -> bool:
    await asyncio.sleep(0)
    return is_paid(event)


async def note(event: Event[Any], tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": event.id})


def noting(when: Any, **options: Any) -> Inbox:
    """Return an inbox whose handler writes a note for each event that it gets."""
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS notes (text varchar(255))")

    inbox.on("order", when=when, **options)(note)
    return inbox


async def outcomes(running: RunningInbox, *payloads: object) -> list[tuple[str, str | None]]:
    """Send events one after the other, and return how their jobs ended."""
    for number, payload in enumerate(payloads, 1):
        await running.post("order", payload, f"evt_{number}")
        await running.wait_until_idle()
    jobs = await running.jobs()
    return [(job.status, job.failure_type) for _, job in sorted(jobs.items())]


FUNCTIONS: dict[str, Any] = {
    "a function": is_paid,
    "async": is_paid_async,
    "a lambda": lambda event: event.payload["status"] == "paid",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "no key": {},
    "ordered": {"ordering_key": "id"},
    "versioned": {"version": "id", "version_key": "id"},
}


async def test_an_event_that_the_function_rejects_is_ignored(
    database_url: str, subtests: pytest.Subtests
) -> None:
    inbox = noting(is_paid)
    cases = {f"{when}, {kind}": (when, kind) for when in FUNCTIONS for kind in OPTIONS}
    for name, (when, kind) in cases.items():
        inbox.on(name, when=FUNCTIONS[when], name=name, **OPTIONS[kind])(note)
    async with run_inbox(inbox, database_url) as running:
        for name in cases:
            with subtests.test(name):
                for number, payload in enumerate((OPEN, PAID, OPEN), 1):
                    await running.post(name, {**payload, "id": 1}, f"{name} {number}")
                    await running.wait_until_idle()
                jobs = [await running.job(f"{name} {number}") for number in (1, 2, 3)]
                ended = [(job.status, job.failure_type) for job in jobs]
                assert ended == [FILTERED, DONE, FILTERED]
                page = PageQuery(limit=1, event_id=f"{name} 1")
                (event,) = await running.store.events(page)
                assert event.processing_state is ProcessingState.IGNORED
                assert jobs[0].last_error is not None
                assert jobs[0].last_error.startswith("filtered: when (")
                assert jobs[0].last_error.endswith(") returned False")
                noted = [text for text in notes(database_url) if text.startswith(name)]
                assert noted == [f"{name} 2"]


async def test_a_filtered_event_applies_no_version(database_url: str) -> None:
    inbox = noting(is_paid, version="version", version_key="id")
    newer, older = {**OPEN, "id": 1, "version": 9}, {**PAID, "id": 1, "version": 5}
    async with run_inbox(inbox, database_url) as running:
        assert await outcomes(running, newer, older, {**OPEN}) == [FILTERED, DONE, FILTERED]


NO_BOOLS: dict[str, Any] = {
    "None": None,
    "an int": 1,
    "a str": "yes",
    "a list": [],
    "a function": is_paid_async,
}


async def test_a_result_that_is_no_bool_fails_the_job(
    sqlite_url: str, subtests: pytest.Subtests
) -> None:
    inbox = noting(is_paid)
    for kind in NO_BOOLS:
        inbox.on(kind, when=lambda event: NO_BOOLS[event.type], name=kind)(note)
    async with run_inbox(inbox, sqlite_url) as running:
        for kind in NO_BOOLS:
            with subtests.test(kind):
                await running.post(kind, PAID, kind)
                await running.wait_until_idle()
                job = await running.job(kind)
                assert (job.status, job.failure_type) == FAILED
                assert job.last_error is not None
                assert f"returned {kind}; return True or False" in job.last_error


async def test_a_coroutine_that_is_not_awaited_fails_the_job(sqlite_url: str) -> None:
    async with run_inbox(noting(lambda event: is_paid_async(event)), sqlite_url) as running:  # noqa: PLW0108
        assert await outcomes(running, PAID) == [FAILED]
        assert "returned a coroutine; return True" in ((await running.job()).last_error or "")


async def test_an_error_of_the_function_is_an_error_of_the_handler(database_url: str) -> None:
    calls: list[str] = []

    def fail_at_first(event: Event[Any]) -> bool:
        calls.append(event.id)
        if len(calls) == 1:
            raise RetryLater(0.01, "not yet")
        if len(calls) == 2:
            raise KeyError("status")
        return True

    async with run_inbox(noting(fail_at_first), database_url) as running:
        assert await outcomes(running, PAID) == [DONE]
        assert (await running.job()).attempts == 3
    assert calls == ["evt_1"] * 3
    assert notes(database_url) == ["evt_1"]


async def test_a_slow_function_runs_into_the_timeout_of_the_handler(sqlite_url: str) -> None:
    async def wait(event: Event[Any]) -> bool:
        await asyncio.Event().wait()
        return bool(event)

    inbox = noting(wait, timeout_seconds=0.05, max_attempts=1)
    async with run_inbox(inbox, sqlite_url) as running:
        assert await outcomes(running, PAID) == [(JobStatus.FAILED, FailureType.EXHAUSTED)]
        error = (await running.job()).last_error or ""
    assert "note took longer than 0.05 s in when (" in error


async def test_the_function_runs_before_any_outside_call(database_url: str) -> None:
    inbox, order = Inbox(), []

    @inbox.effect()
    async def charge(amount: int) -> None:
        order.append(f"charge {amount}")

    def check(event: Event[Any]) -> bool:
        order.append(f"check {event.id}")
        return is_paid(event)

    @inbox.on("order", when=check)
    async def pay(event: Event[Any], effects: Effects) -> None:
        await effects.call(f"charge:{event.id}", charge, 5)

    async with run_inbox(inbox, database_url) as running:
        assert await outcomes(running, OPEN, PAID) == [FILTERED, DONE]
        assert len(await running.effects()) == 1
    assert order == ["check evt_1", "check evt_2", "charge 5"]


async def test_a_payload_that_cannot_be_decoded_fails_with_the_reason(database_url: str) -> None:
    """The handler does not look at the payload, and must not run all the same."""
    inbox = noting({"status": "paid"})
    inbox.source("shop", preset="hmac", unsigned=True, id="header:x-id", type="header:x-type")
    async with run_inbox(inbox, database_url) as running:
        headers = {"x-id": "evt_1", "x-type": "order", "content-type": "application/json"}
        response = await running._http.post("/webhooks/shop", content=b'{"sta', headers=headers)
        assert response.status_code == 202
        await running.wait_until_idle()
        job = await running.job()
        assert await outcomes(running, OPEN, PAID) == [FAILED, DONE]
    assert (job.status, job.failure_type) == FAILED
    assert "JSON" in (job.last_error or "")
    assert notes(database_url) == ["evt_2"]


async def test_filtered_jobs_are_logged_for_those_who_look(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "onceward.work")
    async with run_inbox(noting(is_paid), sqlite_url) as running:
        await outcomes(running, OPEN)
    (entry,) = [each for each in caplog.records if "is ignored" in each.getMessage()]
    assert (entry.levelname, entry.__dict__["failure_type"]) == ("DEBUG", "filtered")


# Within the request.


def inline_noting(when: Any, **options: Any) -> Inbox:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh", when=when, **options)
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})

    return inbox


async def test_filters_hold_within_the_request(
    database_url: str, subtests: pytest.Subtests
) -> None:
    cases: dict[str, Any] = {"equal": {"status": "paid"}, "sync": is_paid, "async": is_paid_async}
    inbox = inline_inbox()
    for name, when in cases.items():
        inbox.on(f"order.{name}", source="hookmesh", when=when, name=name)(note)
    async with receive_only(inbox, database_url) as bench:
        for name, when in cases.items():
            with subtests.test(name):
                await check_filter_within_the_request(bench, name, has_job=callable(when))
                noted = [text for text in notes(database_url) if text.startswith(name)]
                assert noted == [f"{name} a"]


async def check_filter_within_the_request(bench: RunningInbox, name: str, *, has_job: bool) -> None:
    more = {"event_type": f"order.{name}"}
    for expected in ("processed", "already_processed"):
        answers = [
            await send(bench, hookmesh_webhook(f"{name} a", status="paid", **more)),
            await send(bench, hookmesh_webhook(f"{name} b", status="open", **more)),
        ]
        assert answers == [
            (200, {"status": expected, "event_id": f"{name} a"}),
            (200, {"status": "ignored", "event_id": f"{name} b"}),
        ]
    jobs = {
        job.external_event_id: (job.status, job.failure_type)
        for job in (await bench.jobs()).values()
        if job.handler == name
    }
    assert jobs == {f"{name} a": DONE} | ({f"{name} b": FILTERED} if has_job else {})
    items = await bench.store.events(PageQuery(limit=9))
    states = {item.event_id: item.processing_state for item in items}
    assert states[f"{name} a"] is ProcessingState.SUCCEEDED
    assert states[f"{name} b"] is ProcessingState.IGNORED


async def test_the_handlers_beside_a_filtered_one_run_within_the_request(
    database_url: str,
) -> None:
    inbox = inline_noting(is_paid)

    @inbox.on("order.*", source="hookmesh")
    async def other(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": f"other {event.id}"})

    async with receive_only(inbox, database_url) as bench:
        answer = await send(bench, hookmesh_webhook("a", status="open"))
        jobs = {name: job.status for name, job in (await bench.jobs()).items()}
    assert answer == (200, {"status": "processed", "event_id": "a"})
    assert jobs == {"a/note": JobStatus.IGNORED, "a/other": JobStatus.DONE}
    assert notes(database_url) == ["other a"]


async def test_an_error_of_the_function_fails_the_request_and_a_retry_runs_it_again(
    database_url: str,
) -> None:
    calls: list[str] = []

    def fail_at_first(event: Event[Any]) -> bool:
        calls.append(event.id)
        if len(calls) == 1:
            raise KeyError("status")
        return False

    async with receive_only(inline_noting(fail_at_first), database_url) as bench:
        webhook = hookmesh_webhook("a", status="open")
        status, _ = await send(bench, webhook)
        assert (status, (await bench.job("a")).failure_type) == (500, FailureType.INLINE)
        assert await send(bench, webhook) == (200, {"status": "ignored", "event_id": "a"})
        job = await bench.job("a")
    assert ((job.status, job.failure_type), job.attempts) == (FILTERED, 2)
    assert notes(database_url) == []


async def test_a_slow_function_ends_with_the_time_of_the_request(sqlite_url: str) -> None:
    async def hang(event: Event[Any]) -> bool:
        await asyncio.Event().wait()
        return True

    inbox = inline_noting(hang)
    async with receive_only(inbox, sqlite_url, inline_timeout_seconds=1.0) as bench:
        status, body = await send(bench, hookmesh_webhook("a", status="open"))
    assert status == 500
    assert body["message"].startswith("note took longer than 1 s (inline_timeout_seconds)")


async def test_a_request_that_only_another_version_wants_is_asked_to_come_again(
    postgres_url: str,
) -> None:
    """This version must not run it, and its job would wait for a worker that need not exist."""
    async with receive_only(inline_noting({"status": "sent"}), postgres_url):
        pass  # its routes stay for a while
    async with receive_only(inline_noting({"status": "paid"}), postgres_url) as bench:
        answers = [
            await send(bench, hookmesh_webhook(status, status=status))
            for status in ("paid", "sent", "open")
        ]
    assert [status for status, _ in answers] == [200, 503, 200]
    assert [answer.get("status") for _, answer in answers] == ["processed", None, "ignored"]
    assert answers[1][1]["message"] == "Another version of the app wants this event. Retry later."
    assert notes(postgres_url) == ["paid"]


# Review.


async def test_events_in_review_are_logged_and_shown_by_readyz(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onceward.routing")
    inbox = Inbox()
    inbox.source("shop", **SHOP, unknown_types="review")
    inbox.source("other", **SHOP)

    @inbox.on("order")
    async def note(event: Event[Any]) -> None: ...

    async with receive_only(inbox, database_url) as bench:
        for number, source in enumerate(("shop", "shop", "other")):
            body = {"id": f"evt_{number}", "type": "surprise"}
            response = await bench._http.post(f"/webhooks/{source}", json=body)
            assert response.status_code == 202
        watch = bench.service._ignored_watch
        await watch.refresh()
        (warning,) = [each for each in await bench.warnings() if "review" in each]
        listed = await bench.store.events(PageQuery(limit=9, status="review"))
        for item in listed:
            await bench.store.dismiss(int(item.id), ACT)
        await watch.refresh()
        assert not [each for each in await bench.warnings() if "review" in each]
    assert warning.startswith("2 events wait for review, because no handler wants their type: GET ")
    lines = sorted(each.getMessage().split(";")[0] for each in caplog.records)
    assert [line for line in lines if "surprise" in line] == [
        "source 'other': events of type 'surprise' match no handler and end ignored",
        "source 'shop': events of type 'surprise' match no handler and wait for review",
    ]


async def test_an_unknown_type_of_an_inline_source_waits_for_review(database_url: str) -> None:
    inbox = Inbox()
    inbox.source("shop", **SHOP, mode="inline", unknown_types="review")

    @inbox.on("order")
    async def note(event: Event[Any]) -> None: ...

    async with receive_only(inbox, database_url) as bench:
        for _ in range(2):
            body = {"id": "evt_1", "type": "surprise"}
            response = await bench._http.post("/webhooks/shop", json=body)
            assert (response.status_code, response.json()["accepted"]) == (202, True)
        (item,) = await bench.store.events(PageQuery(limit=9, status="review"))
        act = {"actor": "ann", "reason": "an order after all"}
        path = f"/admin/events/{item.id}"
        routed = await bench._http.post(f"{path}/route", json={**act, "handler": "note"})
        assert routed.status_code == 200
        assert (await bench.job()).status is JobStatus.QUEUED


async def test_a_routed_event_runs_in_a_worker(database_url: str) -> None:
    inbox = noting({"status": "paid"})
    async with run_inbox(inbox, database_url) as running:
        await running.post("order", OPEN, "evt_1")
        await running.post("surprise", PAID, "evt_2")
        for item in await running.store.events(PageQuery(limit=9)):
            assert item.processing_state is ProcessingState.IGNORED
            response = await running._http.post(
                f"/admin/events/{item.id}/route",
                json={"handler": "note", "actor": "ann", "reason": "wanted after all"},
            )
            body = response.json()
            assert (response.status_code, body["status"]) == (200, "queued")
            assert (body["id"], body["audit"]["action"]) == (item.id, "route")
            assert body["audit"]["job_id"] == body["job_id"]

        async def are_noted() -> bool:
            return notes(database_url) == ["evt_1", "evt_2"]

        await eventually_async(are_noted, "both events are handled")


REFUSALS: list[tuple[str, dict[str, object], int, str]] = [
    ("1/route", {"handler": ""}, 422, "bad_act"),
    ("1/route", {}, 422, "bad_act"),
    ("1/route", {"handler": "nobody"}, 404, "not_found"),
    ("1/route", {"handler": "a\0b"}, 404, "not_found"),
    ("1/route", {"handler": "note", "force": True}, 422, "bad_act"),
    ("99/route", {"handler": "note"}, 404, "not_found"),
    ("x/route", {"handler": "note"}, 404, "not_found"),
    ("1/dismiss", {}, 409, "not_in_state"),
    ("1/dismiss", {"handler": "note"}, 422, "bad_act"),
    ("99/dismiss", {}, 404, "not_found"),
    ("x/dismiss", {}, 404, "not_found"),
]


async def test_actions_that_cannot_work_are_refused(database_url: str) -> None:
    async with receive_only(noting({"status": "paid"}), database_url) as bench:
        await bench.post("surprise", PAID)
        for path, members, status, code in REFUSALS:
            body: dict[str, object] = {"actor": "ann", "reason": "why not", **members}
            response = await bench._http.post(f"/admin/events/{path}", json=body)
            assert (response.status_code, response.json()["error"]) == (status, code), path
        body = {"handler": "note", "actor": "ann", "reason": "wanted"}
        for status in (200, 409):
            response = await bench._http.post("/admin/events/1/route", json=body)
            assert response.status_code == status
        assert "has job 1 for handler note" in response.json()["message"]
        assert len(await bench.store.audit(PageQuery(limit=9))) == 1


async def test_the_list_of_handlers_shows_their_filters(sqlite_url: str) -> None:
    async with receive_only(noting({"status": ["paid", "sent"]}), sqlite_url) as bench:
        response = await bench._http.get("/admin/handlers")
    (item,) = response.json()["items"]
    assert item["routes"] == [
        {"pattern": "order", "source": None, "when": '{"status":["paid","sent"]}'}
    ]
