"""A pause that everybody forgot is in the log and in ``/readyz`` of each process."""

from typing import Any

import pytest

from onceward import Event, Inbox, service
from onceward.model.admin import Pausable
from support.processes import eventually_async
from tests.factories import ACT
from tests.inprocess import run_inbox


async def test_a_process_warns_while_a_source_is_paused(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "HEARTBEAT_SECONDS", 0.05)
    inbox = Inbox()

    @inbox.on("paid")
    async def credit(event: Event[Any]) -> None: ...

    async with run_inbox(inbox, database_url) as running:
        await running.store.pause(Pausable.SOURCE, "ingest", ACT)
        (warning,) = await eventually_async(running.warnings, "the process warns")
        assert warning.startswith("A source is paused by an operator (since ")
        assert "Source 'ingest' is paused by an operator" in caplog.text
        await running.store.resume(Pausable.SOURCE, "ingest", ACT)

        async def is_well() -> bool:
            return not await running.warnings()

        await eventually_async(is_well, "the warning ends with the pause")
