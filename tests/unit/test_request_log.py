"""Lines about failed requests name the client, and no flood suppresses the lines of others."""

import logging
from collections.abc import Callable, Iterator

import pytest

from onceward.errors import RejectionCause, SignatureRejected, UnknownSource
from onceward.http.errors import AuthenticationFailed, HttpError
from onceward.http.line_limits import CLIENT_INTERVAL_SECONDS, MAX_CLIENTS, MAX_PATHS
from onceward.http.proxies import Proxies
from onceward.http.request_log import RequestLog
from onceward.http.responses import Scope
from tests.factories import FakeClock

STRIPE = "/webhooks/stripe"
TWILIO = "/webhooks/twilio"
STALE = "192.0.2.50"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Timers:
    """The calls that a log has scheduled."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.due.append((self._clock.seconds + seconds, callback))

    def run_until_idle(self) -> None:
        while self.due:
            self._clock.seconds, callback = self.due.pop(0)
            callback()


@pytest.fixture
def timers(clock: FakeClock) -> Timers:
    return Timers(clock)


@pytest.fixture
def log(clock: FakeClock, timers: Timers) -> RequestLog:
    return RequestLog(
        clock,
        Proxies(["10.0.0.0/8"]),
        endpoints=[STRIPE, TWILIO, "/events/ingest"],
        call_later=timers.call_later,
    )


def at(path: str, root: str = "", *, client: str = "", **headers: str) -> Scope:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    peer = (client, 1) if client else None
    return {"path": root + path, "root_path": root, "client": peer, "headers": raw}


def forged() -> SignatureRejected:
    return SignatureRejected("no signature matched", RejectionCause.MISMATCH)


def send_junk(log: RequestLog, count: int) -> None:
    for number in range(count):
        log.refused(at(f"/webhooks/junk-{number}"), UnknownSource(f"junk-{number}", ()))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "onceward.http"]
    caplog.clear()
    return found


@pytest.mark.parametrize("root", ["", "/hooks"])
def test_junk_paths_do_not_suppress_the_lines_of_a_source(
    log: RequestLog, caplog: pytest.LogCaptureFixture, root: str
) -> None:
    send_junk(log, 10 * MAX_PATHS)
    assert len(lines(caplog)) == MAX_PATHS + 1
    log.refused(at(STRIPE, root), forged())
    (line,) = lines(caplog)
    assert line.startswith(f"{root}{STRIPE}: 401: no signature matched")
    assert "more since" not in line


def test_forged_requests_do_not_suppress_other_failures_of_the_source(
    log: RequestLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        log.refused(at(STRIPE), forged())
    log.failed(at(STRIPE), ValueError("a defect"))
    log.refused(at(STRIPE), HttpError(503, "slow", "The ledger is slow."))
    rejected, failed, slow = caplog.records
    assert [record.levelno for record in (rejected, failed)] == [logging.WARNING, logging.ERROR]
    assert slow.getMessage() == f"{STRIPE}: 503: The ledger is slow."


def test_the_next_second_counts_what_was_suppressed(
    log: RequestLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        log.refused(at(STRIPE), forged())
    clock.seconds += 1
    log.refused(at(STRIPE), forged())
    first, second = lines(caplog)
    assert "more since" not in first
    assert second.endswith("(49 more since the last line)")


def test_a_quiet_path_makes_room_for_a_new_one(
    log: RequestLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    send_junk(log, MAX_PATHS)
    send_junk(log, 5)  # suppressed
    clock.seconds += 1
    lines(caplog)
    for name in ("new", "newer"):
        log.refused(at(f"/webhooks/{name}"), UnknownSource(name, ()))
    assert [line.partition(":")[0] for line in lines(caplog)] == [
        "/webhooks/new",
        "/webhooks/newer",
    ]
    for number in range(MAX_PATHS):
        log.refused(at(f"/{number}"), UnknownSource("", ()))
    assert lines(caplog)[-1].endswith("(5 more since the last line)")  # of the paths that left


def test_failed_authentications_share_one_limit(
    log: RequestLog, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "wrong admin token from 203.0.113.7"
    failed = AuthenticationFailed(401, "unauthorized", "to the client", headers=(), reason=reason)
    for number in range(50):
        log.refused(at(f"/admin/jobs/{number}", client="203.0.113.7"), failed)
    (record,) = caplog.records
    assert record.getMessage() == f"/admin/jobs/0: 401: {reason}"  # the client is named once
    assert vars(record)["client"] == "203.0.113.7"


class CountedNames(dict[str, None]):
    """Names of sources that count how many of them are read."""

    read = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self.read += 1
            yield name


@pytest.mark.parametrize("name", ["strype-77", "x" * 30_000])
def test_an_unknown_name_is_not_compared_with_thousands_of_names(
    log: RequestLog, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    names = CountedNames((f"stripe-{number}", None) for number in range(5_000))
    log.refused(at(f"/webhooks/{name}"), UnknownSource(name, names))
    (line,) = lines(caplog)
    assert line.endswith(
        ": 404: no source has this name; the sources are "
        f"{', '.join(f'stripe-{number}' for number in range(10))} and 4990 more"
    )
    assert names.read <= 20


# Clients.


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.7", None, "203.0.113.7"),
        ("203.0.113.7", "192.0.2.1", "203.0.113.7"),
        ("10.0.0.7", "192.0.2.1, 198.51.100.9", "198.51.100.9"),
    ],
)
def test_every_refusal_names_the_client(
    log: RequestLog,
    caplog: pytest.LogCaptureFixture,
    peer: str,
    forwarded: str | None,
    client: str,
) -> None:
    headers = {"x_forwarded_for": forwarded} if forwarded else {}
    log.refused(at(STRIPE, client=peer, **headers), forged())
    log.refused(at("/webhooks/strip", client=peer, **headers), UnknownSource("strip", ["stripe"]))
    log.challenge_rejected(at(TWILIO, client=peer, **headers), 403)
    assert [vars(record)["client"] for record in caplog.records] == [client] * 3
    assert all(line.endswith(f" (from {client})") for line in lines(caplog))


@pytest.mark.parametrize("path", [STRIPE, "/webhooks/unknown"])
def test_a_flood_does_not_hide_another_client(
    log: RequestLog, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    for _ in range(10):
        for number in range(200):
            log.refused(at(path, client=f"203.0.113.{number}"), forged())
    assert len(lines(caplog)) == 200
    for _ in range(10):
        log.refused(at(path, client=STALE), forged())
    (line,) = lines(caplog)
    assert line.endswith(f"(from {STALE})")


def test_a_client_in_a_flood_has_a_line_each_minute(
    log: RequestLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    stale_lines = 0
    for _ in range(2 * int(CLIENT_INTERVAL_SECONDS)):
        log.refused(at(STRIPE, client="203.0.113.7"), forged())
        log.refused(at(STRIPE, client=STALE), forged())
        stale_lines += sum(STALE in line for line in lines(caplog))
        clock.seconds += 1
    assert stale_lines == 2


@pytest.mark.parametrize("path", ["/webhooks/stripe", "/junk"])
def test_clients_are_bounded_and_make_room_after_a_minute(
    log: RequestLog, clock: FakeClock, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    for number in range(10 * MAX_CLIENTS):
        log.refused(at(path, client=f"2001:db8:{number:x}::1"), forged())
    log.refused(at(path, client="2001:db8:0::2"), forged())  # of a network with a line
    assert len(lines(caplog)) == MAX_CLIENTS
    clock.seconds += CLIENT_INTERVAL_SECONDS
    for client in ("203.0.113.7", STALE):
        log.refused(at(path, client=client), forged())
    suppressed = 9 * MAX_CLIENTS + 1
    assert [line.rpartition(" (")[2] for line in lines(caplog)] == [
        f"from 203.0.113.7; {suppressed} more since the last line)",
        f"from {STALE})",
    ]


# The end of a flood.


def test_every_suppressed_line_is_counted_in_the_end(
    log: RequestLog, timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    send_junk(log, 3 * MAX_PATHS)
    for _ in range(50):
        log.refused(at(STRIPE), forged())
    written = len(caplog.records)
    timers.run_until_idle()
    assert sum(vars(record).get("suppressed", 0) for record in caplog.records) == (
        3 * MAX_PATHS + 50 - written
    )
    assert f"{STRIPE}: 401: 49 more since the last line" in lines(caplog)
    log.refused(at(STRIPE), forged())
    assert "more since" not in lines(caplog)[0]


def test_while_a_flood_lasts_only_its_lines_count(
    log: RequestLog, clock: FakeClock, timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        log.refused(at(STRIPE), forged())
        clock.seconds += 0.3
        while timers.due and timers.due[0][0] <= clock.seconds:
            timers.due.pop(0)[1]()
    assert len(timers.due) == 1
    assert all("no signature matched" in line for line in lines(caplog))


def test_a_flood_that_has_just_ended_is_counted_by_a_later_flush(
    log: RequestLog, clock: FakeClock, timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    for seconds in (0, 1.2, 0.3, 0):  # the first flush comes within the last interval
        clock.seconds += seconds
        log.refused(at(STRIPE), forged())
        log.refused(at(STRIPE), forged())
    lines(caplog)
    timers.run_until_idle()
    assert lines(caplog) == [f"{STRIPE}: 401: 5 more since the last line"]


def test_a_flush_whose_loop_has_ended_is_scheduled_again(
    log: RequestLog, clock: FakeClock, timers: Timers
) -> None:
    for _ in range(2):
        log.refused(at(STRIPE), forged())
        log.refused(at(STRIPE), forged())
        assert len(timers.due) == 1
        timers.due.clear()
        clock.seconds += 10


# Proxies.


def test_a_path_cannot_add_lines_or_terminal_codes(
    log: RequestLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.refused(at("/webhooks/a\nforged line\x1b[31m"), UnknownSource("a", ()))
    (record,) = caplog.records
    for text in (record.getMessage(), vars(record)["path"]):
        assert not {"\n", "\x1b"} & set(text)
