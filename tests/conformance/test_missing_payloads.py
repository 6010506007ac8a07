"""Without its payload, an event is neither requeued nor routed; the refusal says what to do."""

import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from onceward.errors import NotInState
from onceward.model.archive import EventKey
from onceward.operate.restoring import restore_week
from onceward.ports import Store
from support.database import RawDatabase
from tests.archiving import TIME, WEEK, archived, drop_payloads, in_folder, moment
from tests.factories import ACT, EVERYTHING, HANDLERS, SOURCES, failed_job, lease


async def cancelled_job(store: Store, raw_db: RawDatabase, event_id: str) -> int:
    """Return a cancelled job of an event that was received long ago."""
    job = await failed_job(store, event_id)
    assert await store.cancel(job.id, ACT)
    for table in ("events", "payloads", "jobs"):
        raw_db.rows(f"UPDATE onceward.{table} SET received_at = {moment(raw_db, TIME)}")  # noqa: S608 - no outside data
    return job.id


async def requeue_error(store: Store, job: int) -> str:
    """Return why a job cannot be requeued. Nothing may have changed."""
    before = await store.audit(EVERYTHING)
    with pytest.raises(NotInState) as raised:
        await store.requeue(job, ACT)
    assert await store.job_status(job) == "cancelled"
    assert await store.audit(EVERYTHING) == before
    return str(raised.value)


async def test_a_job_whose_payload_was_dropped_cannot_be_requeued(
    store: Store, raw_db: RawDatabase
) -> None:
    job = await cancelled_job(store, raw_db, "evt_1")
    drop_payloads(raw_db)
    error = await requeue_error(store, job)
    assert f"Job {job} cannot be requeued: the payload of its event stripe:evt_1 was drop" in error
    assert "No recorded file of the archive has it" in error


@pytest.mark.parametrize("event_id", ["evt_1", "it's; rm -rf $HOME"])
async def test_the_refusal_names_the_command_that_restores_the_payload(
    store: Store, raw_db: RawDatabase, tmp_path: Path, event_id: str
) -> None:
    job = await cancelled_job(store, raw_db, event_id)
    archive = in_folder(tmp_path)
    await archived(store, archive)
    drop_payloads(raw_db)
    _, _, command = (await requeue_error(store, job)).partition("requeue again: ")
    words = shlex.split(command)
    assert words[:4] == ["onceward", "archive", "restore", WEEK.label]
    assert words[4:6] == ["--event", f"stripe:{event_id}"]
    await restore_week(store, archive, WEEK, ACT, key=EventKey("stripe", event_id))
    assert await store.requeue(job, ACT)
    assert (await lease(store)).jobs[0].body == b"{}"


async def test_the_refusal_of_a_route_names_the_command_as_well(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    await cancelled_job(store, raw_db, "evt_1")
    archive = in_folder(tmp_path)
    await archived(store, archive)
    drop_payloads(raw_db)
    await store.register(SOURCES, [*HANDLERS, replace(HANDLERS[0], name="late")], [])
    (event,) = await store.events(EVERYTHING)
    with pytest.raises(NotInState) as raised:
        await store.route_event(int(event.id), "late", ACT)
    _, _, command = str(raised.value).partition("then route again: ")
    assert command.startswith(f"onceward archive restore {WEEK} --event stripe:evt_1 --actor")
    await restore_week(store, archive, WEEK, ACT, key=EventKey("stripe", "evt_1"))
    assert await store.route_event(int(event.id), "late", ACT)


async def test_an_id_that_a_terminal_would_change_is_in_no_command(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    job = await cancelled_job(store, raw_db, "evt\n\x1b[2J")
    await archived(store, in_folder(tmp_path))
    drop_payloads(raw_db)
    error = await requeue_error(store, job)
    assert error.isprintable()
    assert "--event" not in error
    assert f"onceward archive restore {WEEK} --actor" in error
