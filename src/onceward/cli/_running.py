"""A service in the foreground: receiving, working, and an orderly end on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable

from onceward.http.server.server import Server
from onceward.service import Service
from onceward.work.worker import Worker

Started = Callable[[str | None], None]


async def run(service: Service, listener: socket.socket | None, started: Started) -> None:
    """Run until a signal or a fault; `started` is told the first admin token, if one was made."""
    await service.open()
    try:
        token = await service.create_first_token() if listener else None
        server = Server(service.app(), service.settings) if listener else None
        works = service.settings.workers > 0 and service.handlers
        worker = service.worker() if works else None
        _stop_on_signals(server, worker)
        started(token)
        await _until_stopped(server, listener, worker)
    finally:
        await service.close()


async def _until_stopped(
    server: Server | None, listener: socket.socket | None, worker: Worker | None
) -> None:
    """Whichever part ends first, for whatever reason, takes the other along in good order."""
    parts: list[Awaitable[None]] = []
    if server is not None and listener is not None:
        parts.append(server.serve(sockets=[listener]))
    if worker is not None:
        parts.append(worker.run())
    tasks = [asyncio.ensure_future(part) for part in parts]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    _stop(server, worker)
    await asyncio.gather(*tasks)


def _stop_on_signals(server: Server | None, worker: Worker | None) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)  # a second one ends the process at once; nothing is lost
        _stop(server, worker)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


def _stop(server: Server | None, worker: Worker | None) -> None:
    if server is not None:
        server.should_exit = True
    if worker is not None:
        worker.stop()
