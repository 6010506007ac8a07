"""The ledger checker accepts a correct ledger, and finds every kind of damage to it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.client_history import Outcome
from support.database import RawDatabase
from support.ledger_checker import LedgerChecker, Violation
from support.processes import APPS, Serve
from tests.payment_history import History, HistorySummary, Payment, check_ledger

PAID = Payment("evt_1", 5)
CHANGED = Payment("evt_1", 6)
MALFORMED = Payment("malformed", None)
COPY_EVENTS = """
    INSERT INTO onceward.events (received_at, source, routed, event_id, type, body_sha256)
    SELECT received_at, source + 1, routed, event_id, type, body_sha256 FROM onceward.events
"""
ADD_AUDIT_ENTRIES = """
    INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject)
    SELECT 1, 'ann', 'ann', 'manual_requeue', 'retry', 'job:' || id FROM onceward.jobs
"""


@dataclass(frozen=True)
class Ledger:
    file: Path
    history: History


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Record a new event, a duplicate, a conflict and a malformed event."""
    file = tmp_path_factory.mktemp("ledger") / "onceward.db"
    history = History()
    with Serve(APPS / "probe.py", f"sqlite:///{file}", forked=True) as service:
        for payment in (PAID, PAID, CHANGED, MALFORMED):
            history.send(service, payment)
        service.wait_until_idle()
        service.terminate()
        assert service.wait() == 0
    return Ledger(file, history)


@pytest.fixture
def ledger(original: Ledger, tmp_path: Path) -> RawDatabase:
    file = tmp_path / "onceward.db"
    shutil.copy(original.file, file)
    return RawDatabase(f"sqlite:///{file}")


def violations(ledger: RawDatabase, history: History) -> set[Violation]:
    checker = LedgerChecker(ledger, HistorySummary(history))
    checker.check()
    return set(checker.findings.counts)


def test_a_correct_ledger_has_no_findings(ledger: RawDatabase, original: Ledger) -> None:
    assert original.history.accepted == 4
    check_ledger(ledger, original.history)


def test_a_permanent_failure_may_end_with_the_fault_of_on_failed(
    ledger: RawDatabase, original: Ledger
) -> None:
    ledger.rows("UPDATE onceward.attempts SET error = 'declined; on_failed raised an error'")
    check_ledger(ledger, original.history)


@pytest.mark.parametrize(
    ("damage", "violation"),
    [
        ("DELETE FROM onceward.events WHERE event_id = 'evt_1'", Violation.LOST),
        (
            "UPDATE onceward.events SET event_id = 'evt_2' WHERE event_id = 'evt_1'",
            Violation.UNEXPECTED,
        ),
        (COPY_EVENTS, Violation.RECORDED_TWICE),
        ("INSERT INTO probes VALUES ('evt_2', 1)", Violation.UNEXPECTED),
        ("UPDATE onceward.events SET body_sha256 = x'00'", Violation.WRONG_BODY),
        ("UPDATE onceward.events SET deliveries = 9", Violation.WRONG_DELIVERY_COUNT),
        ("DELETE FROM onceward.deliveries", Violation.WRONG_DELIVERY_COUNT),
        ("UPDATE onceward.deliveries SET outcome = 'duplicate'", Violation.WRONG_DELIVERY_COUNT),
        ("UPDATE onceward.jobs SET status = 'queued'", Violation.UNFINISHED),
        ("UPDATE onceward.jobs SET status = 'failed'", Violation.WRONG_FINAL_STATE),
        ("UPDATE onceward.jobs SET status = 'done'", Violation.WRONG_FINAL_STATE),
        ("INSERT INTO probes VALUES ('evt_1', 0)", Violation.APPLIED_TWICE),
        ("DELETE FROM probes", Violation.NOT_APPLIED),
        ("INSERT INTO probes VALUES ('malformed', 1)", Violation.APPLIED_BUT_NOT_DONE),
        ("DELETE FROM onceward.effects", Violation.WRONG_EFFECT),
        ("UPDATE onceward.effects SET idempotency_key = 'x'", Violation.WRONG_EFFECT),
        ("UPDATE onceward.effects SET status = 'unknown'", Violation.WRONG_EFFECT),
        ("UPDATE probes SET is_first = 0", Violation.WRONG_EFFECT),
        ("UPDATE onceward.jobs SET attempts = attempts + 1", Violation.ILLEGAL_TRANSITION),
        ("DELETE FROM onceward.attempts", Violation.ILLEGAL_TRANSITION),
        ("UPDATE onceward.attempts SET error = 'other'", Violation.ILLEGAL_TRANSITION),
        (ADD_AUDIT_ENTRIES, Violation.ILLEGAL_TRANSITION),
        ("UPDATE accounts SET balance = balance + 1", Violation.UNBALANCED),
    ],
)
def test_damage_to_the_ledger_is_found(
    ledger: RawDatabase, original: Ledger, damage: str, violation: Violation
) -> None:
    ledger.rows(damage)
    assert violation in violations(ledger, original.history)


@pytest.mark.parametrize(
    ("outcome", "violation"),
    [
        (Outcome.RECORDED, Violation.REPORTED_NEW_TWICE),
        (Outcome.REJECTED, Violation.WRONG_RESPONSE),
    ],
)
def test_a_wrong_response_is_found(
    ledger: RawDatabase, original: Ledger, outcome: Outcome, violation: Violation
) -> None:
    history = History([*original.history.entries, (PAID, outcome)])
    assert violation in violations(ledger, history)
