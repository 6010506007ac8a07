"""The memory of arriving bodies is counted once, and freed once."""

import pytest

from onceward.errors import Overloaded
from onceward.http.bodies import BodyReader
from onceward.http.errors import HttpError
from onceward.settings import Settings
from onceward.sources.request import Headers

LIMIT = 1_024
NO_HEADERS = Headers([])


@pytest.fixture
def reader() -> BodyReader:
    return BodyReader(Settings(max_body_bytes=LIMIT, max_pending_bytes=2 * LIMIT))


def test_a_body_that_is_taken_and_discarded_frees_its_memory_once(reader: BodyReader) -> None:
    for _ in range(5):  # as a request whose signature is rejected
        body = reader.start(NO_HEADERS)
        body.add(b"x" * LIMIT)
        assert body.take() == b"x" * LIMIT
        body.discard()
    for _ in range(2):
        reader.start(NO_HEADERS).add(b"x" * LIMIT)
    with pytest.raises(Overloaded):
        reader.start(NO_HEADERS).add(b"x")


def test_a_declared_length_that_is_no_number_within_the_limit_is_refused(
    reader: BodyReader, subtests: pytest.Subtests
) -> None:
    for length in (b"1025", b"9" * 5_000, b"-1", b"1_0", b"many", b""):
        with subtests.test(length=length):
            with pytest.raises(HttpError) as refusal:
                reader.start(Headers([(b"content-length", length)]))
            assert refusal.value.status == 413


def test_a_declared_length_within_the_limit_is_accepted(
    reader: BodyReader, subtests: pytest.Subtests
) -> None:
    for length in (b"0", b"1024", b"0001024", b"1024 "):
        with subtests.test(length=length):
            assert reader.start(Headers([(b"content-length", length)])).take() == b""
