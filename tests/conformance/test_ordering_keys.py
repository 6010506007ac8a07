"""Jobs get the ordering keys of their handlers when they are recorded, in whichever process."""

import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import pytest
from msgspec.structs import replace

from onceward.errors import OutcomeUnknown, RejectionCause
from onceward.model.admin import Rejection
from onceward.model.events import Arrival, DuplicateBody, Outcome
from onceward.model.jobs import HandlerEntry, QueueRules, Route
from onceward.ports import Store
from onceward.store.postgres import recording
from support.database import RawDatabase
from tests.factories import ACT, CREDIT, EVERYTHING, SOURCES, arrival, checked, opened, record

FORM = b'{"content-type":"application/x-www-form-urlencoded"}'

Keys = dict[tuple[str, str], str | None]


def keyed(name: str, path: str | None, *routes: Route) -> HandlerEntry:
    return HandlerEntry(name, 3, routes or (Route("invoice.*"),), QueueRules(ordering_key=path))


def paid(event_id: str, document: object, **fields: Any) -> Arrival:
    return arrival(event_id, body=json.dumps(document).encode(), **fields)


def keys(raw_db: RawDatabase) -> Keys:
    """Return the key of each job, by its event and handler."""
    rows = raw_db.rows(
        "SELECT e.event_id, h.name, j.ordering_key FROM onceward.jobs j"
        " JOIN onceward.events e ON e.id = j.event JOIN onceward.handlers h ON h.id = j.handler"
    )
    return {(event_id, handler): key for event_id, handler, key in rows}


async def test_each_job_has_the_key_at_the_path_of_its_handler(
    store: Store, raw_db: RawDatabase
) -> None:
    handlers = [
        keyed("customer", "customer"),
        keyed("line", "lines.0.id", Route("invoice.paid", "stripe")),
        keyed("alike", "customer"),
        keyed("voided", "customer", Route("invoice.voided")),
    ]
    await store.register(SOURCES, [CREDIT, *handlers], [])
    await record(
        store,
        paid("a", {"customer": "c_1", "lines": [{"id": 7}]}),
        paid("b", {"customer": "c_2", "lines": []}),
        paid("c", {"customer": "c_1"}, type="invoice.voided"),
        paid("d", {"customer": "c_3"}, type="order.new"),
        paid("e", {"customer": "c_4", "lines": [{"id": 8}]}, source="ingest"),
    )
    assert keys(raw_db) == {
        ("a", "credit"): None, ("a", "customer"): "c_1", ("a", "alike"): "c_1", ("a", "line"): "7",
        ("b", "credit"): None, ("b", "customer"): "c_2", ("b", "alike"): "c_2", ("b", "line"): None,
        ("c", "customer"): "c_1", ("c", "alike"): "c_1", ("c", "voided"): "c_1",
        ("d", "notify"): None,
        ("e", "credit"): None, ("e", "customer"): None, ("e", "alike"): None,
    }  # fmt: skip


async def test_every_kind_of_payload_has_a_key(store: Store, raw_db: RawDatabase) -> None:
    await store.register(SOURCES, [keyed("customer", "c")], ["credit"])
    form = arrival("form", body=b"c=c+1&d=2")._replace(headers=FORM)
    await record(
        store,
        paid("text", {"c": "c 1"}),
        paid("ingest", {"c": "outside", "payload": {"c": "c 1"}}, source="ingest"),
        form,
        paid("quotes", {"c": "\"'\\{}é\N{SNOWMAN}"}),
        paid("number", {"c": 5}),
        paid("text of a number", {"c": "5"}),
        paid("empty", {"c": ""}),
        paid("NUL", {"c": "\0"}),
        paid("long", {"c": "é" * 128}),
        paid("list", {"c": ["c 1"]}),
        paid("null", {"c": None}),
        arrival("no JSON", body=b"\0\xff"),
    )
    found = {event_id: key for (event_id, _), key in keys(raw_db).items()}
    assert len(hashed := [key for key in found.values() if key and key.startswith("sha256:")]) == 2
    assert {found.pop("NUL"), found.pop("long")} == set(hashed)
    assert found == {
        "text": "c 1", "ingest": "c 1", "form": "c 1", "quotes": '"\'\\{}é\N{SNOWMAN}',
        "number": "5", "text of a number": "5", "empty": "", "list": None, "null": None,
        "no JSON": None,
    }  # fmt: skip


async def test_the_job_of_a_held_event_has_its_key(store: Store, raw_db: RawDatabase) -> None:
    await store.register(SOURCES, [keyed("customer", "c")], ["credit"])
    body = b'{"c": "c_1"}'
    held = checked("second", DuplicateBody.HELD, body=body)
    await record(store, checked("first", DuplicateBody.HELD, body=body), held)
    assert keys(raw_db) == {("first", "customer"): "c_1", ("second", "customer"): "c_1"}


# Another process changes the handlers while this one records.

BODY = {"a": "key a", "b": "key b"}


async def receive(store: Store, event_id: str) -> None:
    (receipt,) = await record(store, paid(event_id, BODY))
    assert receipt.outcome is Outcome.RECORDED


async def receive_rejection(store: Store, event_id: str) -> None:
    rejection = Rejection(
        "stripe", RejectionCause.MISMATCH, "hmac", 1.0, 1.0, request=b"x", body=b"{}"
    )
    await store.add_rejections([rejection], keep=9)
    newest, *_ = await store.rejections(EVERYTHING)
    await store.receive_rejection(int(newest.id), [paid(event_id, BODY)], ACT)


async def accept_conflict(store: Store, event_id: str) -> None:
    await record(store, arrival(f"a of {event_id}", type="order.new"))
    await record(store, paid(f"a of {event_id}", BODY, type="order.new"))
    delivery, *_ = await store.deliveries(EVERYTHING)
    await store.accept_conflict(int(delivery.id), paid(event_id, BODY), ACT)


ACTS: Final[tuple[Callable[[Store, str], Awaitable[None]], ...]] = (
    receive,
    receive_rejection,
    accept_conflict,
)


async def keys_of_next_event(
    url: str,
    event_id: str,
    act: Callable[[Store, str], Awaitable[None]],
    before: Sequence[HandlerEntry],
    after: Sequence[HandlerEntry],
) -> dict[str, str | None]:
    """Change the handlers behind a receiver's back; return the keys of its next event's jobs.

    The handlers have new names, and no routes afterwards: the ledger is as good as a fresh one.
    """
    suffix = f" / {event_id}"
    old = [replace(each, name=each.name + suffix) for each in before]
    new = [replace(each, name=each.name + suffix) for each in after]
    async with opened(url, handlers=old) as receiver:
        await record(receiver, arrival(f"before {event_id}", type="unwanted"))
        async with opened(url, serving=False, handlers=new) as other:
            try:
                await act(receiver, event_id)
            finally:
                await other.register(SOURCES, [], [each.name for each in (*old, *new)])
    found = keys(RawDatabase(url)).items()
    return {
        handler.removesuffix(suffix): key for (event, handler), key in found if event == event_id
    }


class Change(NamedTuple):
    """The handlers of the receiver, those of another process, and the keys of the next event."""

    before: list[HandlerEntry]
    after: list[HandlerEntry]
    keys: dict[str, str | None]


CHANGES = {
    "new handler": Change([], [keyed("later", "a")], {"later": "key a"}),
    "new path": Change([keyed("later", "a")], [keyed("later", "b")], {"later": "key b"}),
    "no path": Change([keyed("later", "a")], [keyed("later", None)], {"later": None}),
    "new route": Change(
        [keyed("later", "a", Route("order.*"))],
        [keyed("later", "a", Route("order.*"), Route("invoice.*", "stripe"))],
        {"later": "key a"},
    ),
    "two handlers": Change(
        [keyed("first", "a")],
        [keyed("later", "b"), keyed("last", "a")],
        {"first": "key a", "later": "key b", "last": "key a"},
    ),
}


async def test_a_receiver_uses_the_paths_that_the_ledger_has_now(
    database_url: str, subtests: pytest.Subtests
) -> None:
    for act, (name, (before, after, expected)) in product(ACTS, CHANGES.items()):
        with subtests.test(case := f"{act.__name__}, {name}"):
            assert await keys_of_next_event(database_url, case, act, before, after) == expected


async def test_nothing_is_recorded_without_the_keys_of_a_handler(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        opened(postgres_url, handlers=[keyed("known", "a")]) as receiver,
        opened(postgres_url, serving=False, handlers=[keyed("later", "b")]),
    ):
        monkeypatch.setattr(recording, "_MAX_RELOADS", 0)
        with pytest.raises(OutcomeUnknown):
            await record(receiver, paid("new", BODY), paid("other", BODY, type="order.new"))
        assert await receiver.events(EVERYTHING) == []
        monkeypatch.undo()
        await record(receiver, paid("new", BODY))
    assert len(keys(RawDatabase(postgres_url))) == 2


async def test_keys_need_no_further_statement_once_the_paths_are_known(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, statements = recording._run_with_retries, []

    async def count(*arguments: Any) -> Any:
        statements.append(arguments)
        return await run(*arguments)

    async with opened(postgres_url, handlers=[keyed("customer", "a")]) as store:
        monkeypatch.setattr(recording, "_run_with_retries", count)
        await record(store, paid("first", BODY), paid("second", BODY))
        await record(store, paid("third", BODY))
    assert len(statements) == 2


async def test_a_registration_forgets_the_paths_that_no_handler_has(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their keys would be read for nothing."""
    columns: list[Any] = []
    run = recording._run_with_retries

    async def note(*arguments: Any) -> Any:
        columns.append(arguments[2])
        return await run(*arguments)

    async with opened(postgres_url, handlers=[keyed("customer", "a")]) as store:
        await store.register(SOURCES, [keyed("customer", None)], [])
        monkeypatch.setattr(recording, "_run_with_retries", note)
        await record(store, paid("first", BODY))
    assert ["keys" in each for each in columns] == [False]
