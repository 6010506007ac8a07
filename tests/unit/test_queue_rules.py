"""The options for the order and the limits of a handler's jobs are checked at definition."""

import re
from typing import Any

import pytest

from onceward import Event, Inbox, Transaction
from onceward.errors import ConfigurationError
from onceward.model.jobs import QueueRules


async def credit(event: Event[Any], tx: Transaction) -> None:
    pass


def rules(**options: Any) -> QueueRules:
    inbox = Inbox("sqlite:///x.db")
    inbox.on("*", **options)(credit)
    return inbox.service().handlers["credit"].rules


def test_a_handler_has_no_order_and_no_limits_by_default() -> None:
    assert rules() == QueueRules(None, True, None, None)  # noqa: FBT003
    unset: dict[str, Any] = dict.fromkeys(("ordering_key", "on_head_failed", "concurrency", "rate"))
    assert rules(**unset) == rules()


def test_the_options_become_the_rules_of_the_handler() -> None:
    given = rules(
        ordering_key="data.object.id", on_head_failed="continue", concurrency=4, rate="100/m"
    )
    assert given == QueueRules("data.object.id", False, 4, 0.6)  # noqa: FBT003
    assert rules(ordering_key="id").holds_key
    assert rules(ordering_key="id", on_head_failed="hold").holds_key


RATES: list[tuple[str, float]] = [
        ("1/s", 1.0), ("4/s", 0.25), ("2.5/s", 0.4), ("0.5/m", 120.0), ("1/h", 3600.0),
        ("1/d", 86_400.0), ("1000000/s", 1e-6), ("007/s", 1 / 7),
    ]  # fmt: skip


def test_a_rate_is_the_time_between_two_jobs(subtests: pytest.Subtests) -> None:
    for rate, seconds in RATES:
        with subtests.test(rate=rate):
            assert rules(rate=rate).rate_interval_seconds == seconds


PATH = "use a path into the payload, such as 'data.object.id'"
RATE = "use a text such as '10/s', '100/m', '2.5/h' or '1/d'"
RANGE = "use a rate from one job in 365 days to 1000000/s"
COUNT = "use a whole number from 1 to 1000000"


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"ordering_key": 5}, f"ordering_key is 5; {PATH}"),
    ({"ordering_key": ["a", "b"]}, f"ordering_key is ['a', 'b']; {PATH}"),
    ({"ordering_key": ""}, "ordering_key is empty"),
    ({"ordering_key": "$.a.b"}, "ordering_key is '$.a.b'; write 'a.b'"),
    ({"ordering_key": "/a/b"}, "ordering_key is '/a/b'; write 'a.b'"),
    (
        {"ordering_key": "header:x"},
        "ordering_key is 'header:x'; it is read from the payload",
    ),
    ({"ordering_key": " a.b"}, "ordering_key is ' a.b', with a space at an end; write 'a.b'"),
    ({"ordering_key": "a" * 256}, "ordering_key is 256 bytes long; the limit is 255"),
    ({"ordering_key": "a\0"}, "ordering_key contains a NUL"),
    ({"ordering_key": "a..b"}, "ordering_key is 'a..b', which has an empty name"),
    ({"ordering_key": ".a"}, "ordering_key is '.a', which has an empty name"),
    ({"ordering_key": "json:a.b"}, "ordering_key is 'json:a.b'; write 'a.b'"),
    ({"ordering_key": "items[0].id"}, "write the position in a list as a number: 'items.0.id'"),
    (
        {"ordering_key": "id", "transaction": "shared"},
        "ordering_key does not work with transaction='shared': ",
    ),
    (
        {"on_head_failed": "hold"},
        "on_head_failed is only for handlers with ordering_key; add one, or remove it",
    ),
    (
        {"ordering_key": "id", "on_head_failed": "skip"},
        "on_head_failed is 'skip'; use 'hold' or 'continue'",
    ),
    (
        {"ordering_key": "id", "on_head_failed": ["hold"]},
        "on_head_failed is ['hold']; use 'hold' or 'continue'",
    ),
    ({"concurrency": 0}, f"concurrency is 0; {COUNT}"),
    ({"concurrency": True}, f"concurrency is True; {COUNT}"),
    ({"concurrency": 2.0}, f"concurrency is 2.0; {COUNT}"),
    ({"concurrency": "4"}, f"concurrency is '4'; {COUNT}"),
    ({"concurrency": 10**7}, f"concurrency is 10000000; {COUNT}"),
    ({"rate": 100}, f"rate is 100; {RATE}"),
    ({"rate": ""}, f"rate is empty; {RATE}"),
    ({"rate": "1" * 254 + "/s"}, f"rate is 256 bytes long; the limit is 255; {RATE}"),
    ({"rate": "100"}, f"rate is '100'; {RATE}"),
    ({"rate": "100/min"}, f"rate is '100/min'; {RATE}"),
    ({"rate": "100 / m"}, f"rate is '100 / m'; {RATE}"),
    ({"rate": "-1/s"}, f"rate is '-1/s'; {RATE}"),
    ({"rate": "1e3/s"}, f"rate is '1e3/s'; {RATE}"),
    ({"rate": "\N{ARABIC-INDIC DIGIT ONE}/s"}, RATE),
    ({"rate": "0/s"}, f"rate is '0/s'; {RANGE}"),
    ({"rate": "0.0/d"}, f"rate is '0.0/d'; {RANGE}"),
    ({"rate": "0.001/d"}, f"rate is '0.001/d'; {RANGE}"),
    ({"rate": "1000001/s"}, f"rate is '1000001/s'; {RANGE}"),
]


def test_an_option_that_cannot_work_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for options, fault in WRONG_OPTIONS:
        with subtests.test(options=options):
            with pytest.raises(ConfigurationError) as refused:
                rules(**options)
            (text,) = refused.value.faults
            assert re.match(r"handler 'credit' \(tests/unit/test_queue_rules.py:\d+\): ", text)
            assert fault in text
