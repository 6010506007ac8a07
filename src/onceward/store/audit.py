"""Entries of the audit trail, written in the transaction of the action."""

from __future__ import annotations

from datetime import datetime

from onceward.model.admin import AuditItem, OperatorAction
from onceward.store.base import LedgerTransaction


async def add_audit_entry(
    transaction: LedgerTransaction, action: OperatorAction, name: str, subject: str
) -> AuditItem:
    """Record an operator's action, under its `name`, on a subject."""
    (row,) = await transaction.run(
        "add_audit_entry",
        actor=action.actor,
        authenticated_as=action.authenticated_as,
        action=name,
        reason=action.reason,
        subject=subject,
    )
    return audit_item(action, name, subject, **row)


def audit_item(
    action: OperatorAction, name: str, subject: str, *, id: str, created_at: datetime
) -> AuditItem:
    """Return the entry of an action that is recorded."""
    return AuditItem(
        id=id,
        job_id=subject.removeprefix("job:") if subject.startswith("job:") else None,
        subject=subject,
        action=name,
        actor=action.actor,
        authenticated_as=action.authenticated_as,
        reason=action.reason,
        created_at=created_at,
    )
