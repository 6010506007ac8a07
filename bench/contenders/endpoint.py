"""The FastAPI endpoint that the contenders share: verify, decode, store, respond."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from psycopg_pool import AsyncConnectionPool

from bench.deliveries import PATH, SIGNATURE_HEADER, is_authentic

# Twice the concurrency of the workers, the same for every pool.
POOL_CONNECTIONS = 16

StoreEvent = Callable[[dict[str, Any], bytes], Awaitable[None]]
"""Stores an event, given as the decoded document and as the exact body."""

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def make_app(store: StoreEvent, lifespan: Lifespan | None = None) -> FastAPI:
    """Return an app that stores each authentic event before it responds with 202."""
    app = FastAPI(lifespan=lifespan)

    @app.post(PATH, status_code=202)
    async def receive(request: Request) -> JSONResponse:
        body = await request.body()
        if not is_authentic(body, request.headers.get(SIGNATURE_HEADER)):
            raise HTTPException(401)
        await store(json.loads(body), body)
        return JSONResponse({"accepted": True}, status_code=202)

    return app


def make_pool(database: str) -> AsyncConnectionPool:
    """Return a closed pool of autocommit connections."""
    return AsyncConnectionPool(
        database,
        min_size=POOL_CONNECTIONS,
        max_size=POOL_CONNECTIONS,
        kwargs={"autocommit": True},
        open=False,
    )


def pool_lifespan(pool: AsyncConnectionPool) -> Lifespan:
    """Return a lifespan that opens and closes a pool."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool:
            await pool.wait()
            yield

    return lifespan
