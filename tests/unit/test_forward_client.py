"""The client of forwards: one connection, to an address that was checked, within limits."""

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from onceward import EffectNotApplied
from onceward.work.forwarding import client as client_module
from onceward.work.forwarding.client import MAX_HEAD_BYTES, HttpClient, Response
from onceward.work.forwarding.target import Target, parse_target
from support.postgres import free_port
from tests.receiver import OK, Receiver, Respond, close, receiving, response, say_nothing

HOST = "app.example"
PUBLIC = "93.184.216.34"


class Names:
    """A resolver that counts lookups, and may return other addresses each time."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = answers
        self.lookups = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.lookups += 1
        return self.answers[min(self.lookups, len(self.answers)) - 1]


def target(url: str) -> Target:
    parsed = parse_target(url)
    assert isinstance(parsed, Target), parsed
    return parsed


async def post(
    url: str,
    client: HttpClient | None = None,
    *,
    body: bytes = b"{}",
    allow_private: bool = True,
    seconds: float = 20.0,
) -> Response:
    return await (client or HttpClient()).post(
        target(url), [("x-one", "1")], body, allow_private=allow_private, seconds=seconds
    )


async def test_a_body_is_posted_on_a_connection_of_its_own() -> None:
    async with receiving() as receiver:
        assert await post(receiver.url, body=b"a" * 200_000) == Response(200)
        assert await post(receiver.url) == Response(200)
    first, _ = receiver.requests
    assert first.request_line == "POST /hooks?token=hidden HTTP/1.1"
    assert first.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "connection": "close",
        "content-length": "200000",
        "x-one": "1",
    }
    assert first.body == b"a" * 200_000
    assert receiver.connections == 2


# Addresses.


async def test_the_address_that_was_checked_is_the_one_connected_to() -> None:
    """A name that resolves to another address the next time changes nothing: it is not asked."""
    async with receiving() as receiver:
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        url = f"http://{HOST}:{receiver.port}/"
        assert await post(url, HttpClient(names)) == Response(200)
    assert names.lookups == 1
    assert receiver.requests[0].headers["host"] == f"{HOST}:{receiver.port}"


async def test_a_name_with_a_private_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    async def connect(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    refusal = r"is not public \(.*\); nothing was sent"
    for addresses in [
        ["127.0.0.1"],
        [PUBLIC, "127.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["169.254.169.254"],
        ["fd00:ec2::254"],
    ]:
        client = HttpClient(Names(addresses))
        with subtests.test(addresses=addresses), pytest.raises(EffectNotApplied, match=refusal):
            await post(f"https://{HOST}/", client, allow_private=False)


async def test_a_name_that_was_public_before_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected = []

    async def connect(address: str, *_: Any, **__: Any) -> None:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", connect)
    client = HttpClient(Names([PUBLIC], ["127.0.0.1"]))
    for fault in ("cannot be reached", r"has the address 127.0.0.1, which is not public"):
        with pytest.raises(EffectNotApplied, match=fault):
            await post(f"https://{HOST}/", client, allow_private=False)
    assert connected == [PUBLIC]


async def test_the_next_address_is_tried_if_one_does_not_accept() -> None:
    async with receiving() as receiver:
        client = HttpClient(Names(["127.0.0.9", "127.0.0.1"]))
        assert await post(f"http://{HOST}:{receiver.port}/", client) == Response(200)


async def test_an_address_that_never_responds_leaves_time_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = asyncio.open_connection

    async def hang(address: str, *arguments: Any, **options: Any) -> Any:
        if address == "127.0.0.9":
            await asyncio.Event().wait()
        return await connect(address, *arguments, **options)

    monkeypatch.setattr(asyncio, "open_connection", hang)
    async with receiving() as receiver:
        client = HttpClient(Names(["127.0.0.9", "127.0.0.1"]))
        url = f"http://{HOST}:{receiver.port}/"
        assert await post(url, client, seconds=2.0) == Response(200)


async def test_only_some_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    async def connect(address: str, *_: Any, **__: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", connect)
    addresses = [f"93.184.216.{number}" for number in range(20)]
    with pytest.raises(EffectNotApplied, match="cannot be reached"):
        await post(f"https://{HOST}/", HttpClient(Names(addresses)))
    assert tried == addresses[:8]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([], "app.example cannot be resolved: the name has no address; nothing was sent"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
    ],
)
async def test_a_name_that_cannot_be_resolved_sends_nothing(answer: Any, fault: str) -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        if isinstance(answer, Exception):
            raise answer
        found: list[str] = answer
        return found

    with pytest.raises(EffectNotApplied) as raised:
        await post(f"https://{HOST}/?token=hidden", HttpClient(lookup))
    assert fault in str(raised.value)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(("seconds", "limit"), [(0.1, 10.0), (60.0, 0.05)])
async def test_a_slow_lookup_sends_nothing(
    seconds: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_CONNECT_SECONDS", limit)

    async def lookup(host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(60)
        return []

    with pytest.raises(EffectNotApplied, match=r"cannot be resolved within 0.05 s; nothing was"):
        await post(f"https://{HOST}/", HttpClient(lookup), seconds=seconds)


async def test_names_are_looked_up_by_the_system() -> None:
    assert "127.0.0.1" in await client_module.resolve("localhost", 80)


async def test_a_refused_connection_sends_nothing() -> None:
    with pytest.raises(EffectNotApplied, match=r"127.0.0.1 cannot be reached: .*nothing was sent"):
        await post(f"http://127.0.0.1:{free_port()}/")


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with receiving() as receiver:
        assert await post(receiver.url) == Response(200)


# Responses.


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as other, receiving() as receiver:
        receiver.responses = [response(307, f"location: {other.url}")]
        assert await post(receiver.url) == Response(307)
        assert other.connections == 0


async def test_the_status_and_retry_after_are_returned() -> None:
    async with receiving(response(429, "Retry-After: 7", "Retry-Later: 8")) as receiver:
        assert await post(receiver.url) == Response(429, "7")


async def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with receiving(b"HTTP/1.1 100 Continue\r\n\r\n" + interim + OK) as receiver:
        assert await post(receiver.url) == Response(200)


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    await repeat(writer, b"x: y\r\n")


async def endless_interim(writer: asyncio.StreamWriter) -> None:
    await repeat(writer, b"HTTP/1.1 100 Continue\r\n\r\n")


async def endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await repeat(writer, b"a" * 1000)


async def endless_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    await repeat(writer, b"1\r\na\r\n")


async def broken_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
    await writer.drain()


async def body_that_never_ends(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\na")
    await say_nothing(writer)


async def body_that_is_cut(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\na")
    await writer.drain()
    writer.transport.abort()


async def repeat(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write more than the client may read: it closes the connection."""
    for _ in range(1000):
        writer.write(data * (MAX_HEAD_BYTES // len(data)))
        await writer.drain()


@pytest.mark.parametrize("answer", [endless_head, endless_interim])
async def test_an_endless_head_is_no_response(answer: Respond) -> None:
    async with receiving(answer) as receiver:
        with pytest.raises(ConnectionError, match="the head of its response is over 32768 bytes"):
            await post(receiver.url)


BODIES = [endless_body, endless_chunks, broken_chunks, body_that_never_ends, body_that_is_cut]


async def test_the_body_of_a_response_decides_nothing(subtests: pytest.Subtests) -> None:
    for answer in BODIES:
        with subtests.test(answer.__name__):
            async with receiving(answer) as receiver, asyncio.timeout(5):
                assert await post(receiver.url) == Response(200)


@pytest.mark.parametrize("answer", [endless_body, endless_chunks])
async def test_not_all_of_the_body_of_a_response_is_read(
    answer: Respond, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_REST_SECONDS", 60.0)
    async with receiving(answer) as receiver, asyncio.timeout(20):
        assert await post(receiver.url) == Response(200)


async def test_a_connection_that_is_reset_after_the_head_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resets = []

    async def reset(*_: object) -> None:
        resets.append(1)
        raise ConnectionResetError

    monkeypatch.setattr(client_module, "_read_rest", reset)
    async with receiving() as receiver:
        assert await post(receiver.url) == Response(200)
    assert resets == [1]


NO_RESPONSES: list[bytes | Respond] = [
    close,
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 99 No\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nbroken",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    response(200, "content-length: 5"),
]


async def test_no_response_in_http_is_no_response(subtests: pytest.Subtests) -> None:
    for answer in NO_RESPONSES:
        with subtests.test(answer=answer):
            async with receiving(answer) as receiver:
                with pytest.raises(
                    ConnectionError, match=r"127.0.0.1 did not respond: it closed"
                ) as raised:
                    await post(receiver.url)
            assert "hidden" not in str(raised.value)


async def test_a_reset_connection_is_no_response() -> None:
    async def reset(writer: asyncio.StreamWriter) -> None:
        writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4)
        )
        writer.transport.abort()

    async with receiving(reset) as receiver:
        with pytest.raises(ConnectionError, match=r"127.0.0.1 did not respond"):
            await post(receiver.url)


async def test_the_caller_ends_a_call_that_takes_too_long() -> None:
    async with receiving(say_nothing) as receiver:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await post(receiver.url)
        assert receiver.connections == 1


# TLS.


def certificate(folder: Path, *names: x509.GeneralName) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the settings of a server with these names, and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "both.pem"
    path.write_bytes(private + made.public_bytes(encoding))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cadata=made.public_bytes(encoding).decode())


def url_of(receiver: Receiver, host: str = HOST) -> str:
    return f"https://{host}:{receiver.port}/"


async def test_tls_is_verified_for_the_name(tmp_path: Path) -> None:
    server, trust = certificate(tmp_path, x509.DNSName(HOST))
    async with receiving(tls=server) as receiver:
        client = HttpClient(Names(["127.0.0.1"]), lambda: trust)
        assert await post(url_of(receiver), client) == Response(200)
        assert receiver.server_names == [HOST]
        with pytest.raises(EffectNotApplied, match=r"its certificate is not accepted \(.*mismatch"):
            await post(url_of(receiver, "other.example"), client)
        with pytest.raises(EffectNotApplied, match="its certificate is not accepted"):
            await post(url_of(receiver), HttpClient(Names(["127.0.0.1"])))
    assert len(receiver.requests) == 1


async def test_tls_is_verified_for_an_address(tmp_path: Path) -> None:
    server, trust = certificate(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    async with receiving(tls=server) as receiver:
        client = HttpClient(tls=lambda: trust)
        assert await post(url_of(receiver, "127.0.0.1"), client) == Response(200)


async def test_the_authorities_are_not_read_in_the_event_loop(tmp_path: Path) -> None:
    server, trust = certificate(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    threads = []

    def read() -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return trust

    async with receiving(tls=server) as receiver:
        assert await post(url_of(receiver, "127.0.0.1"), HttpClient(tls=read)) == Response(200)
    assert threads
    assert threading.main_thread() not in threads


async def test_a_target_without_tls_sends_nothing() -> None:
    async with receiving() as receiver:
        with pytest.raises(EffectNotApplied, match=r"127.0.0.1 cannot be reached: .*nothing was"):
            await post(url_of(receiver, "127.0.0.1"), seconds=1.0)
    assert receiver.requests == []
