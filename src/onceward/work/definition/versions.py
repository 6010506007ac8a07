"""The version of the object that an event is about, and the key under which versions compare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypedDict

from onceward.errors import PermanentError
from onceward.model.events import INGEST_SOURCE
from onceward.model.jobs import Job
from onceward.model.versions import VERSION_LIMIT_BYTES, Version, Watermark
from onceward.work.definition.ordering_keys import key_text
from onceward.work.definition.payload_paths import find_value, path_faults, wrong_kind
from onceward.work.payloads.payload import content_type_of, decode_exactly


class VersionOptions(TypedDict, total=False):
    """The options of a handler that ignores stale events. `Inbox.on` documents them."""

    version: str | None
    version_key: str | None


@dataclass(frozen=True, slots=True)
class VersionRule:
    """The paths of the version and of its key in the payloads of a handler."""

    version: str
    key: str


def version_faults(options: VersionOptions, *, transaction: object) -> Iterator[str]:
    """Yield a fault for each option that cannot work."""
    version: object = options.get("version")
    key: object = options.get("version_key")
    if version is None and key is None:
        return
    if version is not None:
        yield from path_faults("version", version, "created")
    if key is not None:
        yield from path_faults("version_key", key)
    if key is None:
        yield "version needs version_key beside it; add it, or remove version"
    if version is None:
        yield "version_key needs version beside it; add it, or remove version_key"
    if transaction == "shared":
        yield (
            "version does not work with transaction='shared': a stale job must roll back alone, "
            "and a shared transaction would roll back its neighbours; remove one of the two"
        )


def make_version_rule(options: VersionOptions) -> VersionRule | None:
    """Return the rule of options that have no fault; None without one."""
    version, key = options.get("version"), options.get("version_key")
    return None if version is None or key is None else VersionRule(version, key)


def read_version(rule: VersionRule, job: Job, body: bytes) -> tuple[str, Watermark]:
    """Return the key of an event, and the watermark that it sets.

    Raise PermanentError, with the path, if the payload has no usable key or version.
    """
    document = decode_exactly(
        body,
        enveloped=job.source == INGEST_SOURCE,
        content_type=content_type_of(job.headers),
    )
    key = _key(rule.key, find_value(document, rule.key.split(".")))
    version = _version(rule.version, find_value(document, rule.version.split(".")))
    return key, Watermark(version, job.event_id, job.source)


def _key(path: str, value: object) -> str:
    _require("version_key", path, value)
    key = key_text(float(value) if isinstance(value, Decimal) else value)
    if key is None:
        raise PermanentError(f"version_key {path} is a number that no key can be")
    return key


def _version(path: str, value: Any) -> Version:
    _require("version", path, value)
    version: Version = value if isinstance(value, str) else Decimal(value)
    length = len(str(version).encode(errors="surrogatepass"))
    if length > VERSION_LIMIT_BYTES:
        raise PermanentError(
            f"version {path} is {length} bytes long; the limit is {VERSION_LIMIT_BYTES}; name a "
            "counter or a time"
        )
    return version


def _require(option: str, path: str, value: object) -> None:
    """Raise PermanentError unless a value is a text or a number."""
    if value is None:
        raise PermanentError(
            f"{option} {path} is missing or null in the payload; compare the path "
            "with the payload, and correct it in the code before you requeue"
        )
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise PermanentError(wrong_kind(option, path, value))
