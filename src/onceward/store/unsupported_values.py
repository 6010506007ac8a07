"""Parameters of a handler's statement that a driver cannot pass to the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from onceward.errors import TransactionMisuse
from onceward.runtime.sql_text import Sql
from onceward.runtime.value_kind import kind_of

_ADVICE: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (Enum, "pass its .value"),
    ((dict, list, tuple), "pass json.dumps(…)"),
    ((set, frozenset), "pass json.dumps(list(…))"),
    ((Decimal, UUID), "pass str(…)"),
    (int, "which is too large for the database; pass str(…)"),
    (object, "pass a str, a number, bytes or None"),
)


def unsupported_value(
    statement: Sql, parameters: Mapping[str, Any], is_supported: Callable[[Any], bool]
) -> TransactionMisuse | None:
    """Return an error that names the first value which the driver does not support, or None."""
    for name in sorted(statement.names):
        value = parameters[name]
        if not is_supported(value):
            advice = next(advice for kinds, advice in _ADVICE if isinstance(value, kinds))
            separator = "," if advice.startswith("which") else ";"
            return TransactionMisuse(f":{name} is {kind_of(value)}{separator} {advice}")
    return None
