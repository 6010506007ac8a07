"""What the FastAPI endpoints have in common: authenticate, decode, keep, answer."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from psycopg_pool import AsyncConnectionPool

from bench.deliveries import PATH, SIGNATURE_HEADER, is_authentic

# The same for all who pool: more than two cores keep busy, fewer than the senders.
POOL_CONNECTIONS = 16

Keep = Callable[[dict[str, Any], bytes], Awaitable[None]]
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def application(keep: Keep, lifespan: Lifespan | None = None) -> FastAPI:
    """A service that hands each authentic event to `keep`, and then answers 202."""
    app = FastAPI(lifespan=lifespan)

    @app.post(PATH, status_code=202)
    async def receive(request: Request) -> JSONResponse:
        body = await request.body()
        if not is_authentic(body, request.headers.get(SIGNATURE_HEADER)):
            raise HTTPException(401)
        await keep(json.loads(body), body)
        return JSONResponse({"accepted": True}, status_code=202)

    return app


def make_pool(database: str) -> AsyncConnectionPool:
    """Connections that commit each statement by itself, unless a block says otherwise."""
    return AsyncConnectionPool(
        database,
        min_size=POOL_CONNECTIONS,
        max_size=POOL_CONNECTIONS,
        kwargs={"autocommit": True},
        open=False,
    )


def pool_lifespan(pool: AsyncConnectionPool) -> Lifespan:
    """Open a pool with the service, and close it with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool:
            await pool.wait()
            yield

    return lifespan
