"""Attacks on a running service, while an honest sender posts on another connection.

Each attack must neither make the service grow nor slow the honest sender down, and must get the
answer that it deserves.
"""

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prove.honest_sender import HonestSender, Latency, ingest_request
from support.memory import memory_folder
from support.processes import Serve

APP = Path(__file__).parent / "app.py"
MEGABYTE = 1024 * 1024
MAX_GROWTH_MEGABYTES = 50.0
MAX_SLOWDOWN = 10.0
MAX_CONNECTIONS = 1_000
MAX_TRIES = 3
GRACE_SECONDS = 3.0
SEND_TIMEOUT_SECONDS = 2.0
PAUSE_SECONDS = 0.02
WATCH_SECONDS = 0.02
WARM_UP_SECONDS = 0.2
"""The first requests open the database and the connection."""
ATTACKERS = 4
ATTACKER_ADDRESS = "127.0.0.2"
BLOCK = 64 * 1024


@dataclass(frozen=True)
class Scale:
    """How hard and how long to attack."""

    seconds: float
    """The least time of an attack: rounds repeat until then."""
    honest_per_second: float
    megabytes: int
    flood_requests: int
    slow_connections: int
    connections: int
    request_timeout_seconds: float
    """The time that the service allows a request to arrive."""
    max_p99_ms: float
    """What the honest sender may have to wait; on a slow machine MAX_SLOWDOWN times the calm."""
    is_service_shared: bool
    """Whether one service suffers all attacks."""


FULL = Scale(
    seconds=4.0,
    honest_per_second=60,
    megabytes=60,
    flood_requests=100_000,
    slow_connections=600,
    connections=3_000,
    request_timeout_seconds=2.0,
    max_p99_ms=250.0,
    is_service_shared=False,
)
SMALL = Scale(
    seconds=0.1,
    honest_per_second=60,
    megabytes=60,
    flood_requests=20_000,
    slow_connections=100,
    connections=1_100,
    request_timeout_seconds=1.0,
    max_p99_ms=1_500.0,  # of a few requests, on a machine that runs other tests
    is_service_shared=True,
)


@dataclass
class AttackResult:
    """One attack: what it did to the service and to the honest sender."""

    name: str
    rounds: int = 0
    growth_megabytes: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    honest: Latency = field(default_factory=lambda: Latency.of([]))
    findings: list[str] = field(default_factory=list)


@dataclass
class AttacksResult:
    """All attacks, and the honest sender's latency before them."""

    scale: Scale
    calm: Latency = field(default_factory=lambda: Latency.of([]))
    attacks: list[AttackResult] = field(default_factory=list)

    @property
    def max_p99_ms(self) -> float:
        """Return the latency that an attack may cause."""
        return max(self.scale.max_p99_ms, MAX_SLOWDOWN * self.calm.p99_ms)

    @property
    def is_green(self) -> bool:
        """Return whether no attack had an effect."""
        return bool(self.attacks) and not any(attack.findings for attack in self.attacks)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "calm": asdict(self.calm),
            "max_p99_ms": self.max_p99_ms,
            "attacks": {
                attack.name: {
                    "growth_megabytes": attack.growth_megabytes,
                    "honest": asdict(attack.honest),
                    "findings": attack.findings,
                }
                for attack in self.attacks
            },
        }


class Victim:
    """The service under attack."""

    def __init__(self, serve: Serve, scale: Scale) -> None:
        self.scale = scale
        self.port = urlsplit(serve.address).port or 0
        self._statm = Path(f"/proc/{serve.pid}/statm")

    @property
    def memory(self) -> float:
        """Return the resident memory in megabytes."""
        return int(self._statm.read_text().split()[1]) * 4096 / MEGABYTE

    async def connect(self, source: str = "127.0.0.1", *, buffer: int = 0) -> "Attacker":
        """Open a connection from an address of the loopback network."""
        connection = socket.socket()
        connection.setblocking(False)  # noqa: FBT003 - the socket's own signature
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        return Attacker(connection)


class Attacker:
    """One connection of an attacker."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    async def send(self, data: bytes) -> bool:
        """Send data; return whether the connection took it within the timeout."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await self._loop.sock_sendall(self._socket, data)
        except (OSError, TimeoutError):
            return False
        return True

    async def send_megabytes(self, block: bytes, megabytes: int) -> bool:
        """Send a block again and again; return whether the service took everything."""
        for _ in range(megabytes * MEGABYTE // len(block)):
            if not await self.send(block):
                return False
        return True

    def is_open(self) -> bool:
        """Return whether the service has closed neither the connection nor its side."""
        try:
            return bool(self._socket.recv(BLOCK)) and self.is_open()
        except BlockingIOError:
            return True
        except OSError:
            return False

    def half_close(self) -> None:
        """Close the sending side."""
        self._socket.shutdown(socket.SHUT_WR)

    async def read_to_end(self, seconds: float = 5.0) -> bytes | None:
        """Return everything until the service closes; None if it does not in time."""
        received = b""
        try:
            async with asyncio.timeout(seconds):
                while data := await self._loop.sock_recv(self._socket, BLOCK):
                    received += data
        except TimeoutError:
            return None
        except OSError:
            pass  # a reset is a close
        return received


# The attacks. One round returns a finding, or "".

Attack = Callable[[Victim], Awaitable[str]]
CHUNKED = (
    b"POST /events/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
OPEN_HEAD = b"POST /events/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: "
TRAILER_LINES = b"".join(b"X-%d: %b\r\n" % (number, b"a" * 50) for number in range(1000))
EXTENDED_CHUNK = b"1;" + b"a" * 16_000 + b"\r\n \r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def _endless(start: bytes, block: bytes, what: str) -> Attack:
    """Return an attack that never ends what it has begun."""

    async def attack(victim: Victim) -> str:
        attacker = await victim.connect(ATTACKER_ADDRESS)
        try:
            is_taken = await attacker.send(start)
            await asyncio.sleep(PAUSE_SECONDS)  # the service begins to handle the request
            is_taken = is_taken and await attacker.send_megabytes(block, victim.scale.megabytes)
        finally:
            attacker.close()
        return f"the service took {victim.scale.megabytes} MB of {what}" if is_taken else ""

    return attack


async def _flood(victim: Victim) -> str:
    attacker = await victim.connect(ATTACKER_ADDRESS, buffer=4096)
    try:
        for _ in range(victim.scale.flood_requests // 1000):
            if not await attacker.send(HEALTH * 1000):
                break
    finally:
        attacker.close()
    return ""


async def _large_bodies(victim: Victim) -> str:
    """Send bodies just below the limit, which are received and refused."""
    attacker = await victim.connect(ATTACKER_ADDRESS)
    try:
        await attacker.send(ingest_request(b" " * (4 * MEGABYTE)))
        await attacker.send(ingest_request(b" " * (4 * MEGABYTE), b"Connection: close"))
        received = await attacker.read_to_end()
    finally:
        attacker.close()
    return "" if received and b" 422 " in received else f"the response was {received!r:.60}"


async def _slow_connections(victim: Victim) -> str:
    scale = victim.scale
    attackers = [
        await victim.connect(f"127.0.{1 + number // 50}.9")
        for number in range(scale.slow_connections)
    ]
    slow = attackers
    try:
        deadline = time.monotonic() + scale.request_timeout_seconds + GRACE_SECONDS
        for byte in OPEN_HEAD + b"a" * 10_000:
            slow = [attacker for attacker in slow if attacker.is_open()]
            if not slow or time.monotonic() > deadline:
                break
            for attacker in slow:
                await attacker.send(bytes([byte]))
            await asyncio.sleep(scale.request_timeout_seconds / 10)
    finally:
        for attacker in attackers:
            attacker.close()
    return f"{len(slow)} slow connections stayed open" if slow else ""


async def _many_connections(victim: Victim) -> str:
    attackers: list[Attacker] = []
    try:
        for _ in range(victim.scale.connections):
            with suppress(OSError):
                attackers.append(await victim.connect(ATTACKER_ADDRESS))
        await asyncio.sleep(victim.scale.request_timeout_seconds / 2)  # before they are too slow
        is_open = sum(attacker.is_open() for attacker in attackers)
    finally:
        for attacker in attackers:
            attacker.close()
    return f"{is_open} connections were open at once" if is_open > MAX_CONNECTIONS else ""


async def _half_close(victim: Victim) -> str:
    attacker = await victim.connect()
    try:
        await attacker.send(_event())
        attacker.half_close()
        received = await attacker.read_to_end()
    finally:
        attacker.close()
    return _unless_accepted(received)


async def _garbage_behind(victim: Victim) -> str:
    attacker = await victim.connect()
    try:
        await attacker.send(_event() + b"\x16\x03\x01 garbage\r\n\r\n" * 10)
        received = await attacker.read_to_end()
    finally:
        attacker.close()
    return _unless_accepted(received)


def _event() -> bytes:
    event = {"event_id": f"attack-{time.monotonic_ns()}", "event_type": "attack", "payload": 1}
    return ingest_request(json.dumps(event).encode())


def _unless_accepted(received: bytes | None) -> str:
    if received is None:
        return "the connection stayed open"
    return "" if received.startswith(b"HTTP/1.1 202 ") else f"the response was {received[:40]!r}"


ATTACKS: dict[str, Attack] = {
    "trailers": _endless(CHUNKED + b"0\r\n", TRAILER_LINES, "trailers"),
    "a trailer without end": _endless(CHUNKED + b"0\r\nX: ", b"a" * BLOCK, "one trailer"),
    "a header without end": _endless(OPEN_HEAD, b"a" * BLOCK, "one header"),
    "a target without end": _endless(b"POST /", b"a" * BLOCK, "one target"),
    "a chunk extension without end": _endless(CHUNKED + b"1;", b"a" * BLOCK, "one extension"),
    "chunk extensions": _endless(CHUNKED, EXTENDED_CHUNK * 4, "chunk extensions"),
    "line ends before a request": _endless(b"", b"\r\n" * (BLOCK // 2), "line ends"),
    "large bodies": _large_bodies,
    "requests without reading": _flood,
    "slow connections": _slow_connections,
    "many connections": _many_connections,
    "half-closed connections": _half_close,
    "garbage behind a request": _garbage_behind,
}
ALONE = ("calm", "slow connections", "many connections")
"""Attacks that open many connections themselves: one attacker is enough."""


# Running them.


@contextmanager
def victim_with_sender(scale: Scale) -> Iterator[tuple[Victim, HonestSender]]:
    """Start a service and an honest sender.

    The database is in memory where that is possible: a slow disk is no effect of an attack.
    """
    with ExitStack() as stack:
        parent = memory_folder()
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="onceward-", dir=parent))
        serve = stack.enter_context(
            Serve(
                APP,
                f"sqlite:///{folder}/onceward.db",
                forked=True,
                body_timeout_seconds=scale.request_timeout_seconds,
            )
        )
        victim = Victim(serve, scale)
        yield victim, stack.enter_context(HonestSender(victim.port, scale.honest_per_second))


def run_attacks(scale: Scale, progress: Callable[[int], None] | None = None) -> AttacksResult:
    """Run every attack, each against a service of its own unless the scale shares one."""
    result = AttacksResult(scale)
    if scale.is_service_shared:
        calm, *result.attacks = _attack({"calm": _wait, **ATTACKS}, scale)
        result.calm = calm.honest
    else:
        result.calm = _attack({"calm": _wait}, scale)[0].honest
        for number, (name, attack) in enumerate(ATTACKS.items(), 1):
            result.attacks.append(_attack_until_fast(name, attack, result))
            if progress is not None:
                progress(number)
    for outcome in result.attacks:
        _judge(outcome, result.max_p99_ms)
    return result


def _attack_until_fast(name: str, attack: Attack, result: AttacksResult) -> AttackResult:
    """Repeat a slow attack: only what is slow every time is an effect of the attack."""
    for _ in range(MAX_TRIES):
        (outcome,) = _attack({name: attack}, result.scale)
        if outcome.honest.p99_ms <= result.max_p99_ms:
            break
    return outcome


def _attack(attacks: Mapping[str, Attack], scale: Scale) -> list[AttackResult]:
    """Run attacks on one service, one after another."""
    with victim_with_sender(scale) as (victim, sender):
        time.sleep(WARM_UP_SECONDS)  # the first requests of a process are slow
        outcomes = [asyncio.run(_repeat(name, attack, victim)) for name, attack in attacks.items()]
        sender.finish()
    for outcome in outcomes:
        outcome.honest = sender.between(outcome.started, outcome.ended)
    return outcomes


async def _repeat(name: str, attack: Attack, victim: Victim) -> AttackResult:
    """Repeat an attack, and watch the memory until the service responds again."""
    result = AttackResult(name, started=time.monotonic())
    before = victim.memory

    async def watch() -> None:
        while True:
            growth = victim.memory - before
            result.growth_megabytes = max(result.growth_megabytes, round(growth, 1))
            await asyncio.sleep(WATCH_SECONDS)

    async def repeat() -> None:
        while True:
            finding = await attack(victim)
            result.rounds += 1
            if finding and finding not in result.findings:
                result.findings.append(finding)
            if finding or time.monotonic() - result.started > victim.scale.seconds:
                return

    watching = asyncio.create_task(watch())
    attackers = 1 if name in ALONE else ATTACKERS
    await asyncio.gather(*(repeat() for _ in range(attackers)))
    if not await _responds(victim):
        result.findings.append("the service did not respond afterwards")
    watching.cancel()
    result.ended = time.monotonic()
    return result


async def _wait(victim: Victim) -> str:
    await asyncio.sleep(max(0.5, victim.scale.seconds))
    return ""


async def _responds(victim: Victim) -> bool:
    attacker = await victim.connect()
    try:
        await attacker.send(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        return (await attacker.read_to_end(30.0) or b"").startswith(b"HTTP/1.1 200 ")
    finally:
        attacker.close()


def _judge(result: AttackResult, max_p99_ms: float) -> None:
    """Add a finding for each bound that an attack exceeds."""
    if result.growth_megabytes > MAX_GROWTH_MEGABYTES:
        result.findings.append(f"the service grew by {result.growth_megabytes:g} MB")
    if result.honest.p99_ms > max_p99_ms:
        result.findings.append(f"the honest sender waited {result.honest.p99_ms:g} ms (p99)")
    if result.honest.failures:
        result.findings.append(f"{result.honest.failures} honest requests failed")
