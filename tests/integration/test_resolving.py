"""A person's answer about an effect, over HTTP."""

from typing import Any

import httpx
import pytest

from onceward import Effects, Inbox
from onceward.model.effects import EffectStatus
from support.database import RawDatabase
from tests.inprocess import RunningInbox, run_inbox
from tests.outside import pass_deadline

ACTION = {"actor": "ann", "reason": "found in the dashboard"}


async def lose() -> None:
    raise ConnectionResetError("lost")


def make_inbox() -> Inbox:
    inbox = Inbox()

    @inbox.on("order.placed")
    async def bill(effects: Effects) -> None:
        await effects.call("charge:1", lose)

    return inbox


async def resolve(bench: RunningInbox, **answer: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=bench.service.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        return await http.post("/admin/effects/1/resolve", json=ACTION | answer)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"outcome": "happened", "results": {"receipt": "r_1"}}, "did you mean 'result'?"),
        ({"outcome": "happened", "result": 1, "call": 1}, "did you mean 'call_no'?"),
    ],
    ids=["misspelled result", "misspelled call_no"],
)
async def test_an_answer_that_would_lose_the_result_is_refused(
    database_url: str, answer: dict[str, Any], reason: str
) -> None:
    """The handlers would get None, and the answer cannot be changed."""
    async with run_inbox(make_inbox(), database_url) as bench:
        await bench.run_event("order.placed")
        pass_deadline(RawDatabase(database_url))
        response = await resolve(bench, **answer)
        (effect,) = await bench.effects()
    assert response.status_code == 422
    assert reason in response.json()["message"]
    assert effect.status is EffectStatus.UNKNOWN
