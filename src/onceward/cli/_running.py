"""Run a service in the foreground, with a graceful shutdown on SIGTERM, SIGINT and SIGHUP."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from onceward.cli._exit_deadline import EXIT_GRACE_SECONDS, ExitDeadline
from onceward.cli._loop_watchdog import LoopWatchdog
from onceward.http.server.server import Server, allow_connections
from onceward.runtime.clock import SystemClock
from onceward.service import Service
from onceward.work.worker import Worker

OnStarted = Callable[[str | None], None]

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_service(service: Service, listener: socket.socket | None, on_started: OnStarted) -> None:
    """Run until a signal or an error. `on_started` receives a newly created admin token, if any.

    After a signal, the process ends within `drain_seconds` and a little more, even if its handlers
    do not stop.
    """
    deadline = ExitDeadline(SystemClock())
    uvloop.run(_run_to_end(service, listener, on_started, deadline))


async def _run_to_end(
    service: Service,
    listener: socket.socket | None,
    on_started: OnStarted,
    deadline: ExitDeadline,
) -> None:
    try:
        await _run(service, listener, on_started, deadline)
    except BaseException:
        deadline.close(exit_code=1)
        raise
    deadline.close(exit_code=0)


async def _run(
    service: Service,
    listener: socket.socket | None,
    on_started: OnStarted,
    deadline: ExitDeadline,
) -> None:
    # Created first, so that the service knows that this process runs its handlers.
    has_work = service.settings.workers > 0 and service.handlers
    worker = service.worker() if has_work else None
    await service.open(receives=listener is not None)
    watchdog = LoopWatchdog(SystemClock())
    try:
        token = await service.create_first_token() if listener else None
        server = _server(service) if listener else None
        _stop_on_signals(server, worker, deadline, service.settings.drain_seconds)
        on_started(token)
        _freeze_objects()
        watchdog.start()
        await _run_until_stopped(service, server, listener, worker)
    finally:
        watchdog.close()
        # The exit deadline looks for leftover coroutines, and libraries in C for leaked objects.
        gc.unfreeze()
        await service.close()


def _freeze_objects() -> None:
    """Keep the garbage collector from walking the objects of the start again and again.

    A full collection of the modules alone blocks the event loop for 50 ms.
    """
    gc.collect()
    gc.freeze()


def _server(service: Service) -> Server:
    allow_connections(service.settings.max_connections)
    return Server(service.app(), service.settings)


async def _run_until_stopped(
    service: Service,
    server: Server | None,
    listener: socket.socket | None,
    worker: Worker | None,
) -> None:
    """Run the server and the worker. When either ends or fails, stop the other gracefully.

    Raise LedgerReplaced if nothing can be saved any more, and NewerSchema if a worker is all that
    runs and can claim no more. A server stays: it responds 503, and its /readyz says why.
    """
    coroutines: list[Awaitable[None]] = []
    if server is not None and listener is not None:
        coroutines.append(server.serve(sockets=[listener]))
    if worker is not None:
        coroutines.append(worker.run())
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    losses = [asyncio.ensure_future(service.store.wait_until_lost())]
    if worker is not None and server is None:
        losses.append(asyncio.ensure_future(worker.wait_until_outdated()))
    await asyncio.wait([*tasks, *losses], return_when=asyncio.FIRST_COMPLETED)
    _stop(server, worker)
    await asyncio.gather(*tasks)
    for loss in losses:
        if loss.done():
            await loss
        loss.cancel()


def _stop_on_signals(
    server: Server | None, worker: Worker | None, deadline: ExitDeadline, drain_seconds: float
) -> None:
    loop = asyncio.get_running_loop()

    def stop(received: int, _: object) -> None:
        # A second signal kills the process: accepted events are already durable.
        signal.signal(received, signal.SIG_DFL)
        deadline.start(drain_seconds + EXIT_GRACE_SECONDS)
        loop.call_soon_threadsafe(_stop, server, worker)

    # Not loop.add_signal_handler: a blocked event loop would not call it.
    for stop_signal in STOP_SIGNALS:
        if signal.getsignal(stop_signal) is not signal.SIG_IGN:  # as nohup sets SIGHUP
            signal.signal(stop_signal, stop)


def _stop(server: Server | None, worker: Worker | None) -> None:
    if server is not None:
        server.stop()
    if worker is not None:
        worker.stop()
