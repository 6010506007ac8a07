"""nginx and HAProxy in front of the server: both sides must count the same requests.

The proxy gives each request that it forwards an id. A message without an id, with the id of
another one, or with one that the proxy never gave was smuggled past it.
"""

import asyncio
import signal
import socket
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from onceward.http.server.server import Server, listen
from onceward.settings import Settings
from prove.in_process import Activity, Message, RecordingApp
from prove.request_streams import make_stream
from support.processes import eventually
from support.programs import ProgramMissing, find_program

ID = b"x-request-id"
CLIENTS = 40
SILENCE_SECONDS = 0.15
"""A sender leaves when no response has arrived for this time."""
START_SECONDS = STOP_SECONDS = 15.0
LOG = "access.log"
MIN_FORWARDED_SHARE = 0.2
FINDINGS_MAX = 20

NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    log_format ids '$request_id $status $request_method $upstream_status';
    access_log {folder}/access.log ids;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_header_timeout 1s;
    client_body_timeout 1s;
    keepalive_timeout 2s;
    upstream inbox {{ server 127.0.0.1:{upstream}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://inbox;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_next_upstream off;
            proxy_set_header Connection "";
            proxy_set_header X-Request-Id $request_id;
        }}
    }}
}}
"""
# One thread: with several, HAProxy now and then loses a line of its log.
HAPROXY = """\
global
    log stdout format raw local0
    nbthread 1
    maxconn 500
defaults
    mode http
    log global
    log-format "%ID %ST %HM %s"
    unique-id-format %[uuid()]
    option http-keep-alive
    timeout connect 2s
    timeout client 2s
    timeout server 10s
    timeout http-request 1s
    timeout http-keep-alive 2s
    retries 0
frontend senders
    bind 127.0.0.1:{port}
    http-request set-header X-Request-Id %[unique-id]
    default_backend inbox
backend inbox
    http-reuse always
    server inbox 127.0.0.1:{upstream}
"""


class Forwarded(NamedTuple):
    """A request that a proxy passed to the server, and the response that it got."""

    method: bytes
    status: int


@dataclass(frozen=True)
class ProxyKind:
    """How to run a proxy, and how to read its log."""

    name: str
    config: str
    arguments: tuple[str, ...]
    stop: signal.Signals
    """Lets the proxy finish and log what it has begun."""
    parse: Callable[[list[str]], tuple[bytes, Forwarded] | None]

    @property
    def executable(self) -> Path | None:
        """Return the path of the program, if it is installed."""
        try:
            return find_program(self.name)
        except ProgramMissing:
            return None


def _parse_nginx(fields: list[str]) -> tuple[bytes, Forwarded] | None:
    identity, status, method, upstream = fields
    if upstream == "-":
        return None
    return identity.encode(), Forwarded(method.encode(), int(status))


def _parse_haproxy(fields: list[str]) -> tuple[bytes, Forwarded] | None:
    identity, status, method, server = fields
    if server == "<NOSRV>":
        return None
    return identity.encode(), Forwarded(method.encode(), int(status))


PROXIES = (
    ProxyKind("nginx", NGINX, ("-p", "{folder}", "-c", "{config}"), signal.SIGQUIT, _parse_nginx),
    ProxyKind("haproxy", HAPROXY, ("-db", "-f", "{config}"), signal.SIGUSR1, _parse_haproxy),
)


@dataclass
class ProxyResult:
    """The requests on both sides of one proxy."""

    name: str
    skipped: str = ""
    sent: int = 0
    forwarded: int = 0
    received: int = 0
    refused: int = 0
    """Requests that the proxy forwarded and the server refused."""
    findings: list[str] = field(default_factory=list)


@dataclass
class ProxiesResult:
    """All proxies."""

    proxies: list[ProxyResult] = field(default_factory=list)

    @property
    def is_green(self) -> bool:
        """Return whether nothing was smuggled past any proxy."""
        return not any(proxy.findings for proxy in self.proxies)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the result as JSON types."""
        return [asdict(proxy) for proxy in self.proxies]


def check_proxies(
    seed: int, requests: int, progress: Callable[[int], None] | None = None
) -> ProxiesResult:
    """Send requests through every proxy that is installed, and compare both sides."""
    result = ProxiesResult()
    for number, kind in enumerate(PROXIES):
        result.proxies.append(check_proxy(kind, seed, requests))
        if progress is not None:
            progress((number + 1) * requests)
    return result


def check_proxy(kind: ProxyKind, seed: int, requests: int) -> ProxyResult:
    """Send requests through one proxy, and compare both sides."""
    if kind.executable is None:
        return ProxyResult(kind.name, skipped=f"{kind.name} is not installed")
    with tempfile.TemporaryDirectory(prefix="onceward-") as name, _server() as (app, upstream):
        folder = Path(name)
        with _running(kind, kind.executable, folder, upstream) as port:
            sent = asyncio.run(_send(seed, requests, port))
        forwarded = read_log(kind, (folder / LOG).read_text(errors="replace"))
    messages = [message for group in app.messages.values() for message in group]
    result = compare(kind.name, forwarded, messages)
    result.sent = sent
    if result.received < MIN_FORWARDED_SHARE * sent:
        result.findings.append(f"only {result.received} of {sent} requests were received")
    return result


def read_log(kind: ProxyKind, text: str) -> dict[bytes, Forwarded]:
    """Return the requests that a proxy forwarded, by their ids."""
    parsed = (kind.parse(line.split(" ")) for line in text.splitlines() if line.count(" ") == 3)
    return dict(entry for entry in parsed if entry is not None)


def compare(
    name: str, forwarded: Mapping[bytes, Forwarded], messages: list[Message]
) -> ProxyResult:
    """Compare the requests that a proxy forwarded with the messages that the server received."""
    refused = sum(request.status in (400, 431, 501) for request in forwarded.values())
    result = ProxyResult(name, forwarded=len(forwarded), received=len(messages), refused=refused)
    findings = _smuggled(forwarded, messages)
    result.findings = [finding for finding, _ in zip(findings, range(FINDINGS_MAX), strict=False)]
    return result


def _smuggled(forwarded: Mapping[bytes, Forwarded], messages: list[Message]) -> Iterator[str]:
    seen: Counter[bytes] = Counter()
    for message in messages:
        ids = [value for header, value in message.headers if header == ID]
        if len(ids) != 1:
            yield f"received with {len(ids)} ids: {message!r:.300}"
            continue
        (identity,) = ids
        seen[identity] += 1
        if identity not in forwarded:
            yield f"received, but never forwarded: {message!r:.300}"
        elif forwarded[identity].method != message.method:
            yield f"forwarded as {forwarded[identity].method!r}: {message!r:.300}"
        if seen[identity] > 1:
            yield f"received {seen[identity]} times: {message!r:.300}"
    for identity, request in forwarded.items():
        if request.status == 200 and identity not in seen:
            yield f"answered, but never received: {identity!r} {request}"


# The server behind the proxy.


@contextmanager
def _server() -> Iterator[tuple[RecordingApp, int]]:
    """Run the server with an application that records every message, in a thread."""
    app = RecordingApp(Activity(), is_direct=True)
    listener = listen("127.0.0.1", 0)
    server = Server(app, Settings(body_timeout_seconds=5.0))
    with asyncio.Runner() as runner:
        thread = threading.Thread(target=lambda: runner.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield app, listener.getsockname()[1]
        finally:
            runner.get_loop().call_soon_threadsafe(server.stop)
            thread.join()


# The proxy.


@contextmanager
def _running(kind: ProxyKind, executable: Path, folder: Path, upstream: int) -> Iterator[int]:
    """Run a proxy, and return its port. At the end it has logged every request."""
    folder.chmod(0o755)  # nginx changes its user
    port = _free_port()
    config = folder / "config"
    config.write_text(kind.config.format(folder=folder, port=port, upstream=upstream))
    values = {"folder": str(folder), "config": str(config)}
    arguments = [argument.format(**values) for argument in kind.arguments]
    with (folder / LOG).open("ab") as out, (folder / "errors").open("ab") as errors:
        process = subprocess.Popen([executable, *arguments], stdout=out, stderr=errors)
        try:
            eventually(lambda: _listens(port), f"{kind.name} has started", START_SECONDS)
            yield port
            process.send_signal(kind.stop)
            process.wait(STOP_SECONDS)
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# The senders.


async def _send(seed: int, requests: int, port: int) -> int:
    """Send streams with this many requests from several clients; return the number sent."""
    numbers = count()
    sent = 0

    async def client() -> None:
        nonlocal sent
        while sent < requests:
            stream = make_stream(seed, next(numbers))
            sent += len(stream.oddities)
            with suppress(OSError):
                await _exchange(stream.data, port)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return sent


async def _exchange(data: bytes, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        with suppress(TimeoutError):
            while await asyncio.wait_for(reader.read(65536), SILENCE_SECONDS):
                pass
    finally:
        writer.close()
