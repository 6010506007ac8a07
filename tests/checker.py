"""What a client saw, and whether the ledger agrees: nothing is lost, doubled or made up."""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import httpx
import msgspec

from support.database import RawDatabase
from support.processes import Serve

Outcome = Literal["ok", "refused", "unknown"]
TYPE = "payment.made"


@dataclass(frozen=True)
class Sending:
    """One event to send to the probe app: without an amount, its handler cannot use it."""

    event_id: str
    amount: int | None
    account: str = "a"

    @property
    def payload(self) -> dict[str, object]:
        return {} if self.amount is None else {"account": self.account, "amount": self.amount}

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(
            {"event_id": self.event_id, "event_type": TYPE, "payload": self.payload}
        )

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.body).digest()


@dataclass
class Journal:
    """Everything that was sent, and what came back. Threads may share it."""

    entries: list[tuple[Sending, Outcome]] = field(default_factory=list)
    requeues: list[tuple[str, Outcome]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, service: Serve, sending: Sending) -> Outcome:
        """Send an event once, and note what came back."""
        outcome = self._outcome(
            lambda: service.http.post(
                "/events/ingest",
                content=sending.body,
                headers={"content-type": "application/json"},
            )
        )
        with self._lock:
            self.entries.append((sending, outcome))
        return outcome

    def requeue(self, service: Serve, job: str) -> Outcome:
        """Requeue a job once, and note what came back."""
        outcome = self._outcome(lambda: service.requeue(job, actor="ann", reason="sweep"))
        self.requeues.append((job, outcome))
        return outcome

    @property
    def open(self) -> list[Sending]:
        """What was sent and never accepted: a sender would send it again."""
        accepted = {sending for sending, outcome in self.entries if outcome == "ok"}
        return [
            sending
            for sending in dict.fromkeys(sending for sending, _ in self.entries)
            if sending not in accepted
        ]

    def ids(self, outcome: Outcome | None = None) -> Counter[str]:
        """How often each id was sent, to that outcome or to any."""
        with self._lock:
            entries = list(self.entries)
        return Counter(sending.event_id for sending, had in entries if outcome in (None, had))

    @staticmethod
    def _outcome(call: Callable[[], httpx.Response]) -> Outcome:
        try:
            status = call().status_code
        except httpx.TransportError:
            return "unknown"
        if status < 300:
            return "ok"
        return "unknown" if status >= 500 else "refused"


def check_acknowledged(raw_db: RawDatabase, journal: Journal) -> None:
    """At any moment: all that was acknowledged until now is there, once."""
    acknowledged = journal.ids("ok")  # before the look: more may come during it
    found = Counter(event for (event,) in raw_db.rows("SELECT event_id FROM onceward.events"))
    assert found.keys() >= acknowledged.keys()
    assert set(found.values()) <= {1}


def check_at_rest(raw_db: RawDatabase, journal: Journal) -> None:
    """At rest: the whole ledger is what the journal allows, and no effect happened twice."""
    check_acknowledged(raw_db, journal)
    _check_deliveries(raw_db, journal)
    _check_work(raw_db, journal)
    _check_requeues(raw_db, journal)


def _check_deliveries(raw_db: RawDatabase, journal: Journal) -> None:
    sent, accepted = journal.ids(), journal.ids("ok")
    hashes = {(sending.event_id, sending.sha256) for sending, _ in journal.entries}
    again: dict[int, int] = dict(
        raw_db.rows("SELECT event, count(*) FROM onceward.deliveries GROUP BY event")
    )
    for event, event_id, sha256, deliveries in raw_db.rows(
        "SELECT id, event_id, body_sha256, deliveries FROM onceward.events"
    ):
        assert (event_id, bytes(sha256)) in hashes, f"{event_id} was never sent like this"
        assert accepted[event_id] <= deliveries <= sent[event_id]
        assert deliveries == 1 + again.get(event, 0)


def _check_work(raw_db: RawDatabase, journal: Journal) -> None:
    """One committed run, one effect and one booking for each done job, and none for any other."""
    by_hash = {sending.sha256: sending for sending, _ in journal.entries}
    done: dict[str, int] = {}
    for event_id, sha256, status, failure in raw_db.rows(
        "SELECT e.event_id, e.body_sha256, j.status, j.failure_type "
        "FROM onceward.events e LEFT JOIN onceward.jobs j ON j.event = e.id"
    ):
        amount = by_hash[bytes(sha256)].amount
        if amount is None:
            assert (status, failure) == ("failed", "permanent"), event_id
        else:
            assert (status, failure) == ("done", None), event_id
            done[event_id] = amount
    probes = raw_db.rows("SELECT event, is_first FROM probes")
    assert Counter(event for event, _ in probes) == dict.fromkeys(done, 1)
    assert all(is_first for _, is_first in probes)
    effects = raw_db.rows("SELECT idempotency_key, status FROM onceward.effects")
    assert sorted(effects) == sorted((f"credit:{event}", "succeeded") for event in done)
    balance = raw_db.value("SELECT COALESCE(sum(balance), 0) FROM accounts")
    assert balance == sum(done.values())


def _check_requeues(raw_db: RawDatabase, journal: Journal) -> None:
    """Each requeue is there with its audit entry and its further run, or not at all."""
    asked = Counter(job for job, _ in journal.requeues)
    accepted = Counter(job for job, outcome in journal.requeues if outcome == "ok")
    noted = Counter(
        subject.removeprefix("job:")
        for (subject,) in raw_db.rows("SELECT subject FROM onceward.audit")
    )
    runs = Counter(
        str(job)
        for (job,) in raw_db.rows(
            "SELECT job FROM onceward.attempts WHERE error LIKE 'Malformed payload%'"
        )
    )
    for job, count in runs.items():
        assert count == 1 + noted[job]
        assert accepted[job] <= noted[job] <= asked[job]
    assert noted.keys() <= runs.keys()
