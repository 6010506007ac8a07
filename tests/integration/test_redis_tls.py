"""Redis over TLS: the certificate is checked."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from onceward.accelerators.redis import connection as redis_connection
from support.redis import RedisServer
from tests.factories import arrival
from tests.id_cache import keys_of, receiver


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(addresses, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(encoding))
    files[1].write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@asynccontextmanager
async def tls_proxy(port: int, certificate: Path, key: Path) -> AsyncIterator[int]:
    """Accept TLS in front of a port, and yield the port of the proxy."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        below, above = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, above), copy(below, writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_server_is_used_if_its_certificate_is_trusted(
    postgres_url: str,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_trusted: bool,
) -> None:
    certificate, key = write_certificate(tmp_path)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    redis_connection._tls_context.cache_clear()
    try:
        async with (
            tls_proxy(redis_server.port, certificate, key) as port,
            receiver(postgres_url, f"rediss://127.0.0.1:{port}") as only,
        ):
            await only.record(arrival())
            assert bool(only.ids.warnings) is not is_trusted
        advice = "its certificate is not trusted: self-signed certificate. It must name the host"
        assert (advice in caplog.text) is not is_trusted
        assert len(await keys_of(postgres_url, redis_server.url)) == is_trusted
    finally:
        redis_connection._tls_context.cache_clear()


async def test_a_server_that_wants_tls_is_named(
    postgres_url: str, redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = write_certificate(tmp_path)
    async with (
        tls_proxy(redis_server.port, certificate, key) as port,
        receiver(postgres_url, f"redis://127.0.0.1:{port}") as only,
    ):
        assert only.ids.warnings
    assert "if it wants TLS, write rediss:// instead of redis://" in caplog.text


async def test_tls_to_a_real_server_without_it_is_named(
    postgres_url: str, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiver(postgres_url, f"rediss://127.0.0.1:{redis_server.port}") as only:
        (warning,) = only.ids.warnings
    assert warning.startswith("Redis is not used: it does not respond with TLS. ")
    assert "If it has no TLS, write redis:// instead of rediss://" in caplog.text
