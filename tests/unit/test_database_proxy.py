"""The proxy in front of a database: what passes when it freezes, thaws, cuts and switches."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from support.proxy import Proxy

SILENCE_SECONDS = 0.1


@contextlib.contextmanager
def server(greeting: bytes) -> Iterator[str]:
    """Run a server that answers each request with a greeting, and yield its URL."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while request := self.request.recv(64):
                self.request.sendall(greeting + request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Greeter) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"postgresql://postgres@127.0.0.1:{running.server_address[1]}/test"
        running.shutdown()
        thread.join()


def connect(proxy: Proxy) -> socket.socket:
    port = int(proxy.url.rpartition(":")[2].partition("/")[0])
    return socket.create_connection(("127.0.0.1", port), timeout=5.0)


def ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return client.recv(64)


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE_SECONDS)
    try:
        client.recv(64)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5.0)
    return False


def test_a_frozen_proxy_holds_everything_until_it_thaws() -> None:
    with server(b"one:") as url, Proxy(url) as proxy, connect(proxy) as old:
        assert ask(old, b"a") == b"one:a"
        proxy.freeze()
        with connect(proxy) as new:
            old.sendall(b"b")
            new.sendall(b"c")
            assert is_silent(old)
            assert is_silent(new)
            proxy.thaw()
            assert old.recv(64) == b"one:b"
            assert new.recv(64) == b"one:c"


def test_a_switched_proxy_drops_what_it_held_and_connects_to_the_other_server() -> None:
    with (
        server(b"one:") as first,
        server(b"two:") as second,
        Proxy(first) as proxy,
        connect(proxy) as old,
    ):
        assert ask(old, b"a") == b"one:a"
        proxy.freeze()
        old.sendall(b"b")
        proxy.switch(second)
        proxy.thaw()
        with contextlib.suppress(ConnectionResetError):
            assert old.recv(64) == b""
        with connect(proxy) as new:
            assert ask(new, b"c") == b"two:c"


def test_a_proxy_ends_while_it_is_frozen() -> None:
    with server(b"one:") as url:
        proxy = Proxy(url)
        with proxy, connect(proxy) as client:
            assert ask(client, b"a") == b"one:a"
            proxy.freeze()
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset
            connect(proxy)
