"""One rule decides what JSON is: for filters, for ordering keys, and for what handlers get."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pydantic
import pytest

from onceward import Event, Inbox, Transaction
from onceward.model.jobs import FailureType, JobStatus
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import ACT
from tests.inprocess import RunningInbox, receive_only, run_inbox

PAID: Final = {"status": "paid"}


class StructModel(msgspec.Struct):
    status: str = ""
    customer: str = ""


@dataclass
class DataclassModel:
    status: str = ""
    customer: str = ""


class PydanticModel(pydantic.BaseModel):
    status: str = ""
    customer: str = ""


MODELS: Final[dict[str, Any]] = {
    "none": None,
    "struct": StructModel,
    "dataclass": DataclassModel,
    "pydantic": PydanticModel,
}
UNDECODABLE: Final = {
    "a number out of range": b"1e400",
    "a long number": b"9" * 501,
    "a number that int() refuses": b"9" * 4301,
    "no UTF-8": b'"\xff"',
    "deep": b"[" * 500 + b"]" * 500,
    "as deep as the worker's stack": b"[" * 974 + b"]" * 974,
    "deeper than any stack": b"[" * 5_000 + b"]" * 5_000,
    "NaN": b"NaN",
    "a lone surrogate": b'"\\ud800"',
}
DECODABLE: Final = {
    "a large number": b"1e300",
    "many digits": b"9" * 500,
    "deep": b"[" * 499 + b"]" * 499,
    "a long text of digits": b'"' + b"9" * 5_000 + b'"',
    "a text with brackets": b'"' + b'[{\\\\\\"' * 300 + b'"',
}


def body(extra: bytes, status: bytes = b"unpaid") -> bytes:
    return b'{"status": "%s", "customer": "c1", "x": %s}' % (status, extra)


def make_inbox() -> Inbox:
    inbox = Inbox()
    inbox.source("shop", preset="hmac", unsigned=True, id="header:x-id", type="header:x-type")
    return inbox


async def deliver(running: RunningInbox, type: str, id: str, content: bytes) -> None:
    headers = {"x-id": id, "x-type": type, "content-type": "application/json"}
    response = await running.deliver("/webhooks/shop", content, headers)
    assert response.status_code == 202, response.text


async def test_no_handler_runs_for_what_its_filter_or_key_could_not_read(
    database_url: str, subtests: pytest.Subtests
) -> None:
    inbox, ran = make_inbox(), set[str]()

    async def note(event: Event[Any]) -> None:
        ran.add(event.id)

    async def note_shared(event: Event[Any], tx: Transaction) -> None:
        ran.add(event.id)

    async def note_all(events: list[Event[Any]], tx: Transaction) -> None:
        ran.update(event.id for event in events)

    for name, model in MODELS.items():
        inbox.on("filter", when=PAID, model=model, name=f"filter {name}")(note)
        inbox.on("key", ordering_key="customer", model=model, name=f"key {name}")(note)
    inbox.on("shared", when=PAID, transaction="shared", name="shared")(note_shared)
    inbox.on_batch("batch", when=PAID, name="batch")(note_all)
    inbox.forward("forward", to="http://127.0.0.1:9", secret="whsec_" + "QUJD" * 8, when=PAID,
                  allow_private=True, name="forward")  # fmt: skip
    types = ("filter", "key", "shared", "batch", "forward")
    async with run_inbox(inbox, database_url) as running:
        for name, extra in UNDECODABLE.items():
            for kind in types:
                await deliver(running, kind, f"{kind}: {name}", body(extra))
        await running.wait_until_idle()
        jobs = await running.jobs()
        for name in UNDECODABLE:
            with subtests.test(name):
                ended = [
                    job for job in jobs.values() if job.external_event_id.endswith(f": {name}")
                ]
                assert len(ended) == 2 * len(MODELS) + 3  # filter, key; shared, batch, forward
                for job in ended:
                    assert (job.status, job.failure_type) == ("failed", FailureType.PERMANENT), job
                    assert (job.last_error or "").startswith("Malformed payload: "), job
    assert ran == set()


async def test_the_bytes_of_an_undecodable_body_are_there_for_those_who_ask(
    database_url: str,
) -> None:
    inbox, got = make_inbox(), dict[str, bytes]()

    @inbox.on("raw")
    async def keep(event: Event[Any]) -> None:
        got[event.id] = event.body

    @inbox.on("decoded")
    async def decode(event: Event[Any], tx: Transaction) -> None:
        got[event.id] = event.payload

    async with run_inbox(inbox, database_url) as running:
        for name, extra in UNDECODABLE.items():
            await deliver(running, "raw", name, body(extra))
        await deliver(running, "decoded", "evt_1", body(UNDECODABLE["deep"]))
        await running.wait_until_idle()
        failed = await running.job()
    assert got == {name: body(extra) for name, extra in UNDECODABLE.items()}
    assert failed.last_error == "Malformed payload: nested more than 500 levels deep"


async def test_what_is_within_the_limits_reaches_its_handlers(database_url: str) -> None:
    inbox, ran = make_inbox(), set[str]()

    async def note(event: Event[Any]) -> None:
        ran.add(event.id)

    for name, model in MODELS.items():
        if name != "pydantic":  # it reads 200 levels
            inbox.on(name, when=PAID, ordering_key="customer", model=model, name=name)(note)
    expected = {f"{name} {model}" for name in DECODABLE for model in MODELS if model != "pydantic"}
    async with run_inbox(inbox, database_url) as running:
        for each in sorted(expected):
            name, _, model = each.rpartition(" ")
            await deliver(running, model, each, body(DECODABLE[name], b"paid"))
            await deliver(running, model, f"{each} unpaid", body(DECODABLE[name]))
        await running.wait_until_idle()
    assert ran == expected


async def test_a_member_that_occurs_twice_is_one_member_for_all(database_url: str) -> None:
    inbox, got = make_inbox(), dict[str, str]()

    async def note(event: Event[Any]) -> None:
        payload = event.payload
        got[event.type] = payload["status"] if isinstance(payload, dict) else payload.status

    bodies = (
        b'{"status": "paid", "status": "unpaid"}',
        b'{"status": "unpaid", "status": "paid"}',
        b'{"status": "paid", "a": 1, "st\\u0061tus": "unpaid"}',
    )
    for name, model in MODELS.items():
        inbox.on(name, when=PAID, model=model, name=name)(note)
    async with run_inbox(inbox, database_url) as running:
        for number, content in enumerate(bodies):
            for name in MODELS:
                await deliver(running, name, f"{name} {number}", content)
        await running.wait_until_idle()
        jobs = await running.jobs()
    assert {job.status for job in jobs.values()} == {JobStatus.DONE}
    assert got == dict.fromkeys(MODELS, "paid")


def filtered_inbox(ran: list[str], when: Any, **options: Any) -> Inbox:
    inbox = make_inbox()

    @inbox.on("order", when=when, name="credit", **options)
    async def credit(event: Event[Any], tx: Transaction) -> None:
        ran.append(event.id)

    return inbox


OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "alone": {},
    "with a model": {"model": StructModel},
    "in a shared transaction": {"transaction": "shared"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_a_job_that_no_filter_wanted_ends_before_its_handler(
    database_url: str, options: dict[str, Any]
) -> None:
    """A receiver that knows no filters creates jobs for all events of a type."""
    ran: list[str] = []
    async with receive_only(filtered_inbox(ran, None, **options), database_url) as receiver:
        await deliver(receiver, "order", "open", b'{"status": "open"}')
        await deliver(receiver, "order", "paid", b'{"status": "paid"}')
    RawDatabase(database_url).rows("DELETE FROM onceward.routes")  # it registered none
    async with run_inbox(filtered_inbox(ran, PAID, **options), database_url) as running:
        await running.wait_until_idle()
        job = await running.job("open")
    assert ran == ["paid"]
    assert (job.status, job.failure_type) == (JobStatus.IGNORED, FailureType.FILTERED)
    assert job.last_error == "filtered: when status is 'paid' does not match"


@pytest.mark.every_store
async def test_a_large_body_is_loaded_for_the_filter(database_url: str) -> None:
    """A claim does not load it. Without it, nothing could be read, and the job would run."""
    ran: list[str] = []
    large = b'{"status": "open", "x": "%s"}' % (b"x" * 2_000_000)
    async with receive_only(filtered_inbox(ran, None), database_url) as receiver:
        await deliver(receiver, "order", "open", large)
    RawDatabase(database_url).rows("DELETE FROM onceward.routes")
    async with run_inbox(filtered_inbox(ran, PAID), database_url) as running:
        await running.wait_until_idle()
        job = await running.job("open")
    assert (job.status, job.failure_type, ran) == (JobStatus.IGNORED, FailureType.FILTERED, [])


@pytest.mark.parametrize("wider", [{"status": ["paid", "open"]}, None], ids=["wider", "all"])
async def test_a_job_that_another_version_wants_waits_for_its_worker(
    postgres_url: str, wider: Any
) -> None:
    ran: list[str] = []
    async with receive_only(filtered_inbox(ran, wider), postgres_url) as receiver:
        await deliver(receiver, "order", "open", b'{"status": "open"}')
    async with run_inbox(filtered_inbox(ran, PAID), postgres_url) as running:
        job = await running.wait_for_error("open")
        assert (job.status, job.attempts, ran) == (JobStatus.QUEUED, 0, [])
        assert (job.last_error or "").endswith("; another version of the handler wants the event")
    due_now = "UPDATE onceward.jobs SET available_at = created_at"
    RawDatabase(postgres_url).rows(due_now)
    async with run_inbox(filtered_inbox(ran, wider), postgres_url) as running:
        await running.wait_until_idle()
    assert ran == ["open"]


async def test_a_job_of_an_earlier_version_ends_where_one_process_serves(sqlite_url: str) -> None:
    ran: list[str] = []
    async with receive_only(filtered_inbox(ran, None), sqlite_url) as receiver:
        await deliver(receiver, "order", "open", b'{"status": "open"}')
    async with run_inbox(filtered_inbox(ran, PAID), sqlite_url) as running:
        await running.wait_until_idle()
        job = await running.job("open")
    assert (job.status, job.failure_type, ran) == (JobStatus.IGNORED, FailureType.FILTERED, [])


@pytest.mark.every_store
async def test_a_person_may_route_an_event_past_the_filter(database_url: str) -> None:
    ran: list[str] = []
    async with run_inbox(filtered_inbox(ran, PAID), database_url) as running:
        await deliver(running, "order", "open", b'{"status": "open"}')
        (item,) = await running.items("events")
        await running.store.route_event(int(item["id"]), "credit", ACT)

        async def has_run() -> bool:
            return ran == ["open"]

        await eventually_async(has_run, "the routed event has run")


async def test_a_header_that_is_not_stored_is_logged_once(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with receive_only(make_inbox(), sqlite_url) as running:
        for number in range(2):
            headers = {"x-id": str(number), "x-type": "t", "user-agent": "a" * 1_025}
            response = await running.deliver("/webhooks/shop", b"{}", headers)
            assert response.status_code == 202
    lines = [line for line in caplog.messages if "not stored" in line]
    assert lines == [
        "source 'shop': headers above 1024 bytes are not stored with its events: user-agent"
    ]
