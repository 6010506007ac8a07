"""A value that becomes an id has one spelling, or every spelling of it is one id."""

import hmac

import pytest

from onceward.errors import RequestRefused
from onceward.sources.configure import make_source
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Jwt
from onceward.sources.source import Source

NOW = 1_760_000_000
SECRET = "a-secret-of-the-test"
BODY = b'{"id":"e1","type":"a"}'


def ids_of(source: Source, requests: list[Request]) -> set[str]:
    """Return the ids of the requests that are accepted."""
    ids = set()
    for request in requests:
        try:
            events = source.verify(request, NOW)
        except RequestRefused:
            continue
        assert isinstance(events, list)
        ids |= {identity.event_id for identity, *_ in events}
    return ids


@pytest.mark.parametrize("blanks", [b" ", b"\t", b" \t "])
def test_blanks_around_a_header_are_no_part_of_an_id(blanks: bytes) -> None:
    github = make_source("github", secrets=[SECRET])
    digest = hmac.digest(SECRET.encode(), BODY, "sha256").hex().encode()
    requests = [
        Request(Headers([(b"x-hub-signature-256", b"sha256=" + digest), delivery]), BODY)
        for delivery in [
            (b"x-github-delivery", before + b"x" + after)
            for before in (b"", blanks)
            for after in (b"", blanks)
        ]
    ]
    assert ids_of(github, requests) == {"x"}


def test_the_hash_of_a_token_does_not_depend_on_its_prefix() -> None:
    scheme = Jwt(at="header:Authorization", prefix="Bearer ", body_claim="hash")
    source = make_source("shop", scheme=scheme, secrets=[SECRET], id="hash:Authorization")
    outgoing = OutgoingRequest({}, BODY)
    scheme.sign(SECRET, outgoing, NOW)
    token = outgoing.headers["Authorization"].removeprefix("Bearer ")
    requests = [
        Request(Headers([(b"authorization", f"{prefix}{token}".encode())]), BODY)
        for prefix in ("Bearer ", "bearer ", "BEARER ", " Bearer ", "Bearer  ", "Bearer\t")
    ]
    assert len(ids_of(source, requests)) == 1
