"""Filters are checked at definition, and compare what a payload has exactly."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from enum import StrEnum
from fractions import Fraction
from functools import partial, wraps
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Event, Inbox, Transaction
from onceward.errors import ConfigurationError, StoreBlocked
from onceward.work.definition.filters import filter_text, make_filter, passes
from onceward.work.definition.handlers import Handler
from onceward.work.payloads.payload import UNDECODABLE, read_document

JSON = b'{"content-type":"application/json"}'


async def credit(event: Event[Any], tx: Transaction) -> None:
    pass


def handler(when: Any, **options: Any) -> Handler:
    inbox = Inbox("sqlite:///x.db")
    inbox.on("*", when=when, **options)(credit)
    return inbox.service().handlers["credit"]


def matches(when: Any, document: object) -> bool:
    """Return whether a payload passes a filter, on its way through JSON."""
    body = json.dumps(document).encode()
    return passes(make_filter({"when": when}), read_document("stripe", JSON, body))


COMPARISONS: list[tuple[Any, object, bool]] = [
    ({"a": "x"}, {"a": "x"}, True),
    ({"a": "x"}, {"a": "X"}, False),
    ({"a": "x"}, {"a": "x "}, False),
    ({"a": "x"}, {}, False),
    ({"a": None}, {"a": None}, True),
    ({"a": None}, {}, False),
    ({"a": None}, {"a": 0}, False),
    ({"a.b": None}, {"a": None}, False),
    ({"a": 1}, {"a": 1}, True),
    ({"a": 1}, {"a": 1.0}, True),
    ({"a": 1.0}, {"a": 1}, True),
    ({"a": 1}, {"a": "1"}, False),
    ({"a": 1}, {"a": True}, False),
    ({"a": True}, {"a": 1}, False),
    ({"a": True}, {"a": True}, True),
    ({"a": False}, {"a": 0}, False),
    ({"a": False}, {"a": None}, False),
    ({"a": ""}, {"a": ""}, True),
    ({"a": ""}, {"a": None}, False),
    ({"a": 0.1}, {"a": 0.1}, True),
    ({"a": 2**63}, {"a": 2**63}, True),
    ({"a": 2**53 + 1}, {"a": 2**53}, False),
    ({"a": ["x", 1]}, {"a": 1}, True),
    ({"a": ("x", 1)}, {"a": "x"}, True),
    ({"a": ["x", 1]}, {"a": "1"}, False),
    ({"a": ["x", None]}, {}, False),
    ({"a": "x"}, {"a": ["x"]}, False),
    ({"a": "x"}, {"a": {"x": 1}}, False),
    ({"a.0.b": "x"}, {"a": [{"b": "x"}]}, True),
    ({"a.0": "x"}, {"a": {"0": "x"}}, True),
    ({"a.1": "x"}, {"a": ["x"]}, False),
    ({"a": "x", "b": 2}, {"a": "x", "b": 2}, True),
    ({"a": "x", "b": 2}, {"a": "x", "b": 3}, False),
    ({"a": "x", "b": 2}, {"a": "x"}, False),
    ({"a": "x"}, None, False),
    ({"0": "x"}, ["x"], True),
    ({"a": "é\N{SNOWMAN}\0"}, {"a": "é\N{SNOWMAN}\0"}, True),
]


def test_a_filter_compares_exactly(subtests: pytest.Subtests) -> None:
    for when, document, is_match in COMPARISONS:
        with subtests.test(when=when, document=document):
            assert matches(when, document) is is_match


def test_the_payload_of_an_ingested_event_and_of_a_form_is_compared() -> None:
    text = make_filter({"when": {"a": "1"}})
    assert passes(text, read_document("ingest", JSON, b'{"a": "2", "payload": {"a": "1"}}'))
    form = b'{"content-type":"application/x-www-form-urlencoded"}'
    assert passes(text, read_document("stripe", form, b"a=1&b=2"))
    assert not passes(make_filter({"when": {"a": 1}}), read_document("stripe", form, b"a=1"))


def test_a_payload_that_cannot_be_decoded_passes_so_that_its_job_fails(
    subtests: pytest.Subtests,
) -> None:
    for body in (b"", b"{", b'{"a": "x"', b"\xff", b"[" * 100_000, b'{"a": NaN}'):
        with subtests.test(body=body):
            document = read_document("stripe", JSON, body)
            assert document is UNDECODABLE
            assert passes(make_filter({"when": {"a": "x"}}), document)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.floats(allow_nan=False, allow_infinity=False),
)
names = st.sampled_from(["a", "b", "0", "1"])
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
paths = st.lists(names, min_size=1, max_size=3).map(".".join)


def reference(when: dict[str, list[Any]], document: Any) -> bool:
    """Decide as the documentation says it: every path is there and has one of the values."""
    return all(
        any(_tagged(found) == _tagged(value) for found in _at(document, path) for value in values)
        for path, values in when.items()
    )


def _at(document: Any, path: str) -> list[Any]:
    """Return the value at a path in a list, which is empty without it."""
    found = [document]
    for name in path.split("."):
        (place,) = found
        if isinstance(place, list):
            found = place[int(name) :][:1] if name.isdigit() else []
        else:
            found = [place[name]] if isinstance(place, dict) and name in place else []
        if not found:
            return []
    return found


def _tagged(value: Any) -> tuple[str, Any]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", Fraction(value)
    return type(value).__name__, value if isinstance(value, str | bool) else repr(value)


@given(
    document=documents,
    when=st.dictionaries(paths, st.lists(scalars, min_size=1, max_size=3), min_size=1, max_size=2),
    data=st.data(),
)
def test_the_semantics_hold_for_every_json(
    document: Any, when: dict[str, list[Any]], data: st.DataObject
) -> None:
    path = next(iter(when))
    if found := [value for value in _at(document, path) if not isinstance(value, dict | list)]:
        when[path] = data.draw(st.permutations([*when[path], *found]))
    try:
        document = json.loads(json.dumps(document).encode())
        is_decodable = read_document("stripe", JSON, json.dumps(document).encode())
    except UnicodeEncodeError:
        return
    expected = is_decodable is UNDECODABLE or reference(when, is_decodable)
    assert matches(when, document) is expected


@given(when=st.dictionaries(paths, st.lists(scalars, min_size=1, max_size=3), min_size=1))
def test_equal_filters_are_the_same_text(when: dict[str, list[Any]]) -> None:
    turned = {path: values[::-1] * 2 for path, values in reversed(when.items())}
    assert make_filter({"when": when}) == make_filter({"when": turned})
    assert make_filter({"when": when}).isascii()


def test_the_filter_is_part_of_every_route() -> None:
    when = {"b": [2, 1.0, 1], "a": None}
    inbox = Inbox("sqlite:///x.db")
    inbox.on("x", "y.*", when=when)(credit)
    built = inbox.service().handlers["credit"]
    assert {route.filter for route in built.routes} == {'{"a":[null],"b":[1,2]}'}
    assert built.condition is None
    assert filter_text(built.filter) == "a is None and b is 1 or 2"


def test_members_of_an_enum_are_texts() -> None:
    class Status(StrEnum):
        PAID = "paid"

    assert matches({"a": Status.PAID}, {"a": "paid"})
    assert matches({"a": [Status.PAID, "x"]}, {"a": "paid"})


def test_a_filter_of_another_version_blocks_the_receiver(subtests: pytest.Subtests) -> None:
    for text in [
        *("x", "[]", "null", '{"a": 1}', '{"a": "paid"}', '{"a": []}', '{"a": [[]]}'),
        *('{"a": [{}]}', '{"a": {"not": ["open"]}}', '{"a[].b": ["paid"]}'),
    ]:
        with (
            subtests.test(text=text),
            pytest.raises(StoreBlocked, match="a newer version registered it"),
        ):
            passes(text, {})


# Refusals.


def wrong_count() -> bool:
    return True


def generator(event: object) -> Iterator[bool]:
    yield bool(event)


async def async_generator(event: object) -> AsyncIterator[bool]:
    yield bool(event)


async def wanted(event: Event[Any]) -> bool:
    return bool(event)


@wraps(wanted)
def wrapped(event: Event[Any]) -> Any:
    return wanted(event)


class Wanting:
    def __call__(self, event: object) -> bool:
        return bool(event)


LONGEST = "x" * (2000 - len('{"a":[""]}'))
VALUES = "use a text, a number, True, False or None, or a list of them"
PATH = "use a path into the payload, such as 'data.status'"


FAULTY_FILTERS: list[tuple[Any, str]] = [
    (5, "when is 5; use a mapping such as {'data.status': 'paid'}, or a function"),
    ("data.status", "when is 'data.status'; use a mapping"),
    ([("a", 1)], "when is [('a', 1)]; use a mapping"),
    (True, "when is True; use a mapping"),
    (Wanting, "when is a class; use a mapping"),
    (Wanting(), "use a mapping such as"),
    ({}, "when is empty: every event would match"),
    ({5: "x"}, f"when is 5; {PATH}"),
    ({"": "x"}, f"when is empty; {PATH}"),
    ({"$.a": "x"}, "a path of when is '$.a'; write 'a'"),
    ({"a[0]": "x"}, "write the position in a list as a number: 'a.0'"),
    ({"a" * 256: "x"}, "when is 256 bytes long; the limit is 255"),
    ({"a": []}, "when['a'] is an empty list, which nothing matches"),
    ({"a": {"b": 1}}, "when['a'] is an object; write the path of its member: 'a.member'"),
    ({"a": [{"b": 1}]}, "when['a'] is an object"),
    ({"a": {1}}, f"when['a'] is {{1}}; {VALUES}"),
    ({"a": b"x"}, f"when['a'] is b'x'; {VALUES}"),
    ({"a": [["x"]]}, f"when['a'] is ['x']; {VALUES}"),
    ({"a": float("nan")}, f"when['a'] is nan; {VALUES}"),
    ({"a": float("inf")}, f"when['a'] is inf; {VALUES}"),
    ({"a": 10**5000}, f"when['a'] is a number of 16610 bits; {VALUES}"),
    ({"a": lambda value: value}, VALUES),
    ({"a": LONGEST + "x"}, "when is 2001 bytes long as JSON; the limit is 2000; use a"),
    ({"a": ["x" * 100] + [f"{'x' * 100}{n}" for n in range(20)]}, "the limit is 2000; use a"),
    (wrong_count, "when must take one argument, the event; write lambda event: …"),
    (lambda event, tx: bool(event and tx), "when must take one argument, the event"),
    (generator, "when: the function is a generator: a call would not run its body"),
    (async_generator, "when: the function is a generator"),
    (wrapped, "when: an async function is wrapped in a sync one, which does not await its"),
]


def test_a_filter_that_cannot_work_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for when, fault in FAULTY_FILTERS:
        with subtests.test(fault):
            with pytest.raises(ConfigurationError, match=re.escape(fault)) as raised:
                handler(when)
            assert str(raised.value).startswith("handler 'credit' (")


def test_a_filter_of_2000_bytes_is_accepted() -> None:
    assert len(handler({"a": LONGEST}).filter) == 2000


def test_a_function_cannot_filter_jobs_that_share_a_transaction() -> None:
    fault = "when=function does not work with transaction='shared': each job must be able to end"
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        handler(lambda event: event.id == "a", transaction="shared")
    assert handler({"a": 1}, transaction="shared").shares_transaction


FUNCTIONS = {
    "a lambda": lambda event: event.id == "a",
    "an async function": wanted,
    "a partial": partial(lambda kind, event: isinstance(event, kind), Event),
    "a method": Wanting().__call__,
}


def test_functions_of_every_kind_are_accepted(subtests: pytest.Subtests) -> None:
    for name, when in FUNCTIONS.items():
        with subtests.test(name):
            built = handler(when)
            assert built.filter == ""
            assert built.condition is not None
            assert built.condition.is_async is (when is wanted)


def test_a_handler_wants_every_event_by_default() -> None:
    assert (handler(None).filter, handler(None).condition) == ("", None)


def test_an_unknown_policy_for_unknown_types_is_refused() -> None:
    inbox = Inbox("sqlite:///x.db")
    with pytest.raises(
        ConfigurationError, match="unknown_types is 'hold'; use 'ignore' or 'review'"
    ):
        inbox.source("shop", preset="hmac", unsigned=True, unknown_types="hold")  # type: ignore[arg-type] # refused
    inbox.source("shop", preset="hmac", unsigned=True, unknown_types="review")
    assert inbox.sources["shop"].reviews_unknown
