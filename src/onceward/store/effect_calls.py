"""Outside calls and operators' answers about them, on both stores."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from onceward.errors import LeaseLost, NotInState, StoreBlocked
from onceward.model.admin import OperatorAction, ResolvedEffect
from onceward.model.effects import (
    CallIntent,
    EffectCall,
    EffectStatus,
    Resolution,
    ResolvedOutcome,
)
from onceward.ports import Row
from onceward.store.audit import add_audit_entry
from onceward.store.base import ALTERED_ROWS, LEASE_LOST, BaseStore
from onceward.store.locks import Lock


class SqlEffectCalls(BaseStore):
    """The port `EffectCalls`, and the operators' part of it."""

    @abstractmethod
    async def _commit_call(self, name: str, /, **parameters: object) -> list[Row]:
        """Run a named statement and commit it durably, on a connection that no handler has."""

    async def start_call(self, intent: CallIntent) -> EffectCall | None:
        """Commit the intent of a call: of a new effect, or of one that was not applied.

        Return None if the effect is in another state, or if the lease does not name the job.
        """
        return _started(await self._commit_call("start_call", **_parameters(intent)))

    async def restart_call(
        self, intent: CallIntent, call: EffectCall, *, window_seconds: float | None
    ) -> EffectCall | None:
        """Commit the intent of another call over one whose outcome was unknown.

        Return None if the effect has changed, if the window is over, or if the lease does not name
        the job.
        """
        rows = await self._commit_call(
            "restart_call",
            **_parameters(intent),
            id=call.id,
            call_no=call.call_no,
            window_seconds=window_seconds,
        )
        return _started(rows)

    async def withdraw_call(self, intent: CallIntent) -> None:
        """Store that an intent whose commit was not confirmed was not sent."""
        await self._commit_call("withdraw_call", key=intent.key, nonce=intent.nonce)

    async def load_call(self, intent: CallIntent) -> EffectCall:
        """Return the last call of an effect. Raise LeaseLost if the lease does not name the job."""
        (row,) = await self._commit_call(
            "load_call", key=intent.key, token=intent.token, job=intent.job
        )
        if not row.pop("is_leased"):
            raise LeaseLost(LEASE_LOST)
        if row["id"] is None:
            raise StoreBlocked(ALTERED_ROWS.format(table="effects"))
        if row.pop("is_untouched"):
            await self._commit_call("touch_effect", key=intent.key)
        return _call(row)

    async def record_success(
        self, call: EffectCall, result: str | None, error_message: str | None
    ) -> None:
        """Store that an effect was applied: the truth, over any status."""
        await self._commit_call(
            "record_success", id=call.id, result=result, error_message=error_message
        )

    async def record_not_applied(self, call: EffectCall, error_message: str) -> EffectStatus:
        """Store that a call was not applied, if it is the last one. Return the effect's status."""
        rows = await self._commit_call(
            "record_not_applied", id=call.id, call_no=call.call_no, error_message=error_message
        )
        return EffectStatus(rows[0]["status"]) if rows else EffectStatus.UNKNOWN

    async def record_unknown(self, call: EffectCall, error_message: str) -> None:
        """Store that the outcome of a call is unknown, if it is the last one and pending."""
        await self._commit_call(
            "record_unknown", id=call.id, call_no=call.call_no, error_message=error_message
        )

    async def resolve_effect(
        self, effect: int, resolution: Resolution, action: OperatorAction
    ) -> ResolvedEffect | None:
        """Store a person's answer about an effect, with an audit entry.

        Queue the jobs that wait for it, also if the answer became known since they failed. Return
        None if the id is unknown. Raise NotInState.
        """
        happened = resolution.outcome is ResolvedOutcome.HAPPENED
        status = EffectStatus.SUCCEEDED if happened else EffectStatus.FAILED
        async with self._transaction(Lock.LEDGER) as transaction:
            rows = await transaction.run("lock_effect", id=effect)
            if not rows:
                return None
            requeued = await transaction.run(
                "requeue_waiting",
                id=effect,
                actor=action.actor,
                authenticated_as=action.authenticated_as,
                reason=action.reason,
            )
            if not (requeued and rows[0]["status"] == status):  # jobs wait for what is known
                _require_resolvable(effect, resolution, rows[0])
                await transaction.run(
                    "resolve_effect", id=effect, status=status, result=resolution.result
                )
            name = f"resolve_{resolution.outcome}"
            entry = await add_audit_entry(transaction, action, name, f"effect:{effect}")
        return ResolvedEffect(str(effect), status, tuple(row["id"] for row in requeued), entry)


def _parameters(intent: CallIntent) -> dict[str, Any]:
    return {
        "token": intent.token,
        "job": intent.job,
        "key": intent.key,
        "reference": intent.reference,
        "function": intent.function,
        "timeout_seconds": intent.timeout_seconds,
        "nonce": intent.nonce,
    }


def _started(rows: list[Row]) -> EffectCall | None:
    """Return the call that a statement started, if it did. Raise StoreBlocked."""
    if not rows:
        return None
    call = _call(rows[0])
    if call.status is not EffectStatus.PENDING:
        raise StoreBlocked(ALTERED_ROWS.format(table="effects"))
    return call


def _call(row: Row) -> EffectCall:
    return EffectCall(**{**row, "status": EffectStatus(row["status"])})


def _require_resolvable(effect: int, resolution: Resolution, row: Row) -> None:
    """Raise NotInState if a person's answer cannot be stored."""
    if row["function"] is None:
        raise NotInState(f"Effect {effect} is a mark of effects.once. It has no outside call.")
    if row["status"] == EffectStatus.SUCCEEDED and not _lacks_result(resolution, row):
        raise NotInState(f"Effect {effect} has already succeeded. Nothing was changed.")
    if row["seconds_left"] > 0:
        raise NotInState(
            f"The last call of effect {effect} may be under way for {row['seconds_left']:.0f} s "
            "more. Look again after its deadline."
        )
    if resolution.outcome is ResolvedOutcome.HAPPENED:
        return
    if row["status"] == EffectStatus.FAILED:
        raise NotInState(f"Effect {effect} is already known not to have happened.")
    if resolution.call_no != row["call_no"]:
        raise NotInState(
            f"Effect {effect} was called again since: its last call is {row['call_no']}, not "
            f"{resolution.call_no}. Find out whether that one happened."
        )


def _lacks_result(resolution: Resolution, row: Row) -> bool:
    """Return whether an answer adds the result of a call whose own result could not be stored."""
    is_unstored = row["error_message"] is not None
    return is_unstored and resolution.outcome is ResolvedOutcome.HAPPENED
