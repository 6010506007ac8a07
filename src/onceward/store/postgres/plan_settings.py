"""The settings under which the server plans Onceward's own statements.

Planning takes as long as running, so connections keep their plans. A plan made while the tables are
small must also do when they are large: it may neither read a whole table nor compare every row of a
batch with every other.
"""

from __future__ import annotations

from typing import Final

# psycopg prepares these statements after a few uses. Their plans are kept from then on, too.
SETTLING: Final = {"enable_seqscan": "off"}
KEEP_PLANS: Final = SETTLING | {"plan_cache_mode": "force_generic_plan"}

# A bitmap scan locks rows in their physical order, which changes: two receivers that count the same
# events would deadlock. An index scan locks them in the order of their ids.
RECORDING: Final = KEEP_PLANS | {"enable_nestloop": "off", "enable_bitmapscan": "off"}

# A claim that a crash of the server loses is only a lost lease.
CLAIMING: Final = KEEP_PLANS | {"synchronous_commit": "off"}

# For one statement in the transaction of a handler, whose session has other settings. Undone before
# the COMMIT, for deferred triggers.
KEEP_PLAN: Final = "; ".join(
    f"SET LOCAL {name} = {value}" for name, value in KEEP_PLANS.items()
).encode()
UNDO_KEEP_PLAN: Final = "; ".join(f"RESET {name}" for name in KEEP_PLANS).encode()
