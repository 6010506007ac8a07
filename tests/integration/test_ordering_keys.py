"""A job whose ordering key can be no key fails before its handler runs."""

from typing import Any

import msgspec
import pytest

from onceward import Event, Inbox, PermanentError
from onceward.model.jobs import FailureType, JobStatus
from support.database import RawDatabase
from tests.inprocess import run_inbox


async def test_a_value_that_can_be_no_key_fails_the_job_before_the_handler_runs(
    database_url: str,
) -> None:
    inbox = Inbox()
    handled = []

    @inbox.on("paid", ordering_key="customer.id")
    async def credit(event: Event[Any]) -> None:
        handled.append(event.id)

    async with run_inbox(inbox, database_url) as running:
        await running.post("paid", {"customer": {"id": "c_1"}}, "text")
        await running.post("paid", {"customer": {"id": 5}}, "number")
        await running.post("paid", {"customer": {"id": ["c_1"]}}, "list")
        await running.post("paid", {"customer": {"id": None}}, "null")
        await running.post("paid", {}, "missing")
        await running.wait_until_idle()
        jobs = await running.jobs()
    assert sorted(handled) == ["missing", "null", "number", "text"]
    failed = jobs["list/credit"]
    assert (failed.status, failed.failure_type) == (JobStatus.FAILED, FailureType.PERMANENT)
    message = "ordering_key customer.id is a list; the path must lead to a text or a number"
    assert failed.last_error == message


class Customer(msgspec.Struct, rename={"identity": "id"}):
    identity: str


class Invoice(msgspec.Struct):
    customer: Customer


async def test_the_path_names_members_of_the_payload_and_not_of_the_model(
    database_url: str,
) -> None:
    inbox = Inbox()
    handled = []

    @inbox.on("paid", ordering_key="customer.id")
    async def credit(event: Event[Invoice]) -> None:
        handled.append(event.payload.customer.identity)

    async with run_inbox(inbox, database_url) as running:
        await running.post("paid", {"customer": {"id": "c_1"}})
        await running.wait_until_idle()
    assert handled == ["c_1"]
    assert RawDatabase(database_url).value("SELECT ordering_key FROM onceward.jobs") == "c_1"


HOLDING: dict[str, tuple[dict[str, Any], bool]] = {
    "ordered": ({"ordering_key": "id"}, True),
    "continuing": ({"ordering_key": "id", "on_head_failed": "continue"}, False),
    "absent": ({"ordering_key": "absent"}, False),
    "unordered": ({}, False),
}


async def test_the_log_says_whether_a_failed_job_holds_its_key(
    database_url: str, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    async def credit(event: Event[Any]) -> None:
        raise PermanentError("no account")

    inbox = Inbox()
    for name, (options, _) in HOLDING.items():
        inbox.on(name, name=name, **options)(credit)
    async with run_inbox(inbox, database_url) as running:
        for name, (_, waits) in HOLDING.items():
            with subtests.test(name):
                caplog.clear()
                await running.post(name, {"id": "c_1"}, name)
                await running.wait_until_idle()
                (line,) = [text for text in caplog.messages if "failed for good" in text]
                assert f"handler '{name}'" in line
                assert ("; the later jobs of its ordering key wait: requeue it" in line) is waits
                fix = ", or cancel it" if waits else "; requeue it when the cause is fixed"
                assert line.endswith(fix)


async def test_a_path_that_leads_nowhere_is_logged_once(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()

    @inbox.on("paid", ordering_key="customer.identifier")
    async def misspelled(event: Event[Any]) -> None: ...

    @inbox.on("paid", ordering_key="customer.id")
    async def credit(event: Event[Any]) -> None: ...

    async with run_inbox(inbox, database_url) as running:
        await running.post("paid", {"customer": {"id": "c_1"}}, "first")
        await running.wait_until_idle()
        await running.post("paid", {"customer": {"id": "c_2"}}, "second")
        await running.post("paid", {"customer": {}}, "without")
        await running.wait_until_idle()
    (line,) = [text for text in caplog.messages if "ordering_key" in text]
    assert line.startswith("handler 'misspelled' (")
    assert line.endswith(
        "): an event of type 'paid' has nothing at ordering_key 'customer.identifier', so its job "
        "has no key and waits for no other; compare the path with the payload"
    )
