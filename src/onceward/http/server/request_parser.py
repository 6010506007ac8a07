"""Requests from bytes: the parser of httptools, with a strict check of every head.

A request that two servers could frame differently is refused. No byte is edited.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import httptools

from onceward.http.bodies import large_headers
from onceward.http.responses import Header
from onceward.http.server.pieces import Pieces, malformed
from onceward.settings import Settings
from onceward.sources.request import Headers

_HOST: Final = re.compile(rb"[^\x00-\x20\x7f,/\\?#@<>]+")
FRAMING_ALLOWANCE: Final = 16
"""Bytes of framing that each byte of a body may bring: chunks of one byte need five."""
_CONTROL_TRAILERS: Final = frozenset({b"connection", b"proxy-connection"})
"""Trailers that would end the connection behind a proxy's back. httptools obeys them."""


class IncomingRequest:
    """A request whose head is complete, with the parts of its body that nobody has taken yet."""

    __slots__ = (
        "body_bytes",
        "chunks",
        "headers",
        "is_complete",
        "keeps_alive",
        "method",
        "target",
        "version",
    )

    def __init__(
        self,
        method: bytes,
        target: Mapping[str, Any],
        version: str,
        headers: Headers,
        *,
        keeps_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        """The path and the query, as in an ASGI scope."""
        self.version = version
        self.headers = headers
        self.keeps_alive = keeps_alive
        """Whether another request may follow on the connection."""
        self.chunks: list[bytes] = []
        self.body_bytes = 0
        self.is_complete = False

    @property
    def has_certain_end(self) -> bool:
        """Whether nothing that still arrives can make the request malformed."""
        return self.is_complete or self.headers.get(b"transfer-encoding") is None

    @property
    def missing_bytes(self) -> int:
        """How much of the body is missing; 0 if that is not known."""
        length = self.headers.get(b"content-length")
        return 0 if length is None else int(length) - self.body_bytes

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for permission to send the body."""
        expected = self.headers.joined(b"expect")
        if expected is None or self.is_complete or self.version != "1.1":
            return False
        return expected.lower() == b"100-continue"


class RequestParser:
    """Parses the requests of one connection."""

    def __init__(self, settings: Settings) -> None:
        self._max_headers = settings.max_headers
        self._max_header_bytes = settings.max_header_bytes
        self._parser = httptools.HttpRequestParser(self)
        self.requests: deque[IncomingRequest] = deque()
        """The requests that nobody has taken yet. Only the last one may be incomplete."""
        self._latest: IncomingRequest
        self.is_between_requests = False
        """Whether all that was parsed belongs to complete requests."""
        self._pieces = Pieces()
        self._is_in_body = False
        self._is_piece_over = False
        """Whether a request was completed by this piece: nothing may follow in it.

        No known httptools finds another end than `Pieces`. If one did, a first line would
        not be checked.
        """
        self._url = b""
        self._raw_headers: list[Header] = []
        self._is_resuming = False
        self._overhead_bytes = 0
        """Bytes that are no body, less the allowance that a body earns for its framing."""

    def feed(self, part: bytes | memoryview) -> None:
        """Parse a part. Raises RequestRefused; then nothing more may be fed."""
        at = 0
        while at < len(part):
            missing = self._latest.missing_bytes if self._is_in_body else 0
            if missing:
                end = at + missing
            else:
                part = bytes(part)  # no copy unless it is a view
                end = self._pieces.end_of_piece(part, at)
            self._feed_piece(part[at:end])
            at = end

    def _feed_piece(self, piece: bytes | memoryview) -> None:
        self._overhead_bytes = max(0, self._overhead_bytes) + len(piece)
        self._is_piece_over = False
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stop:
            if stop.args[0] != len(piece):
                raise malformed("The head does not end with an empty line") from None
            self._ignore_upgrade()
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            raise malformed(str(error)) from None
        if self._overhead_bytes > self._max_header_bytes:
            raise large_headers()  # an endless head, trailer or chunk extension

    def _ignore_upgrade(self) -> None:
        """Continue after a head that offers an upgrade, where the parser stops.

        A server may ignore the offer. A new parser reads the body, framed as the head says.
        """
        request = self._latest
        is_chunked = request.headers.get(b"transfer-encoding") is not None
        length = request.headers.get(b"content-length") or b"0"
        framing = b"transfer-encoding: chunked" if is_chunked else b"content-length: " + length
        request.is_complete = self._is_piece_over = False
        self._is_resuming = self._is_in_body = True
        if is_chunked:
            self._pieces.begin_chunks()
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._is_resuming = False

    # Callbacks of the parser. An error that one raises ends the parsing.

    def on_message_begin(self) -> None:
        """Begin a request. Blank lines before it do not count as one. Raises RequestRefused."""
        if self._is_piece_over:
            raise malformed("A request must end with its body or with an empty line")
        self.is_between_requests = False

    def on_url(self, url: bytes) -> None:
        """Collect a part of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header. Trailers end up here too, and are discarded with the request."""
        if len(self._raw_headers) >= self._max_headers:
            raise large_headers()  # at once: a tiny header takes thirty times its bytes
        name = name.lower()
        if self._is_in_body and name in _CONTROL_TRAILERS:
            raise malformed("A trailer cannot end the connection")
        self._raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head. Raises RequestRefused."""
        if self._is_resuming:
            return
        self._check_size()
        self._overhead_bytes = 0
        parser, headers = self._parser, Headers(self._raw_headers)
        method, version = parser.get_method(), parser.get_http_version()
        _check_framing(method, version, headers)
        self._latest = IncomingRequest(
            method,
            _target(self._url),
            version,
            headers,
            keeps_alive=version == "1.1" and parser.should_keep_alive(),
        )
        self.requests.append(self._latest)
        self._is_in_body = True
        if headers.get(b"transfer-encoding") is not None:
            self._pieces.begin_chunks()
        self._raw_headers = []

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        self._overhead_bytes -= len(body) * FRAMING_ALLOWANCE
        self._latest.body_bytes += len(body)
        self._latest.chunks.append(body)

    def on_message_complete(self) -> None:
        """Complete the request. What follows is the next one."""
        self._latest.is_complete = self.is_between_requests = self._is_piece_over = True
        self._is_in_body = False
        self._pieces.end_request()
        self._overhead_bytes = 0
        self._url = b""
        self._raw_headers = []

    def _check_size(self) -> None:
        """Raise HttpError (431) if the head is too large."""
        if self._overhead_bytes <= self._max_header_bytes:
            return  # the usual case: fewer bytes than the limit have arrived
        size = sum([len(name) + len(value) for name, value in self._raw_headers])
        if len(self._url) + size > self._max_header_bytes:
            raise large_headers()


def _check_framing(method: bytes, version: str, headers: Headers) -> None:
    """Raise RequestRefused unless every server finds the same end of the request."""
    if method == b"CONNECT":
        raise malformed("CONNECT is not supported")
    if version not in ("1.1", "1.0"):
        raise malformed("The version must be HTTP/1.1 or HTTP/1.0")
    host = headers.get(b"host")
    if host is None and version == "1.1":
        raise malformed("The header Host is missing")
    if host and not _is_host(host):
        raise malformed("The header Host is not a host")
    coding = headers.get(b"transfer-encoding")
    if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
        raise malformed("Transfer-Encoding may only be chunked, and only in HTTP/1.1")


@lru_cache(maxsize=100)
def _is_host(text: bytes) -> bool:
    return _HOST.fullmatch(text) is not None


@lru_cache(maxsize=100)
def _target(url: bytes) -> Mapping[str, Any]:
    """Return the scope's parts of a request target. Raises HttpError (400)."""
    if not url.startswith(b"/") or b"#" in url:
        raise malformed("The target must be a path, without a host or a fragment")
    path, _, query = url.partition(b"?")
    return {"path": unquote(path.decode("ascii")), "raw_path": path, "query_string": query}
