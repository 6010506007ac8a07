"""From the options of ``inbox.source(…)`` to a checked Source."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeVar

from onceward.errors import ConfigurationError
from onceward.model.events import INGEST_SOURCE, DuplicateBody
from onceward.sources.identify import Locators, make_locators
from onceward.sources.presets import CUSTOM_HMAC, PRESETS, Preset, find_preset
from onceward.sources.request import header_key, is_header_name
from onceward.sources.schemes import Jwt, Key, Scheme, Signature
from onceward.sources.selectors import HeaderSelector
from onceward.sources.source import Source

SHORTEST_SECRET_BYTES: Final = 8


ALWAYS_KEPT: Final = ("content-type", "user-agent")


NEVER_KEPT: Final = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie"})


NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


T = TypeVar("T")


def make_source(
    name: str,
    *,
    preset: str | Preset | None = None,
    scheme: str | Scheme | None = None,
    secrets: Sequence[str | bytes] = (),
    unsigned: bool = False,
    url: str | None = None,
    verify_token: str | None = None,
    signature_header: str | None = None,
    signature_prefix: str | None = None,
    id: str | Sequence[str] | None = None,
    type: str | Sequence[str] | None = None,
    reference: str | None = None,
    tolerance_seconds: int | None = None,
    keep_headers: Iterable[str] = (),
    duplicate_body: DuplicateBodyOption | None = None,
    volatile_fields: Iterable[str] | None = None,
    keep_rejected: bool = False,
) -> Source:
    """Make a source. What is not given comes from the preset: the one named, else its namesake.

    Raises ConfigurationError with every fault, each naming the source; none shows a secret.
    """
    checks = _Checks(name)
    checks.attempt(_check_name, name)
    base = checks.attempt(preset_of, name, preset) or PRESETS[CUSTOM_HMAC]
    chosen = checks.attempt(scheme_of, base, scheme)
    final = None
    if chosen is not None:
        final = checks.attempt(
            _adapted, base, chosen, signature_header, signature_prefix, tolerance_seconds
        )
    ids = base.ids if id is None else _several(id)
    types = base.types if type is None else _several(type)
    locators = checks.attempt(
        partial(make_locators, is_part=base.events is not None),
        ids,
        types,
        reference or base.reference,
    )
    kept = checks.attempt(_kept, base, keep_headers)
    hands_over = (
        verify_token is not None and base.challenge is not None and base.challenge.provisions_secret
    )
    keys = checks.attempt(_keys, chosen, secrets, unsigned or (hands_over and not secrets))
    checked_duplicate_body = checks.attempt(_duplicate_body, locators, chosen, duplicate_body)
    differing = checks.attempt(_volatile_patterns, base, volatile_fields)
    checks.attempt(_check_url, base, chosen, url)
    checks.attempt(_check_verify_token, base, verify_token)
    if final is None or locators is None or kept is None or keys is None or checks.faults:
        raise ConfigurationError(checks.faults)
    return Source(
        name=name,
        base=replace(base, id=ids, type=types, reference=reference or base.reference),
        scheme=final,
        locators=locators,
        kept=kept,
        unsigned=unsigned,
        keys=keys,
        secrets=tuple(_bytes(secret) for secret in secrets),
        url=url,
        needs_url=final.needs_url or base.challenge is not None,
        verify_token=None if verify_token is None else verify_token.encode(),
        duplicate_body=checked_duplicate_body or DuplicateBody.ALLOWED,
        volatile_fields=differing or (),
        keeps_rejected=keep_rejected,
    )


def _several(places: str | Sequence[str]) -> tuple[str, ...]:
    return (places,) if isinstance(places, str) else tuple(places)


class _Checks:
    """Collects the faults of one source, so that all can be mended at once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.faults: list[str] = []

    def attempt(self, make: Callable[..., T], *args: object) -> T | None:
        try:
            return make(*args)
        except ConfigurationError as error:
            self.faults.extend(f"source {self._name!r}: {fault}" for fault in error.faults)
            return None


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            "the name must be 1 to 64 of a-z, 0-9, _ and -, beginning with a letter or a digit"
        )
    if name == INGEST_SOURCE:
        raise ConfigurationError("the name is reserved for POST /events/ingest")


def preset_of(name: str, preset: str | Preset | None) -> Preset:
    """The preset that is given, or named, or that a source's own name means."""
    if isinstance(preset, Preset):
        return preset
    if preset is None:
        return PRESETS.get(name, PRESETS[CUSTOM_HMAC])
    return find_preset(preset)


def scheme_of(base: Preset, scheme: str | Scheme | None) -> Scheme:
    """The scheme that is given, or one of the preset's. Raises ConfigurationError."""
    return base.scheme(scheme) if scheme is None or isinstance(scheme, str) else scheme


DuplicateBodyOption = Literal["allow", "flag", "hold"]


_DUPLICATE_BODY_OPTIONS: Final[Mapping[DuplicateBodyOption, DuplicateBody]] = {
    "allow": DuplicateBody.ALLOWED,
    "flag": DuplicateBody.FLAGGED,
    "hold": DuplicateBody.HELD,
}


def _duplicate_body(
    locators: Locators | None, scheme: Scheme | None, duplicate_body: DuplicateBodyOption | None
) -> DuplicateBody:
    """What is asked for; else the same body under another id is flagged where ids are unsigned."""
    if duplicate_body is not None:
        if duplicate_body not in _DUPLICATE_BODY_OPTIONS:
            raise ConfigurationError(
                f"duplicate_body must be one of {', '.join(_DUPLICATE_BODY_OPTIONS)}"
            )
        return _DUPLICATE_BODY_OPTIONS[duplicate_body]
    if locators is None or scheme is None or not scheme.covers_body:
        return DuplicateBody.ALLOWED
    headers = [it for choice in locators.id for it in choice if isinstance(it, HeaderSelector)]
    is_signed = all(scheme.signs_header(header.name) for header in headers)
    return DuplicateBody.ALLOWED if is_signed else DuplicateBody.FLAGGED


_VALUE: Final = rb'\s*:\s*(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|[-+.0-9eE]+|true|false|null)'


def _volatile_patterns(
    base: Preset, volatile_fields: Iterable[str] | None
) -> tuple[re.Pattern[bytes], ...]:
    """Find the members of these names, wherever in a body, as far as they are plain values."""
    if isinstance(volatile_fields, str):
        raise ConfigurationError("varies must be a list, also where there is only one")
    names = base.volatile_fields if volatile_fields is None else tuple(volatile_fields)
    # A pattern that begins with plain letters is looked for fast; one for all names would not.
    return tuple(re.compile(re.escape(json.dumps(name).encode()) + _VALUE) for name in names)


def _check_verify_token(base: Preset, verify_token: str | None) -> None:
    if verify_token is None:
        return
    if base.challenge is None:
        raise ConfigurationError(f"verify_token has no use: {base.name!r} does not ask for one")
    if len(verify_token) < SHORTEST_SECRET_BYTES:
        raise ConfigurationError(f"verify_token is shorter than {SHORTEST_SECRET_BYTES}")


def _check_url(base: Preset, scheme: Scheme | None, url: str | None) -> None:
    if url is not None and not url.startswith(("https://", "http://")):
        raise ConfigurationError(f"url {url!r} must begin with https:// (or http://)")
    if url is None and isinstance(scheme, Jwt) and scheme.audience_is_url:
        raise ConfigurationError("url is needed: a token is for it, and the Host header anyone's")
    is_needed = base.challenge is not None or (scheme is not None and scheme.needs_url)
    if url is not None and not is_needed:
        raise ConfigurationError("url has no use: this scheme does not sign it")


def _adapted(
    base: Preset,
    scheme: Scheme,
    header: str | None,
    prefix: str | None,
    tolerance_seconds: int | None,
) -> Scheme:
    faults = list(_scheme_faults(base, scheme, header, prefix, tolerance_seconds))
    if faults:
        raise ConfigurationError(faults)
    changes: dict[str, Any] = {}
    if header is not None:
        changes["at"] = f"header:{header}"
    if prefix is not None:
        changes["prefix"] = prefix
    if tolerance_seconds is not None:
        changes["tolerance_seconds"] = tolerance_seconds
    return replace(scheme, **changes) if changes else scheme  # type: ignore[type-var] # every scheme is a dataclass


def _scheme_faults(
    base: Preset,
    scheme: Scheme,
    header: str | None,
    prefix: str | None,
    tolerance_seconds: int | None,
) -> Iterator[str]:
    by_hand = base.name == CUSTOM_HMAC and isinstance(scheme, Signature)
    if (header is not None or prefix is not None) and not by_hand:
        yield (
            f"the preset {base.name!r} fixes the signature's header and prefix; "
            f"to set them, use preset={CUSTOM_HMAC!r}"
        )
    if header is not None and not is_header_name(header):
        yield f"signature_header {header!r} is not the name of a header"
    if prefix is not None and not prefix.isascii():
        yield "signature_prefix must be plain ASCII"
    if tolerance_seconds is not None and scheme.tolerance_seconds is None:
        yield f"tolerance_seconds has no use: the preset {base.name!r} signs no timestamp"
    elif tolerance_seconds is not None and not isinstance(scheme, Signature | Jwt):
        yield f"the preset {base.name!r} fixes its tolerance"
    elif tolerance_seconds is not None and tolerance_seconds < 1:
        yield f"tolerance_seconds is {tolerance_seconds}; it must be 1 or more"


def _kept(base: Preset, keep_headers: Iterable[str]) -> tuple[tuple[str, bytes], ...]:
    if isinstance(keep_headers, str):
        raise ConfigurationError("keep_headers must be a list, also where there is only one")
    names = [name.lower() for name in (*ALWAYS_KEPT, *base.keep_headers, *keep_headers)]
    faults = [f"keep_headers: {fault}" for name in names if (fault := _kept_fault(name))]
    if faults:
        raise ConfigurationError(faults)
    return tuple((name, header_key(name)) for name in dict.fromkeys(names))


def _kept_fault(name: str) -> str | None:
    if name in NEVER_KEPT:
        return f"{name} holds credentials and is never kept"
    if not is_header_name(name):
        return f"{name!r} is not the name of a header"
    return None


def _keys(
    scheme: Scheme | None,
    secrets: Sequence[str | bytes],
    unsigned: bool,  # noqa: FBT001
) -> tuple[Key, ...]:
    if isinstance(secrets, str | bytes):
        raise ConfigurationError("secrets must be a list, also where there is only one")
    if unsigned and secrets:
        raise ConfigurationError("it has secrets and says unsigned=True; take one of them away")
    if not unsigned and not secrets:
        raise ConfigurationError(
            "it has no secrets; give secrets=[…] from the sender's settings, "
            "or unsigned=True to take what anyone sends"
        )
    keys: list[Key] = []
    faults: list[str] = []
    for position, secret in enumerate(secrets, start=1):
        try:
            keys += () if scheme is None else scheme.keys(secret)
            _check_length(secret)
        except ConfigurationError as error:
            faults += [f"secret {position} {fault}" for fault in error.faults]
    if faults:
        raise ConfigurationError(faults)
    return tuple(keys)


def _check_length(secret: str | bytes) -> None:
    length = len(_bytes(secret))
    if length < SHORTEST_SECRET_BYTES:
        raise ConfigurationError(f"is {length} bytes long; the least is {SHORTEST_SECRET_BYTES}")


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret
