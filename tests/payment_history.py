"""Payments to the probe app, the responses they got, and a check of the ledger against both."""

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx
import msgspec

from support.client_history import Expectation, Outcome, Requeue, SentEvent, outcome_of
from support.database import RawDatabase
from support.ledger_checker import LedgerChecker
from support.processes import Serve

TYPE = "payment.made"
VALID = Expectation(has_effect=True)
MALFORMED = Expectation(can_succeed=False, can_fail=True)


@dataclass(frozen=True)
class Payment:
    """One event for the probe app. Without an amount, its payload is malformed."""

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
class History:
    """Every payment that was sent, with its outcome. Threads may share a history."""

    _entries: list[tuple[Payment, Outcome]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, service: Serve, payment: Payment) -> Outcome:
        """Send a payment once and record the outcome."""
        headers = {"content-type": "application/json"}
        try:
            response = service.http.post("/events/ingest", content=payment.body, headers=headers)
            outcome = outcome_of(response.status_code, response.content)
        except httpx.TransportError:
            outcome = Outcome.UNKNOWN
        with self._lock:
            self._entries.append((payment, outcome))
        return outcome

    @property
    def entries(self) -> list[tuple[Payment, Outcome]]:
        """The payments sent so far, in order."""
        with self._lock:
            return list(self._entries)

    @property
    def accepted(self) -> int:
        """The number of accepted requests."""
        return sum(outcome.is_accepted for _, outcome in self.entries)

    @property
    def unknown(self) -> int:
        """The number of requests with an unknown outcome."""
        return sum(outcome is Outcome.UNKNOWN for _, outcome in self.entries)

    @property
    def unaccepted(self) -> list[Payment]:
        """The payments that were never accepted: a sender would retry them."""
        entries = self.entries
        accepted = {payment for payment, outcome in entries if outcome.is_accepted}
        return [payment for payment in dict(entries) if payment not in accepted]


class HistorySummary:
    """The requests of a history, added up by event."""

    def __init__(self, history: History) -> None:
        self.requeues: Sequence[Requeue] = ()
        self._amounts: dict[tuple[str, bytes], int] = {}
        self._events: dict[str, SentEvent] = {}
        outcomes: dict[str, list[Outcome]] = {}
        expectations: dict[str, Expectation] = {}
        for payment, outcome in history.entries:
            outcomes.setdefault(payment.event_id, []).append(outcome)
            expectations[payment.event_id] = MALFORMED if payment.amount is None else VALID
            self._amounts[payment.event_id, payment.sha256] = payment.amount or 0
        for number, (event_id, seen) in enumerate(outcomes.items()):
            self._events[event_id] = SentEvent(
                number,
                event_id,
                requests=len(seen),
                accepted=sum(outcome.is_accepted for outcome in seen),
                recorded=seen.count(Outcome.RECORDED),
                rejected=seen.count(Outcome.REJECTED),
                expectation=expectations[event_id],
            )

    def __len__(self) -> int:
        return len(self._events)

    def event(self, event_id: str) -> SentEvent | None:
        """Return the event with this id; None if no request carried it."""
        return self._events.get(event_id)

    def events(self) -> Iterator[SentEvent]:
        """Yield every event that was sent."""
        yield from self._events.values()

    def amount(self, event: SentEvent, body_sha256: bytes) -> int | None:
        """Return the amount that a body of the event books; None if that body was never sent."""
        return self._amounts.get((event.event_id, body_sha256))


def check_acknowledged(raw_db: RawDatabase, history: History) -> None:
    """Check, under load, that every event acknowledged so far is in the ledger once."""
    accepted = {payment.event_id for payment, outcome in history.entries if outcome.is_accepted}
    rows = Counter(event_id for (event_id,) in raw_db.rows("SELECT event_id FROM onceward.events"))
    assert rows.keys() >= accepted
    assert set(rows.values()) <= {1}


def check_ledger(raw_db: RawDatabase, history: History) -> None:
    """Check an idle ledger: nothing is lost, duplicated or invented."""
    checker = LedgerChecker(raw_db, HistorySummary(history))
    checker.check()
    assert checker.findings.items == []
