"""The setting `redis`: the id cache beside the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.sources.source import Source

if TYPE_CHECKING:
    from onceward.accelerators.redis.id_cache import RedisIdCache


def make_id_cache(
    settings: Settings, sources: Iterable[Source], failpoints: Failpoints, clock: Clock
) -> RedisIdCache | None:
    """Return the id cache in Redis, if there is one. Raise ConfigurationError for its URL."""
    if not settings.redis:
        return None
    from onceward.accelerators.redis.address import parse_address  # noqa: PLC0415 - few have one
    from onceward.accelerators.redis.id_cache import DAY_SECONDS, RedisIdCache  # noqa: PLC0415

    ttl_seconds = {source.name: source.preset.max_resend_days * DAY_SECONDS for source in sources}
    return RedisIdCache(
        parse_address(settings.redis),
        ttl_seconds,
        clock,
        failpoints,
        max_ttl_seconds=(settings.dedupe_window_days or math.inf) * DAY_SECONDS,
    )
