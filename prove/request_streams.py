"""Streams of HTTP requests made from a seed: plain ones, odd ones and damaged ones.

A stream is what one sender writes to one connection. Most bodies look like requests, so that a
server that loses count of the bytes finds a message where none was sent.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

PLAIN = "plain"
DAMAGED = "damaged bytes"
CRLF = b"\r\n"
PLAIN_SHARE = 0.5
DAMAGED_SHARE = 0.2
SECOND_ODDITY_SHARE = 0.2

SMUGGLED = b"POST /webhooks/smuggled HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
OFFER = b"\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + SMUGGLED
BODIES = (
    b"", b"{}", b'{"type":"order.paid"}', b"\r\n\r\n", b"0\r\n\r\n", b"x" * 300, SMUGGLED,
    OFFER,
)  # fmt: skip
PATHS = (b"/webhooks/a", b"/webhooks/a?x=1&y=", b"/", b"/a%20b", b"/events/ingest", b"/healthz")
PLAIN_HEADERS = (
    b"Content-Type: application/json", b"X-Signature: sha256=00ff", b"user-agent:test/1.0",
    b"X-Empty:", b"X-Tabs:\ta\tb\t", b"X-Spaces:   a  b   ", b"X-Text: \xe9\xff",
    b"Accept: */*, text/html;q=0.5", b"COOKIE: a=b; c=d", b"X-Odd!#$%&'*+.^_`|~Name: 1",
    b"Connection: keep-alive", b"Upgrade-Insecure-Requests: 1",
)  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """The bytes of a connection, with what is odd about each request."""

    data: bytes
    oddities: tuple[str, ...]
    is_damaged: bool = False

    def category(self, request: int) -> str:
        """Return what is odd about a request of the stream."""
        if self.is_damaged or request >= len(self.oddities):
            return DAMAGED
        return self.oddities[request]


@dataclass
class Draft:
    """One request. A header is a raw line without its end; the framing is a header too."""

    method: bytes = b"POST"
    target: bytes = b"/webhooks/a"
    version: bytes = b"HTTP/1.1"
    headers: list[bytes] = field(default_factory=list)
    host: list[bytes] = field(default_factory=lambda: [b"Host: inbox.example"])
    framing: list[bytes] = field(default_factory=list)
    body: bytes = b""
    before: bytes = b""
    separator: bytes = b" "
    line_end: bytes = CRLF
    oddities: list[str] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Return the request as it is sent."""
        first = self.separator.join(part for part in (self.method, self.target, self.version))
        lines = [first, *self.host, *self.headers, *self.framing, b"", b""]
        return self.before + self.line_end.join(lines) + self.body

    def set_length(self, body: bytes) -> None:
        """Send a body with its Content-Length."""
        self.framing = [b"Content-Length: %d" % len(body)]
        self.body = body

    def set_chunks(self, rng: random.Random, body: bytes, *, trailers: tuple[bytes, ...]) -> None:
        """Send a body in chunks, some of them with an extension."""
        self.framing = [rng.choice((b"Transfer-Encoding: chunked", b"transfer-encoding:Chunked"))]
        self.body = chunked(rng, body, trailers)


def chunked(
    rng: random.Random, body: bytes, trailers: tuple[bytes, ...] = (), end: bytes = CRLF
) -> bytes:
    """Return a body in chunks."""
    parts = []
    while body:
        size = rng.randint(1, len(body))
        extension = rng.choice((b"", b"", b"", b";a", b";a=b", b';a="b c"'))
        parts.append(b"%x%b%b%b%b" % (size, extension, end, body[:size], end))
        body = body[size:]
    return b"".join([*parts, b"0" + end, *(line + end for line in trailers), end])


# Oddities. Each changes a draft; its name is the category of a refusal.

LENGTHS = (
    b"+%d", b"-%d", b"0x%x", b"%d ", b"\t%d\t", b"0%d", b"0000000000%d", b"%d;", b"%d.0", b"%d,",
    b",%d", b"%d e", b"%d\x0b", b"\x0c%d", b"%d\x00", b"'%d'", b"\xb2%d", b"%d_0", b"1e%d",
)  # fmt: skip
LENGTH_NAMES = (
    b"Content-Length ", b"Content-Length\t", b" Content-Length", b"\tContent-Length",
    b"Content_Length", b"content-length", b"CONTENT-LENGTH", b"Content-Length\x00",
    b"Content-Length\r", b"X: y\rContent-Length", b"X: y\nContent-Length", b"Content-\xcclength",
)  # fmt: skip
CODINGS = (
    b"chunked, identity", b"identity", b"identity, chunked", b"gzip, chunked", b"chunked, chunked",
    b"chunked;q=1", b"xchunked", b"chunke", b'"chunked"', b"chunked,", b",chunked", b"", b"cow",
    b"\x0bchunked", b"chunked\x00", b"chunked\x0c", b"\r\n chunked", b"chunked\r\n ",
    b"chunked\r\n , identity", b"cHuNkEd", b"\tchunked\t", b"  chunked", b"chunked identity",
    b"chunked\xa0", b"chu\nnked", b"chunked\r",
)  # fmt: skip
CODING_NAMES = (
    b"Transfer-Encoding ", b"Transfer-Encoding\t", b" Transfer-Encoding", b"Transfer_Encoding",
    b"X: y\rTransfer-Encoding", b"X: y\nTransfer-Encoding", b"X: y\r\rTransfer-Encoding",
    b"Transfer-Encoding\x00", b"TRANSFER-ENCODING", b"Transfer\xadEncoding", b"Te\r\n: ",
)  # fmt: skip
VERSIONS = (
    b"HTTP/1.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/1.10", b"HTTP/1.1 ", b"http/1.1",
    b"HTTP/11", b"HTTP/1", b"", b"HTTP/ 1.1", b"HTTP/1,1", b"ICE/1.0", b"RTSP/1.0", b"HTTP/9.9",
    b"HTTP/+1.1", b"HTTP/1.1\x00", b"HTTP/1.1\t", b"HTTP/01.1", b"HTTPS/1.1",
)  # fmt: skip
HOSTS = (
    (), (b"Host: a", b"Host: b"), (b"Host: a", b"Host: a"), (b"Host:",), (b"Host: a, b",),
    (b"Host : a",), (b"Host: a b",), (b"Host: user@a:80",), (b"host: a", b"HOST: a"),
    (b"Host: a\x00",), (b"Host: [::1]:80",),
)  # fmt: skip
TARGETS = (
    b"http://h/webhooks/a", b"http://h", b"HTTP://H/x?y=1", b"https://h:443/x", b"http:///x", b"*",
    b"//h/x", b"h:80", b"/a#b", b"/a?b#c", b"/a?", b"?x", b"/a b", b"/\x00", b"/\x7f", b"/\xff",
    b"/a\tb", b"/a\rb", b"/<script>", b'/"', b"/a\\b", b"/a{b}", b"ftp://h/x", b"/..//./a", b"/%",
    b"/%zz", b"/a;b", b"http://u@h/x", b"",
)  # fmt: skip
METHODS = (
    b"post", b"Post", b"FOO", b"CONNECT", b"PRI", b"PATCH", b"DELETE", b"TRACE", b"M-SEARCH",
    b"SOURCE", b"P\x00ST", b"POST\t", b"", b"(POST)", b"GET" * 20, b"QUERY", b"PLAY", b"PO\rST",
)  # fmt: skip
OFFERS = (
    (b"Connection: Upgrade", b"Upgrade: websocket"),
    (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"),
    (b"connection: upgrade", b"UPGRADE:h2c"),
    (b"Upgrade: websocket",), (b"Connection: Upgrade",), (b"Connection: Upgrade", b"Upgrade:"),
    (b"Connection: close, Upgrade", b"Upgrade: foo"), (b"Upgrade: a", b"Upgrade: b"),
    (b"Connection: Upgrade", b"Upgrade: TLS/1.0, HTTP/1.1"),
)  # fmt: skip
EXPECTATIONS = (
    (b"Expect: 100-continue",), (b"expect: 100-CONTINUE",), (b"Expect: 200-ok",),
    (b"Expect: 100-continue", b"Expect: 100-continue"), (b"Expect:",),
)  # fmt: skip
CONNECTIONS = (
    b"Connection: close", b"Connection: Close", b"Connection: keep-alive, close", b"Connection:",
    b"Connection: closed", b"Proxy-Connection: close", b"Connection: close, x", b"Keep-Alive: 1",
    b"Connection: x-signature, close", b"Connection: Keep-Alive",
)  # fmt: skip
LINES = (
    b"X: a\r\n b", b"X: a\r\n\tb", b"X:\r\n a", b"X: a\rb", b"X: a\nb", b"X: a\x00b", b"X: a\x01b",
    b"X: a\x7fb", b"X: a\x0bb", b"X\x00: a", b"X\x01: a", b"X y: a", b"X : a", b": a", b"X", b"",
    b" X: a", b"X: a\r", b"X: a\r\r", b"X(: a", b"X\xe9: a", b"X: \x1b[31m", b"X: a\r\n\r",
    b"X: a\n", b"\rX: a", b"X\r: a", b"X:\x00", b"X: " + b"a" * 3000,
)  # fmt: skip
SIZE_LINES = (
    b"%x ", b" %x", b"\t%x", b"0x%x", b"+%x", b"-%x", b"%x ;a", b"%x; a", b"%x;", b"%x;a=",
    b'%x;a="b', b'%x;a="b\\"c"', b"%x;\xff", b"%x;a\x00", b"%x;a\rb", b"%x;a\nb", b"%xg", b"%x,",
    b"00000000%x", b"f0000000000000000%x", b"%x\x00", b"%x\r",
    b"%x;" + b"a" * 2000, b";a%x", b"%x;a;b;c=d", b"%x a",
)  # fmt: skip
LINE_ENDS = (b"\n", b"\r", b"\r\r\n", b"", b"\n\r", b" \r\n")
TRAILERS = (
    (b"X-Signature: late",), (b"Content-Length: 5",), (b"Transfer-Encoding: chunked",),
    (b"Host: other",), (b"X-A: 1", b"X-B: 2"), (b"Content-Length: x",), (b"X",), (b"X : 1",),
    (b"X: \x00",), (b"X: a\r\n b",), (b"X: a\nY: b",), (b" X: a",), (b"Upgrade: h2c",),
    (b"Connection: close",), (b"Transfer-Encoding: gzip",), (b"X: a\r",), (b"",),
    (b"Connection: upgrade", b"Upgrade: h2c"), (b"Expect: 100-continue",),
)  # fmt: skip
BEFORE = (CRLF, CRLF * 3, b"\n", b"\r", b" ", b"\t", b"\x00", b"\x16\x03\x01", b"\r\n ", b"\r\r\n")


def _odd_length(rng: random.Random, draft: Draft) -> None:
    body = rng.choice(BODIES)
    draft.set_length(body)
    pattern = rng.choice(LENGTHS)
    draft.framing = [b"Content-Length: " + pattern % len(body)]


def _odd_length_name(rng: random.Random, draft: Draft) -> None:
    draft.set_length(rng.choice(BODIES))
    draft.framing = [b"%b: %d" % (rng.choice(LENGTH_NAMES), len(draft.body))]


def _two_lengths(rng: random.Random, draft: Draft) -> None:
    body = rng.choice(BODIES)
    draft.set_length(body)
    right, other = len(body), rng.choice((len(body), 0, 3, len(body) + 1, len(SMUGGLED)))
    pair = [right, other] if rng.random() < 0.5 else [other, right]
    if rng.random() < 0.5:
        draft.framing = [b"Content-Length: %d" % length for length in pair]
    else:
        draft.framing = [b"Content-Length: %d%b%d" % (pair[0], rng.choice((b",", b", ")), pair[1])]


def _large_length(rng: random.Random, draft: Draft) -> None:
    draft.set_length(SMUGGLED)
    draft.framing = [b"Content-Length: %d" % (2 ** rng.choice((31, 32, 63, 64, 65, 70)) + 1)]


def _odd_coding(rng: random.Random, draft: Draft) -> None:
    draft.set_chunks(rng, rng.choice(BODIES), trailers=())
    draft.framing = [b"Transfer-Encoding: " + rng.choice(CODINGS)]


def _odd_coding_name(rng: random.Random, draft: Draft) -> None:
    draft.set_chunks(rng, rng.choice(BODIES), trailers=())
    draft.framing = [rng.choice(CODING_NAMES) + b": chunked"]


def _two_codings(rng: random.Random, draft: Draft) -> None:
    draft.set_chunks(rng, rng.choice(BODIES), trailers=())
    lines = [b"Transfer-Encoding: chunked", b"Transfer-Encoding: " + rng.choice(CODINGS)]
    rng.shuffle(lines)
    draft.framing = lines


def _length_and_coding(rng: random.Random, draft: Draft) -> None:
    draft.set_chunks(rng, rng.choice(BODIES), trailers=())
    length = rng.choice((len(draft.body), 0, 3, 5, len(draft.body) + 4))
    coding = rng.choice((b"chunked", rng.choice(CODINGS)))
    draft.framing = [b"Content-Length: %d" % length, b"Transfer-Encoding: " + coding]
    rng.shuffle(draft.framing)


def _odd_chunk_size(rng: random.Random, draft: Draft) -> None:
    body = rng.choice(BODIES[1:])
    draft.framing = [b"Transfer-Encoding: chunked"]
    line = rng.choice(SIZE_LINES) % len(body)
    draft.body = line + CRLF + body + CRLF + rng.choice((b"0", b"0", b"00", b"0;a", b"0 ")) + CRLF
    draft.body += CRLF


def _odd_chunk_end(rng: random.Random, draft: Draft) -> None:
    body = rng.choice(BODIES[1:])
    draft.framing = [b"Transfer-Encoding: chunked"]
    ends = [CRLF] * 4
    ends[rng.randrange(4)] = rng.choice(LINE_ENDS)
    draft.body = b"%x%b%b%b0%b%b" % (len(body), ends[0], body, ends[1], ends[2], ends[3])


def _trailers(rng: random.Random, draft: Draft) -> None:
    draft.set_chunks(rng, rng.choice(BODIES), trailers=rng.choice(TRAILERS))


def _odd_version(rng: random.Random, draft: Draft) -> None:
    draft.version = rng.choice(VERSIONS)
    if rng.random() < 0.3:
        draft.headers.append(b"Connection: keep-alive")


def _odd_host(rng: random.Random, draft: Draft) -> None:
    draft.host = list(rng.choice(HOSTS))


def _odd_target(rng: random.Random, draft: Draft) -> None:
    draft.target = rng.choice(TARGETS)


def _odd_method(rng: random.Random, draft: Draft) -> None:
    draft.method = rng.choice(METHODS)


def _upgrade_offer(rng: random.Random, draft: Draft) -> None:
    draft.headers += rng.choice(OFFERS)


def _expectation(rng: random.Random, draft: Draft) -> None:
    draft.headers += rng.choice(EXPECTATIONS)


def _connection_option(rng: random.Random, draft: Draft) -> None:
    draft.headers.append(rng.choice(CONNECTIONS))


def _odd_line(rng: random.Random, draft: Draft) -> None:
    draft.headers.insert(rng.randint(0, len(draft.headers)), rng.choice(LINES))


def _odd_line_ends(rng: random.Random, draft: Draft) -> None:
    draft.line_end = rng.choice((b"\n", b"\n", b"\r", b"\r\r\n", b" \r\n"))


def _odd_separator(rng: random.Random, draft: Draft) -> None:
    draft.separator = rng.choice((b"  ", b"\t", b" \t", b"\x0b", b"\r", b"\r\n ", b"\n", b"\xa0"))


def _bytes_before(rng: random.Random, draft: Draft) -> None:
    draft.before = rng.choice(BEFORE)


Oddity = Callable[[random.Random, Draft], None]
ODDITIES: dict[str, Oddity] = {
    "spelling of a length": _odd_length,
    "name of a length": _odd_length_name,
    "two lengths": _two_lengths,
    "large length": _large_length,
    "transfer coding": _odd_coding,
    "name of a transfer coding": _odd_coding_name,
    "two transfer codings": _two_codings,
    "length and transfer coding": _length_and_coding,
    "chunk size": _odd_chunk_size,
    "chunk line end": _odd_chunk_end,
    "trailers": _trailers,
    "version": _odd_version,
    "host": _odd_host,
    "target": _odd_target,
    "method": _odd_method,
    "upgrade offer": _upgrade_offer,
    "expectation": _expectation,
    "connection option": _connection_option,
    "header line": _odd_line,
    "line ends": _odd_line_ends,
    "request line": _odd_separator,
    "bytes before a request": _bytes_before,
}
_NAMES = tuple(ODDITIES)


def make_stream(seed: int, number: int) -> Stream:
    """Return one stream; the same numbers always give the same one."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - reproducible
    drafts = [_plain_draft(rng) for _ in range(rng.choice((1, 1, 2, 2, 3, 4)))]
    if rng.random() > PLAIN_SHARE:
        _add_oddity(rng, drafts)
        if rng.random() < SECOND_ODDITY_SHARE:
            _add_oddity(rng, drafts)
    data = b"".join(draft.to_bytes() for draft in drafts)
    if rng.random() < 0.1:
        data += CRLF
    oddities = tuple(", ".join(draft.oddities) or PLAIN for draft in drafts)
    stream = Stream(data, oddities)
    if rng.random() < DAMAGED_SHARE:
        return replace(stream, data=_damage(rng, data), is_damaged=True)
    return stream


def make_cuts(rng: random.Random, data: bytes) -> tuple[int, ...]:
    """Return positions at which to cut the data into reads; many are inside line ends."""
    if len(data) < 2:
        return ()
    if rng.random() < 0.03:
        return tuple(range(1, len(data)))
    ends = [at for at in range(1, len(data)) if data[at - 1] in b"\r\n"]
    cuts = {rng.randrange(1, len(data)) for _ in range(rng.choice((0, 1, 1, 2, 6)))}
    if ends:
        cuts |= {rng.choice(ends) for _ in range(rng.choice((0, 1, 1, 2)))}
    return tuple(sorted(cuts))


def _plain_draft(rng: random.Random) -> Draft:
    draft = Draft(
        method=rng.choice((b"POST", b"POST", b"POST", b"POST", b"GET", b"PUT", b"HEAD")),
        target=rng.choice(PATHS),
        headers=rng.sample(PLAIN_HEADERS, rng.choice((0, 1, 2, 4))),
    )
    kind = rng.random()
    if kind < 0.55:
        draft.set_length(rng.choice(BODIES))
    elif kind < 0.85:
        draft.set_chunks(rng, rng.choice(BODIES), trailers=())
    return draft


def _add_oddity(rng: random.Random, drafts: list[Draft]) -> None:
    draft = rng.choice(drafts)
    name = rng.choice(_NAMES)
    ODDITIES[name](rng, draft)
    draft.oddities.append(name)


_NOISE = (b"\x00", b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b";", b",", b"0", b"5", b"\xff", b"a")


def _damage(rng: random.Random, data: bytes) -> bytes:
    """Flip, remove, insert, replace or repeat a few bytes, or cut the end."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 1, 2, 8))
        before, after = data[:at], data[at:]
        kind = rng.randrange(6)
        if kind == 0 and after:
            data = before + bytes([after[0] ^ 1 << rng.randrange(8)]) + after[1:]
        elif kind == 1:
            data = before + after[length:]
        elif kind == 2:
            data = before + rng.choice(_NOISE) + after
        elif kind == 3:
            data = before + rng.choice(_NOISE) + after[1:]
        elif kind == 4:
            data = before + after[:length] + after
        elif before:
            data = before
    return data
