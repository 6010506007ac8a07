"""A restore leaves time for receivers."""

from pathlib import Path
from typing import Any

import pytest

from onceward.operate import restoring
from onceward.operate.maintenance import MAX_PAUSE_SECONDS
from onceward.operate.restoring import restore_week
from onceward.ports import Store
from support.database import RawDatabase
from tests.archiving import WEEK, archived, drop_payloads, in_folder, record_at
from tests.factories import ACT, FakeClock, arrivals


async def test_a_restore_pauses_for_as_long_as_it_works(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite, a receiver in another process would not get the lock before its time is up."""
    clock = FakeClock()
    pauses: list[float] = []

    class SlowStore:
        """A store that takes a tenth of a second for a transaction, then ten seconds."""

        seconds = iter((0.1, 10.0))

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def restore_events(self, *args: Any) -> object:
            clock.seconds += next(self.seconds)
            return await store.restore_events(*args)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(restoring, "RESTORE_EVENTS", 1)
    monkeypatch.setattr(restoring, "_pause", pause)
    archive = in_folder(tmp_path)
    await record_at(store, raw_db, *arrivals(2))
    await archived(store, archive)
    drop_payloads(raw_db)
    slow: Any = SlowStore()
    assert (await restore_week(slow, archive, WEEK, ACT, clock=clock)).payloads == 2
    assert pauses == pytest.approx([0.1, MAX_PAUSE_SECONDS])
