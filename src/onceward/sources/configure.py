"""Configuration of sources: the options of ``inbox.source(…)``, checked and built."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Literal, TypedDict, Unpack, get_args

from onceward.errors import ConfigurationError
from onceward.model.events import INGEST_SOURCE, DuplicateBody, SourceMode, UnknownTypes
from onceward.model.retry import RetryOption, make_retry_rules
from onceward.runtime.suggest import nearest, suggest_or_list
from onceward.settings import SettingsOptions
from onceward.sources.challenge import can_provision_secret
from onceward.sources.presets import CUSTOM_HMAC, PRESETS, Preset, find_preset
from onceward.sources.request import header_key, is_header_name
from onceward.sources.schemes import Key, Scheme, Signature, UrlCoverage
from onceward.sources.schemes.algorithms import MIN_SECRET_BYTES, is_key_document
from onceward.sources.source import Source

ALWAYS_KEPT_HEADERS: Final = ("content-type", "user-agent")
NEVER_KEPT_HEADERS: Final = frozenset(
    {"authorization", "cookie", "proxy-authorization", "set-cookie"}
)
_INGEST_FAULT: Final = (
    "'ingest' is built in and has no options: it receives POST /events/ingest; choose another name"
)
SOURCE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

DuplicateBodyOption = Literal["allow", "flag", "hold"]
_DUPLICATE_BODY: Final[Mapping[DuplicateBodyOption, DuplicateBody]] = {
    "allow": DuplicateBody.ALLOWED,
    "flag": DuplicateBody.FLAGGED,
    "hold": DuplicateBody.HELD,
}
_SURROUNDINGS: Final = " \t\"'\u00a0\u200b\u3000\ufeff"
"""Characters that are copied with a secret by mistake."""
_JSON_PATH: Final = "json:$."
"""The beginning of a JSONPath, which is not how selectors are written."""
_JSON_SCALAR: Final = rb'\s*:\s*(?:"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"|[-+.0-9eE]+|true|false|null)'


class SourceOptions(TypedDict, total=False):
    """The options of a source. `Inbox.source` documents them; the preset supplies defaults."""

    preset: str | Preset | None
    scheme: str | Scheme | None
    secrets: Sequence[str | bytes]
    unsigned: bool
    url: str | None
    verify_token: str | None
    signature_header: str | None
    signature_prefix: str | None
    id: str | Sequence[str] | None
    type: str | Sequence[str] | None
    reference: str | None
    tolerance_seconds: int | None
    keep_headers: Iterable[str]
    duplicate_body: DuplicateBodyOption | None
    volatile_fields: Iterable[str] | None
    keep_rejected: bool
    retry: RetryOption | None
    mode: SourceMode
    unknown_types: UnknownTypes


def make_source(name: str, **options: Unpack[SourceOptions]) -> Source:
    """Build a source from its options.

    Raises ConfigurationError with every fault. Each fault names the source; none shows a secret. A
    misspelled option, preset or scheme is reported first, because the other checks depend on it.
    """
    faults = _Faults(name)
    with faults:
        if name == INGEST_SOURCE:
            raise ConfigurationError(_INGEST_FAULT)
        _check_option_names(options)
    faults.raise_if_any()
    with faults:
        preset = _choose_preset(name, options)
        scheme = resolve_scheme(preset, options.get("scheme"))
    faults.raise_if_any()
    url, verify_token = options.get("url"), options.get("verify_token")
    is_unsigned = options.get("unsigned", False)
    with faults:
        _check_name(name)
    with faults:
        scheme = _adapt_scheme(preset, scheme, options)
    with faults:
        preset = _override_selectors(preset, options)
    with faults:
        kept_headers = _kept_headers(preset, options.get("keep_headers", ()))
    with faults:
        keys = _make_keys(preset, scheme, options)
    with faults:
        duplicate_body = _duplicate_body(preset, scheme, options.get("duplicate_body"))
    with faults:
        volatile_fields = _volatile_patterns(preset, options.get("volatile_fields"))
    with faults:
        _check_url(name, preset, scheme, url, is_unsigned=is_unsigned)
    with faults:
        _check_verify_token(preset, verify_token)
    with faults:
        retry = make_retry_rules(options.get("retry"))
    with faults:
        is_inline = _is_inline(options.get("mode", "background"))
    with faults:
        reviews_unknown = _reviews_unknown(options.get("unknown_types", "ignore"))
    faults.raise_if_any()
    return Source(
        name=name,
        preset=preset,
        scheme=scheme,
        kept_headers=kept_headers,
        unsigned=is_unsigned,
        keys=keys,
        secrets=tuple(_bytes(secret) for secret in options.get("secrets", ())),
        url=url,
        needs_url=_needs_url(preset, scheme),
        verify_token=None if verify_token is None else verify_token.encode(),
        duplicate_body=duplicate_body,
        volatile_fields=volatile_fields,
        keeps_rejected=options.get("keep_rejected", False),
        retry=retry,
        is_inline=is_inline,
        reviews_unknown=reviews_unknown,
    )


class _Faults:
    """Collects the faults of one source: a ConfigurationError in its ``with`` block is noted."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._texts: list[str] = []

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, ConfigurationError):
            return False
        self._texts += [f"source {self._source!r}: {fault}" for fault in error.faults]
        return True

    def raise_if_any(self) -> None:
        if self._texts:
            raise ConfigurationError(self._texts)


def _choose_preset(name: str, options: SourceOptions) -> Preset:
    """Return the preset of the options, else the preset with the source's name.

    Raises ConfigurationError if there is neither: a misspelled name must not become a source with
    another signature. A scheme of the user's own needs no preset; ``hmac`` supplies the rest.
    """
    preset, scheme = options.get("preset"), options.get("scheme")
    if preset is not None:
        return resolve_preset(preset)
    if name in PRESETS:
        return PRESETS[name]
    if scheme is not None and not isinstance(scheme, str):
        return PRESETS[CUSTOM_HMAC]
    suggestion = nearest(name, PRESETS)
    if suggestion is None:
        raise ConfigurationError(
            "there is no preset of this name. For a sender of your own, pass "
            f"preset={CUSTOM_HMAC!r}; `onceward sources` lists all presets"
        )
    raise ConfigurationError(
        f"there is no preset of this name; did you mean {suggestion!r}? To keep the name, pass "
        f"preset={suggestion!r}; for a sender of your own, pass preset={CUSTOM_HMAC!r}"
    )


def resolve_preset(preset: str | Preset) -> Preset:
    """Return a preset, found by its name. Raises ConfigurationError."""
    return preset if isinstance(preset, Preset) else find_preset(preset)


def resolve_scheme(preset: Preset, scheme: str | Scheme | None) -> Scheme:
    """Return a scheme, found by its name or the preset's first. Raises ConfigurationError."""
    return preset.scheme(scheme) if scheme is None or isinstance(scheme, str) else scheme


def _check_name(name: str) -> None:
    if not SOURCE_NAME.fullmatch(name):
        raise ConfigurationError(
            "the name must have 1 to 64 characters of a-z, 0-9, _ and -, "
            "and start with a letter or a digit"
        )


def _check_option_names(options: SourceOptions) -> None:
    names = SourceOptions.__optional_keys__
    faults = [
        f"unknown option {name!r}{_option_advice(name, options)}"
        for name in options
        if name not in names
    ]
    if faults:
        raise ConfigurationError(faults)


def _option_advice(name: str, options: SourceOptions) -> str:
    if name == "inline":
        return '; write mode="inline"'
    if name in SettingsOptions.__optional_keys__:
        return f"; it is a setting: Inbox({name}=…)"
    names = SourceOptions.__optional_keys__
    return suggest_or_list(name, names, "the options are", used=options)


def _is_inline(mode: object) -> bool:
    if mode not in get_args(SourceMode):
        raise ConfigurationError(f"mode is {mode!r}; use 'background' or 'inline'")
    return mode == "inline"


def _reviews_unknown(unknown_types: object) -> bool:
    if unknown_types not in get_args(UnknownTypes):
        raise ConfigurationError(f"unknown_types is {unknown_types!r}; use 'ignore' or 'review'")
    return unknown_types == "review"


def _adapt_scheme(preset: Preset, scheme: Scheme, options: SourceOptions) -> Scheme:
    """Apply the options that change the signature's header, prefix and tolerance."""
    header, prefix = options.get("signature_header"), options.get("signature_prefix")
    tolerance_seconds = options.get("tolerance_seconds")
    faults = [
        *_signature_faults(preset, scheme, header, prefix),
        *_tolerance_faults(preset, scheme, tolerance_seconds),
    ]
    if faults:
        raise ConfigurationError(faults)
    changes: dict[str, Any] = {}
    if header is not None:
        changes["at"] = f"header:{header}"
    if prefix is not None:
        changes["prefix"] = prefix
    if changes:
        scheme = replace(scheme, **changes)  # type: ignore[type-var] # every scheme is a dataclass
    return scheme if tolerance_seconds is None else scheme.with_tolerance(tolerance_seconds)


def _signature_faults(
    preset: Preset, scheme: Scheme, header: str | None, prefix: str | None
) -> Iterator[str]:
    if header is None and prefix is None:
        return
    if preset.name != CUSTOM_HMAC or not isinstance(scheme, Signature):
        yield (
            f"the preset {preset.name!r} defines the signature's header and prefix; "
            f"use preset={CUSTOM_HMAC!r} to set your own"
        )
    if header is not None and not is_header_name(header):
        yield f"signature_header {header!r} is not a valid header name"
    if prefix is not None and not prefix.isascii():
        yield "signature_prefix must be ASCII"


def _tolerance_faults(
    preset: Preset, scheme: Scheme, tolerance_seconds: int | None
) -> Iterator[str]:
    if tolerance_seconds is None:
        return
    if not scheme.coverage.has_time:
        yield f"tolerance_seconds has no effect: the preset {preset.name!r} signs no timestamp"
    elif tolerance_seconds < 1:
        yield f"tolerance_seconds is {tolerance_seconds}; it must be at least 1"


def _override_selectors(preset: Preset, options: SourceOptions) -> Preset:
    """Apply the options that select the id, the type and the reference."""
    ids, types = options.get("id"), options.get("type")
    selectors = {"id": ids or (), "type": types or (), "reference": options.get("reference") or ()}
    faults = [
        f"{name} {selector!r}: write json:{selector[len(_JSON_PATH) :]}, without $"
        for name, texts in selectors.items()
        for text in _as_tuple(texts)
        for selector in text.split("|")
        if selector.startswith(_JSON_PATH)
    ]
    if faults:
        raise ConfigurationError(faults)
    return replace(
        preset,
        id=preset.id if ids is None else _as_tuple(ids),
        type=preset.type if types is None else _as_tuple(types),
        reference=options.get("reference") or preset.reference,
    )


def _as_tuple(selectors: str | Sequence[str]) -> tuple[str, ...]:
    return (selectors,) if isinstance(selectors, str) else tuple(selectors)


def _kept_headers(preset: Preset, keep_headers: Iterable[str]) -> tuple[tuple[str, bytes], ...]:
    if isinstance(keep_headers, str):
        raise ConfigurationError("keep_headers must be a list, not a single text")
    names = [name.lower() for name in (*ALWAYS_KEPT_HEADERS, *preset.keep_headers, *keep_headers)]
    faults = [f"keep_headers: {fault}" for name in names if (fault := _kept_header_fault(name))]
    if faults:
        raise ConfigurationError(faults)
    return tuple((name, header_key(name)) for name in dict.fromkeys(names))


def _kept_header_fault(name: str) -> str | None:
    if name in NEVER_KEPT_HEADERS:
        return f"{name} carries credentials and is never stored"
    if not is_header_name(name):
        return f"{name!r} is not a valid header name"
    return None


def _make_keys(preset: Preset, scheme: Scheme, options: SourceOptions) -> tuple[Key, ...]:
    """Make the keys of the configured secrets."""
    secrets, unsigned = options.get("secrets", ()), options.get("unsigned", False)
    if isinstance(secrets, str | bytes):
        raise ConfigurationError("secrets must be a list, not a single secret")
    if unsigned and secrets:
        raise ConfigurationError("secrets and unsigned=True exclude each other; remove one of them")
    is_provisioned = can_provision_secret(preset.challenge, options.get("verify_token"))
    if not secrets and not unsigned and not is_provisioned:
        raise ConfigurationError(
            "there are no secrets; pass secrets=[…] from the provider's settings, "
            "or unsigned=True to accept requests from anyone"
        )
    keys: list[Key] = []
    faults: list[str] = []
    for position, secret in enumerate(secrets, start=1):
        try:
            keys += scheme.keys(secret)
            _check_secret(preset, secret)
        except ConfigurationError as error:
            faults += [f"secret {position} {fault}" for fault in error.faults]
    if faults:
        raise ConfigurationError(faults)
    return tuple(keys)


def _check_secret(preset: Preset, secret: str | bytes) -> None:
    """Raise ConfigurationError for a secret that is too short or was copied badly."""
    content = _bytes(secret)
    if len(content) < MIN_SECRET_BYTES:
        raise ConfigurationError(f"is {len(content)} bytes long; the minimum is {MIN_SECRET_BYTES}")
    for beginning, reason in preset.refused_secrets.items():
        if content.startswith(beginning.encode()):
            raise ConfigurationError(reason)
    is_document = is_key_document(content)
    if isinstance(secret, str) and not is_document and secret.strip(_SURROUNDINGS) != secret:
        raise ConfigurationError(
            "has a space or quotes at its start or end; remove them, or pass the secret as bytes "
            "if they belong to it"
        )


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret


def _duplicate_body(
    preset: Preset, scheme: Scheme, option: DuplicateBodyOption | None
) -> DuplicateBody:
    """Return the configured policy, or the default."""
    if option is not None:
        if option not in _DUPLICATE_BODY:
            raise ConfigurationError(f"duplicate_body must be one of {', '.join(_DUPLICATE_BODY)}")
        return _DUPLICATE_BODY[option]
    return DuplicateBody.FLAGGED if preset.flags_duplicates(scheme) else DuplicateBody.ALLOWED


def _volatile_patterns(
    preset: Preset, volatile_fields: Iterable[str] | None
) -> tuple[re.Pattern[bytes], ...]:
    """Compile a pattern for each volatile field: a scalar member of that name, at any depth."""
    if isinstance(volatile_fields, str):
        raise ConfigurationError("volatile_fields must be a list, not a single text")
    names = preset.volatile_fields if volatile_fields is None else tuple(volatile_fields)
    # One pattern per name: a literal prefix makes the search fast, an alternation has none.
    return tuple(re.compile(re.escape(json.dumps(name).encode()) + _JSON_SCALAR) for name in names)


def _check_url(
    name: str, preset: Preset, scheme: Scheme, url: str | None, *, is_unsigned: bool
) -> None:
    if url is None:
        if scheme.coverage.url is not UrlCoverage.NOTHING and not is_unsigned:
            raise ConfigurationError(
                "url is required: the sender signs the public URL, and Host is not trusted; "
                f"write url='https://YOUR-HOST/webhooks/{name}', as registered with the provider"
            )
        return
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(f"url {url!r} must start with https:// or http://")
    if not _needs_url(preset, scheme):
        raise ConfigurationError("url has no effect: the scheme does not sign the URL")


def _needs_url(preset: Preset, scheme: Scheme) -> bool:
    return scheme.needs_url or preset.challenge is not None


def _check_verify_token(preset: Preset, verify_token: str | None) -> None:
    if verify_token is None:
        return
    if preset.challenge is None:
        raise ConfigurationError(
            f"verify_token has no effect: the preset {preset.name!r} does not use it"
        )
    if len(verify_token) < MIN_SECRET_BYTES:
        raise ConfigurationError(f"verify_token must have at least {MIN_SECRET_BYTES} characters")
