"""A server that speaks enough of Redis's protocol to be used, and then replies anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Respond = Callable[[asyncio.StreamWriter, list[bytes]], Awaitable[None]]
"""Replies to one command."""


class HostileRedis:
    """Replies as an empty Redis does, until `respond` is set for a command."""

    def __init__(self) -> None:
        self.url = ""
        self.respond: dict[bytes, Respond] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until its end."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                command = await _read_command(reader)
                respond = self.respond.get(command[0])
                if respond is None:
                    writer.write(_honest_reply(command))
                else:
                    await respond(writer, command)
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _read_command(reader: asyncio.StreamReader) -> list[bytes]:
    count = int((await reader.readuntil(b"\r\n"))[1:])
    arguments = []
    for _ in range(count):
        length = int((await reader.readuntil(b"\r\n"))[1:])
        arguments.append((await reader.readexactly(length + 2))[:-2])
    return arguments


def _honest_reply(command: list[bytes]) -> bytes:
    if command[0] == b"MGET":
        return b"*%d\r\n" % (len(command) - 1) + b"$-1\r\n" * (len(command) - 1)
    return b"+OK\r\n"


@asynccontextmanager
async def hostile_redis(user: str = "") -> AsyncIterator[HostileRedis]:
    """Run a server. `user` is the part of its URL before the host."""
    hostile = HostileRedis()
    server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
    async with server:
        hostile.url = f"redis://{user}127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield hostile
        for task in hostile.tasks:
            task.cancel()
        await asyncio.gather(*hostile.tasks)


def constantly(reply: bytes) -> Respond:
    """Reply the same to each command."""

    async def respond(writer: asyncio.StreamWriter, _: list[bytes]) -> None:
        writer.write(reply)

    return respond
