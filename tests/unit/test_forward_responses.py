"""What the response to a forwarded event means."""

import time
from typing import Any

import pytest

from onceward.errors import EffectNotApplied, PermanentError, RetryLater
from onceward.model.retry import MAX_DELAY_SECONDS
from onceward.work.forwarding.client import Response
from onceward.work.forwarding.forward import Forward, _retry_after_seconds
from onceward.work.forwarding.target import Target, parse_target
from tests.factories import FakeClock, make_event
from tests.receiver import SECRET

REDIRECTED = "redirects are not followed: correct to="


async def send(response: Response) -> dict[str, int]:
    """Send an event to an app that has one response."""

    async def post(*_: Any, **options: Any) -> Response:
        assert options == {"allow_private": False, "seconds": 15.0}
        return response

    target = parse_target("https://app.example/hooks?token=hidden")
    assert isinstance(target, Target)
    forward = Forward(
        name="billing",
        target=target,
        secrets=[SECRET],
        timeout_seconds=15.0,
        allow_private=False,
        post=post,
        clock=FakeClock(),
    )
    return await forward.send(make_event(), message="fwd_1")


async def test_2xx_is_success(subtests: pytest.Subtests) -> None:
    for status in (200, 202, 204, 299):
        with subtests.test(status=status):
            assert await send(Response(status, "60")) == {"status": status}


FAILURES: list[tuple[Response, type[Exception], str]] = [
    (Response(300), EffectNotApplied, f"app.example responded 300; {REDIRECTED}"),
    (Response(307, "60"), EffectNotApplied, f"app.example responded 307; {REDIRECTED}"),
    (Response(400), EffectNotApplied, "app.example responded 400"),
    (Response(500, "60"), EffectNotApplied, "app.example responded 500"),
    (Response(999), EffectNotApplied, "app.example responded 999"),
    (
        Response(410, "60"),
        PermanentError,
        "app.example responded 410: it wants no more events; remove the forward",
    ),
    *(
        (
            Response(status),
            EffectNotApplied,
            f"app.example responded {status}; compare its secret with that of the forward",
        )
        for status in (401, 403)
    ),
    *(
        (Response(status, text), EffectNotApplied, f"app.example responded {status}")
        for status in (429, 503)
        for text in (None, "", "0", "-1", "1.5", "soon", "٣", "Thu, 01 Jan 1970 00:00:00 GMT")
    ),
    (Response(429, "60"), RetryLater, "app.example responded 429 and asked to wait 60 s"),
    (Response(503, "060"), RetryLater, "app.example responded 503 and asked to wait 60 s"),
    *(
        (
            Response(503, text),
            RetryLater,
            "app.example responded 503 and asked to wait 31622400 s",
        )
        for text in ("9" * 5_000, "Fri, 31 Dec 9999 23:59:59 GMT")
    ),
]


async def test_any_other_status_is_not_applied(subtests: pytest.Subtests) -> None:
    for response, error, text in FAILURES:
        with subtests.test(response=response):
            with pytest.raises(error) as raised:
                await send(response)
            assert (type(raised.value), str(raised.value)) == (error, text)
            if isinstance(raised.value, RetryLater):
                assert 0 < raised.value.seconds <= MAX_DELAY_SECONDS


def test_a_date_without_a_time_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        context.setenv("TZ", "XXX-5")  # a zone whose local time is not UTC
        time.tzset()
        seconds = _retry_after_seconds("Thu, 01 Jan 1970 00:01:00 -0000", now=0.0)
    time.tzset()
    assert seconds == 60
