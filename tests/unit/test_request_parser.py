"""The parser of requests: its limits on everything that is no body, and what a request keeps."""

import pytest

from onceward.errors import RequestRefused
from onceward.http.errors import HttpError
from onceward.http.server.request_parser import IncomingRequest, RequestParser
from onceward.settings import Settings
from tests.cpu_time import within

LIMIT = 300
CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def parse(*parts: bytes) -> list[IncomingRequest]:
    """Return the requests in some parts, each of which is fed by itself."""
    parser = RequestParser(Settings(max_header_bytes=LIMIT, max_headers=5))
    for part in parts:
        parser.feed(part)
    return list(parser.requests)


def head(url_bytes: int, header_bytes: int) -> bytes:
    """Return a head whose target and headers have these sizes."""
    value = b"v" * (header_bytes - len(b"hostxa"))
    return b"GET /%b HTTP/1.1\r\nhost: x\r\na: %b\r\n\r\n" % (b"u" * (url_bytes - 1), value)


@pytest.mark.parametrize("url_bytes", [1, 150, LIMIT - 10])
def test_target_and_headers_have_one_limit(url_bytes: int) -> None:
    (request,) = parse(head(url_bytes, LIMIT - url_bytes))
    assert request.is_complete
    for too_large in (
        head(url_bytes + 1, LIMIT - url_bytes),
        head(url_bytes, LIMIT - url_bytes + 1),
    ):
        with pytest.raises(HttpError) as caught:
            parse(too_large)
        assert caught.value.status == 431


def test_the_head_does_not_count_toward_the_framing_of_the_body() -> None:
    large_head = CHUNKED.replace(b"host", b"a: %b\r\nhost" % (b"v" * 200))
    (request,) = parse(large_head, b"1;%b\r\nx\r\n" % (b"e" * 150), b"0\r\n\r\n")
    assert (request.is_complete, request.chunks) == (True, [b"x"])


def test_trailers_do_not_count_toward_the_next_head() -> None:
    trailer = b"0\r\nt: %b\r\n\r\n" % (b"v" * 200)
    following = head(100, 100)
    first, second = parse(CHUNKED, trailer, following[:150], following[150:])
    assert first.is_complete
    assert second.is_complete


def test_trailers_are_no_headers_of_any_request() -> None:
    trailers = b"1\r\nx\r\n0\r\nauthorization: Bearer t\r\n\r\n"
    for parts in ([CHUNKED, trailers, head(1, 50)], [CHUNKED + trailers + head(1, 50)]):
        first, second = parse(*parts)
        assert first.headers.get(b"authorization") is None
        assert second.headers.get(b"authorization") is None
        assert [name for name, _ in second.headers.pairs] == [b"host", b"a"]


@pytest.mark.parametrize("name", [b"Connection", b"proxy-connection"])
@pytest.mark.parametrize("offer", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
def test_a_trailer_cannot_end_the_connection(name: bytes, offer: bytes) -> None:
    """The parser would obey it, and refuse the next sender of a proxy that passed it on."""
    parser = RequestParser(Settings())
    parser.feed(CHUNKED.removesuffix(b"\r\n") + offer + b"\r\n")
    with pytest.raises(RequestRefused, match="A trailer cannot end the connection"):
        parser.feed(b"0\r\n" + name + b": close\r\n\r\n")


@pytest.mark.parametrize(
    "endless", [b"0\r\nt: " + b"v" * 50, b"1;" + b"e" * 50], ids=["trailer", "chunk-extension"]
)
def test_a_large_body_earns_no_room_for_endless_framing(endless: bytes) -> None:
    body = b"400\r\n%b\r\n" % (b"x" * 0x400)
    with pytest.raises(RequestRefused):
        parse(CHUNKED, body, endless, *([b"v" * 50] * 10))


def test_chunks_of_one_byte_are_accepted() -> None:
    (request,) = parse(CHUNKED, *([b"1\r\nx\r\n" * 20] * 50), b"0\r\n\r\n")
    assert (request.is_complete, request.body_bytes) == (True, 1_000)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_the_missing_part_of_a_body_is_known(size: int) -> None:
    (request,) = parse(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n", b"abc"[:size])
    assert (request.missing_bytes, request.is_complete) == (3 - size, size == 3)
    (chunked,) = parse(CHUNKED)
    assert chunked.missing_bytes == 0


EXPECTATIONS: list[tuple[str, int, str, bool]] = [
    ("1.1", 3, "100-continue", True),
    ("1.1", 3, "100-Continue", True),
    ("1.1", 3, "other", False),
    ("1.1", 0, "100-continue", False),
    ("1.0", 3, "100-continue", False),
]


def test_only_a_client_that_waits_gets_permission(subtests: pytest.Subtests) -> None:
    for version, length, expected, waits in EXPECTATIONS:
        with subtests.test(version=version, length=length, expected=expected):
            fields = f"host: x\r\ncontent-length: {length}\r\nexpect: {expected}"
            (request,) = parse(f"POST / HTTP/{version}\r\n{fields}\r\n\r\n".encode())
            assert request.expects_continue == waits


def test_an_old_client_needs_no_host() -> None:
    (request,) = parse(b"GET / HTTP/1.0\r\n\r\n")
    assert (request.version, request.keeps_alive) == ("1.0", False)
    with pytest.raises(RequestRefused, match="Host is missing"):
        parse(b"GET / HTTP/1.1\r\n\r\n")


GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n\r\n\r\n"
CHUNKS = CHUNKED + b"4\r\n\r\n\r\n\r\n0\r\n\r\n"
OFFER = POST.replace(b"host", b"connection: upgrade\r\nupgrade: h2c\r\nhost")
LENIENT = [
    GET.replace(b"HTTP/1.1", b"RTSP/1.0"),
    GET.replace(b"HTTP/1.1", b"ICE/1.0"),
    GET.replace(b"GET", b"SOURCE").replace(b"HTTP/1.1", b"ICE/1.0"),
    GET.replace(b"GET ", b"GET  "),
    GET.replace(b" HTTP", b"  HTTP"),
    *(bare + GET for bare in (b"\r", b"\n", b"\r\r\n", b"\n\r\n", b"\r\n\n", b"\r\n\r", b" ")),
]


def test_a_first_line_is_read_strictly_wherever_it_is_cut(subtests: pytest.Subtests) -> None:
    for before in (b"", b"\r\n", GET, POST, CHUNKS, OFFER):
        for lenient in LENIENT:
            data = before + lenient
            for cut in range(len(data)):
                with subtests.test(before=before, lenient=lenient, cut=cut):
                    with pytest.raises(HttpError) as caught:
                        parse(data[:cut], data[cut:])
                    assert caught.value.status == 400


def test_empty_lines_before_a_request_are_ignored_wherever_they_are_cut(
    subtests: pytest.Subtests,
) -> None:
    for before in (GET, POST, CHUNKS, OFFER):
        data = b"\r\n" + before + b"\r\n\r\n" + GET + b"\r\n"
        for cut in range(len(data)):
            with subtests.test(before=before, cut=cut):
                first, second = parse(data[:cut], data[cut:])
                assert b"".join(first.chunks) == (b"" if before == GET else b"\r\n\r\n")
                assert second.is_complete


def test_endless_empty_lines_are_refused() -> None:
    with pytest.raises(HttpError) as caught:
        parse(*[b"\r\n" * 10] * LIMIT)
    assert caught.value.status == 431


CHUNK_BYTES = 1024 * 1024
CHUNKED_BODIES = {
    "one of line breaks": b"%x\r\n%b\r\n" % (CHUNK_BYTES, b"\r\n" * (CHUNK_BYTES // 2)),
    "of two bytes": b"2\r\n\r\n\r\n" * (CHUNK_BYTES // 7),
    "of one byte, with zeros": b"001\r\na\r\n" * (CHUNK_BYTES // 8),
    "of one byte, with extensions": b"1;a=b\r\na\r\n" * (CHUNK_BYTES // 10),
}


@pytest.mark.parametrize("chunks", CHUNKED_BODIES.values(), ids=CHUNKED_BODIES)
def test_the_content_of_chunks_costs_nothing(chunks: bytes) -> None:
    def parse() -> RequestParser:
        parser = RequestParser(Settings())
        for part in (CHUNKED, chunks, b"0\r\n\r\n"):
            parser.feed(part)
        return parser

    assert within(0.1, parse).requests[0].is_complete


def test_an_upgrade_offer_with_chunks_is_received_wherever_it_is_cut(
    subtests: pytest.Subtests,
) -> None:
    """Its first chunk is no request line: HTTP clients offer h2c with bodies of any framing."""
    offer = CHUNKS.replace(b"host", b"connection: upgrade\r\nupgrade: h2c\r\nhost")
    data = offer + GET
    for cut in range(len(data)):
        with subtests.test(cut=cut):
            first, second = parse(data[:cut], data[cut:])
            assert (b"".join(first.chunks), first.is_complete) == (b"\r\n\r\n", True)
            assert second.is_complete
