"""The inbox of the stage of outside effects: one handler for each policy."""

import os
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from onceward import (
    Applied,
    EffectNotApplied,
    Effects,
    Event,
    Inbox,
    NotApplied,
    StillUnknown,
    Transaction,
)
from prove import sabotage
from prove.outside.sink import FORWARDED, KEYED, SECRET

BARE = "bare"
VARIABLE = "PROVE_SINK"
"""The environment variable with the address of the sink."""

TIMEOUT_SECONDS = 0.6

inbox = Inbox()


class Order(msgspec.Struct):
    """The payload of an event. Two events may have the same key."""

    key: str


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    """Create the table that the checker reads: a row for each run that was committed."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS receipts (event varchar(255), path text, receipt text)"
    )


async def _post(path: str) -> str:
    async with httpx.AsyncClient(base_url=os.environ[VARIABLE], verify=False) as client:  # noqa: S501 - loopback
        return _receipt(await client.post(path))


def _receipt(response: httpx.Response) -> str:
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise EffectNotApplied("the sink refuses")
    response.raise_for_status()
    return response.text


async def ask_sink(_: str, path: str) -> Applied | NotApplied | StillUnknown:
    """Ask the sink whether it applied a call."""
    async with httpx.AsyncClient(base_url=os.environ[VARIABLE], verify=False) as client:  # noqa: S501 - loopback
        response = await client.get(path)
    if response.status_code == httpx.codes.NOT_FOUND:
        return NotApplied()
    return Applied(response.text) if response.is_success else StillUnknown()


@inbox.effect(timeout_seconds=TIMEOUT_SECONDS, retry_safe_for="1h")
async def call_keyed(path: str, *, idempotency_key: str) -> str:
    """Call the sink, which dedupes by the path, and so by the key."""
    assert path == f"/{idempotency_key.replace(':', '/')}"
    return await _post(path)


@inbox.effect(timeout_seconds=TIMEOUT_SECONDS, reconcile=ask_sink)
async def call_asked(path: str) -> str:
    """Call the sink, which can be asked."""
    return await _post(path)


@inbox.effect(timeout_seconds=TIMEOUT_SECONDS)
def call_bare(path: str) -> str:
    """Call the sink, of which only a person can find out. A thread cannot be interrupted."""
    return _receipt(httpx.post(os.environ[VARIABLE] + path, verify=False))  # noqa: S501 - loopback


CALLS: dict[str, Callable[..., Any]] = {
    KEYED: call_keyed,
    "asked": call_asked,
    BARE: call_bare,
}


@inbox.on("outside.*")
async def act(event: Event[Order], effects: Effects, tx: Transaction) -> None:
    """Call the sink once for a key, and store its receipt."""
    kind = event.type.removeprefix("outside.")
    path = f"/{kind}/{event.payload.key}"
    receipt = await effects.call(f"{kind}:{event.payload.key}", CALLS[kind], path)
    await tx.execute(
        "INSERT INTO receipts (event, path, receipt) VALUES (:event, :path, :receipt)",
        {"event": event.id, "path": path, "receipt": receipt},
    )


inbox.forward(
    f"{FORWARDED}.*",
    to=f"{os.environ.get(VARIABLE, 'http://127.0.0.1')}/{FORWARDED}",
    secret=SECRET,
    name=FORWARDED,
    timeout_seconds=TIMEOUT_SECONDS,
    allow_private=True,
)

sabotage.apply()
