"""One configured sender: how its requests are verified, and what they are about."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import msgspec

from onceward.errors import ConfigurationError
from onceward.identify import Locators, identify, make_locators
from onceward.model import INGEST_SOURCE, Identity
from onceward.providers import PRESETS, Preset, presets
from onceward.verify import Headers, HmacScheme, Plain, Scheme, header_key, is_header_name, verify

SHORTEST_SECRET_BYTES: Final = 8
ALWAYS_KEPT: Final = ("content-type", "user-agent")
NEVER_KEPT: Final = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie"})

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Source:
    """A sender as configured. Made by `make_source`, which checks it."""

    name: str
    preset: str
    scheme: Scheme
    locators: Locators = field(repr=False)
    kept: tuple[tuple[str, bytes], ...]
    unsigned: bool = False
    secrets: tuple[bytes, ...] = field(default=(), repr=False)

    def admit(self, headers: Headers, body: bytes, now: float) -> Identity:
        """Say what a genuine request is about.

        Raises SignatureRejected (401) when it is not genuine, RequestRefused (422) when it has no
        usable id and (400) when a header that decides occurs twice.
        """
        if not self.unsigned:
            verify(self.scheme, self.secrets, headers, body, now)
        return identify(self.locators, headers, body)

    def kept_headers(self, headers: Headers) -> bytes:
        """The headers that are kept with the payload, as a JSON object with lower-case names."""
        found = {}
        for name, key in self.kept:
            value = headers.joined(key)
            if value is not None:
                found[name] = value.decode("latin-1")
        return _encode(found)


def make_source(
    name: str,
    *,
    preset: str | None = None,
    secrets: Sequence[str | bytes] = (),
    unsigned: bool = False,
    signature_header: str | None = None,
    signature_prefix: str | None = None,
    id: str | None = None,
    type: str | Sequence[str] | None = None,
    reference: str | None = None,
    tolerance_seconds: int | None = None,
    keep_headers: Iterable[str] = (),
) -> Source:
    """Make a source. What is not given comes from the preset: the one named, else its namesake.

    Raises ConfigurationError with every fault, each naming the source; none shows a secret.
    """
    checks = _Checks(name)
    checks.attempt(_check_name, name)
    base = checks.attempt(_preset, name, preset) or PRESETS[presets.BY_HAND]
    scheme = checks.attempt(_scheme, base, signature_header, signature_prefix, tolerance_seconds)
    types = base.type if type is None else (type,) if isinstance(type, str) else tuple(type)
    locators = checks.attempt(make_locators, id or base.id, types, reference or base.reference)
    kept = checks.attempt(_kept, base, keep_headers)
    keys = checks.attempt(_keys, secrets, unsigned)
    if scheme is None or locators is None or kept is None or keys is None or checks.faults:
        raise ConfigurationError(checks.faults)
    return Source(name, base.name, scheme, locators, kept, unsigned, keys)


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


def _preset(name: str, preset: str | None) -> Preset:
    if preset is None:
        return PRESETS.get(name, PRESETS[presets.BY_HAND])
    return presets.preset(preset)


def _scheme(
    base: Preset, header: str | None, prefix: str | None, tolerance_seconds: int | None
) -> Scheme:
    faults = list(_scheme_faults(base, header, prefix, tolerance_seconds))
    if faults:
        raise ConfigurationError(faults)
    scheme = base.scheme
    if not isinstance(scheme, HmacScheme):
        return scheme
    if header is not None:
        scheme = replace(scheme, header=header)
    if prefix is not None:
        scheme = replace(scheme, layout=Plain(prefix.encode()))
    if tolerance_seconds is not None:
        scheme = replace(scheme, tolerance_seconds=tolerance_seconds)
    return scheme


def _scheme_faults(
    base: Preset, header: str | None, prefix: str | None, tolerance_seconds: int | None
) -> Iterator[str]:
    if (header is not None or prefix is not None) and base.name != presets.BY_HAND:
        yield (
            f"the preset {base.name!r} fixes the signature's header and prefix; "
            f"to set them, use preset={presets.BY_HAND!r}"
        )
    if header is not None and not is_header_name(header):
        yield f"signature_header {header!r} is not the name of a header"
    if prefix is not None and not prefix.isascii():
        yield "signature_prefix must be plain ASCII"
    if tolerance_seconds is not None and base.scheme.tolerance_seconds is None:
        yield f"tolerance_seconds has no use: the preset {base.name!r} signs no timestamp"
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


def _keys(secrets: Sequence[str | bytes], unsigned: bool) -> tuple[bytes, ...]:  # noqa: FBT001
    if isinstance(secrets, str | bytes):
        raise ConfigurationError("secrets must be a list, also where there is only one")
    if unsigned and secrets:
        raise ConfigurationError("it has secrets and says unsigned=True; take one of them away")
    if not unsigned and not secrets:
        raise ConfigurationError(
            "it has no secrets; give secrets=[…] from the sender's settings, "
            "or unsigned=True to take what anyone sends"
        )
    faults = [
        f"secret {position} {fault}"
        for position, secret in enumerate(secrets, start=1)
        if (fault := _secret_fault(secret))
    ]
    if faults:
        raise ConfigurationError(faults)
    return tuple(_secret_bytes(secret) for secret in secrets)


def _secret_bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret


def _secret_fault(secret: str | bytes) -> str | None:
    try:
        key = _secret_bytes(secret)
    except UnicodeEncodeError:
        return "is not valid text"
    if not key:
        return "is empty"
    if key.strip(b"\r\n") != key:
        return "begins or ends with a line break"
    if len(key) < SHORTEST_SECRET_BYTES:
        return f"is {len(key)} bytes long; the least is {SHORTEST_SECRET_BYTES}"
    return None
