"""Onceward as documented: `onceward serve` receives, `onceward work` runs the handlers."""

import os
import sqlite3

import psycopg

from bench.contenders.interface import CONFIG_VARIABLE, ContenderConfig
from bench.workloads import create_handler_tables, is_sqlite, sqlite_file
from onceward.cli import main

APP = "bench.contenders.onceward_app:inbox"


class Program:
    """The onceward command, with default settings but for the number of workers."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config

    def create_tables(self) -> None:
        """Migrate, and create the handler's tables."""
        main(["migrate", "--database", self._config.database], standalone_mode=False)
        create_handler_tables(self._config.database)

    def serve(self) -> None:
        """Receive until killed; run handlers too if `has_worker` is set."""
        workers = self._config.concurrency if self._config.has_worker else 0
        self._run("serve", workers, "--port", str(self._config.port))

    def work(self) -> None:
        """Run handlers until killed; on SQLite only the serving process may do that."""
        if is_sqlite(self._config.database):
            self._run("serve", self._config.concurrency, "--port", "0")
        else:
            self._run("work", self._config.concurrency)

    def maintain(self) -> None:
        """Purge and drop what the settings of retention allow."""
        self._set_environment()
        main(["maintain", APP, "--database", self._config.database], standalone_mode=False)

    def received_ids(self) -> set[str]:
        """Return the event ids in the ledger."""
        if is_sqlite(self._config.database):
            with sqlite3.connect(sqlite_file(self._config.database), timeout=10) as file:
                return {event_id for (event_id,) in file.execute("SELECT event_id FROM events")}
        with psycopg.connect(self._config.database) as connection:
            rows = connection.execute("SELECT event_id FROM onceward.events")
            return {event_id for (event_id,) in rows}

    def _run(self, command: str, workers: int, *options: str) -> None:
        self._set_environment()
        database = ["--database", self._config.database]
        main([command, APP, "--json", "--workers", str(workers), *database, *options])

    def _set_environment(self) -> None:
        os.environ[CONFIG_VARIABLE] = self._config.to_json()
        if self._config.lease_seconds is not None:
            os.environ["ONCEWARD_LEASE_SECONDS"] = str(self._config.lease_seconds)
        if self._config.redis_port:
            os.environ["ONCEWARD_REDIS"] = f"redis://127.0.0.1:{self._config.redis_port}"
        for setting, days in self._config.retention.items():
            os.environ[f"ONCEWARD_{setting.upper()}"] = str(days)
