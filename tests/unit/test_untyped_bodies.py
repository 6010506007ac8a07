"""The first body without a type shows whether a source gets another format than it reads."""

import pytest

from onceward.receive.untyped_bodies import UntypedBodies
from onceward.sources.configure import make_source
from onceward.sources.source import Source
from tests.factories import arrival

IN_JSON = make_source("stripe", secrets=["whsec_0123456789abcdef"])
IN_HEADER = make_source("shopify", secrets=["a-secret-of-shopify-012345"])


BODIES: list[tuple[Source, bytes, set[str]]] = [
    (IN_JSON, b"a=1", {"stripe"}),
    (IN_JSON, b"[" * 10_000, {"stripe"}),
    (IN_JSON, b"{}", set()),
    (IN_HEADER, b"a=1", set()),
]


def test_a_source_that_reads_json_and_gets_none_is_known(subtests: pytest.Subtests) -> None:
    for source, body, expected in BODIES:
        with subtests.test(source=source.name, body=body[:24]):
            bodies = UntypedBodies()
            bodies.look_at(
                source, [arrival(type="invoice.paid", body=b"a=1"), arrival(type="", body=body)]
            )
            assert bodies.not_json == expected


def test_the_first_body_decides() -> None:
    bodies = UntypedBodies()
    for body in (b"{}", b"a=1"):
        bodies.look_at(IN_JSON, [arrival(type="", body=body)])
    assert bodies.not_json == set()
