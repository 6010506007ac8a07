"""Onceward as its documentation says: serve to receive, work to work, nothing turned off."""

import os
import sqlite3

import psycopg

from bench.contenders.interface import PLACE_VARIABLE, Place
from bench.effects import make_tables, sqlite_file
from onceward.cli import main

APP = "bench.contenders.inbox:inbox"


class Program:
    """The onceward command."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def prepare(self) -> None:
        """Migrate, and make the handler's tables."""
        main(["migrate", "--database", self._place.database], standalone_mode=False)
        make_tables(self._place.database)

    def serve(self) -> None:
        """Receive; with the workers of the same process only if so told."""
        workers = self._place.concurrency if self._place.is_working else 0
        self._run("serve", "--port", str(self._place.port), "--workers", str(workers))

    def work(self) -> None:
        """Work; on SQLite that is the serving process, which nobody calls."""
        if self._place.database.startswith("sqlite:"):
            self._run("serve", "--port", "0", "--workers", str(self._place.concurrency))
        else:
            self._run("work", "--workers", str(self._place.concurrency))

    def received(self) -> set[str]:
        """What the ledger holds."""
        if self._place.database.startswith("sqlite:"):
            with sqlite3.connect(sqlite_file(self._place.database), timeout=10) as file:
                return {event_id for (event_id,) in file.execute("SELECT event_id FROM events")}
        with psycopg.connect(self._place.database) as connection:
            rows = connection.execute("SELECT event_id FROM onceward.events")
            return {event_id for (event_id,) in rows}

    def _run(self, command: str, *options: str) -> None:
        os.environ[PLACE_VARIABLE] = self._place.to_json()
        if self._place.lease_seconds is not None:
            os.environ["ONCEWARD_LEASE_SECONDS"] = str(self._place.lease_seconds)
        main([command, APP, "--json", "--database", self._place.database, *options])
