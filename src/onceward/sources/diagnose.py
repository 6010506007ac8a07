"""Diagnosis of a request: the result of each check, and hints if the request does not verify."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from onceward.errors import ConfigurationError, RejectionCause, RequestRefused, SignatureRejected
from onceward.sources.challenge import Reply
from onceward.sources.presets import PRESETS
from onceward.sources.request import Request, header_key
from onceward.sources.schemes import BodyCoverage, Hmac, Scheme, Signature
from onceward.sources.schemes.algorithms import SecretDecoder, as_base64, as_hex, as_text
from onceward.sources.source import Source

NO_SUGGESTION: Final = (
    "The secret is wrong, or the body or URL was changed in a way we do not recognise."
)

MAX_DECOMPRESSED_BYTES: Final = 16 * 1024 * 1024
"""A compressed body is decompressed up to this size, to see whether it verifies."""

State = Literal["passed", "failed", "not reached"]

_CHECK_NAMES: Final = {
    RejectionCause.MISSING: "signature is present",
    RejectionCause.MALFORMED: "signature is well-formed",
    RejectionCause.TIMESTAMP: "timestamp is within the tolerance",
    RejectionCause.MISMATCH: "signature matches a secret",
    RejectionCause.WRONG_TARGET: "signature is for this request",
}
_EVENT: Final = "event is identified"
_CHALLENGE: Final = "challenge is answered"
_GZIP: Final = b"\x1f\x8b"
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_VARIABLE: Final = re.compile(rb"\$\{?\w+\}?|\{\{.*\}\}|<.*>")
_SECRET_ENCODINGS: Final[dict[str, SecretDecoder]] = {
    "taken as plain text": as_text,
    "decoded from base64": as_base64,
    "decoded from hexadecimal": as_hex,
}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks, and hints for a request that does not verify."""

    verified: bool
    checks: tuple[Check, ...]
    hints: tuple[str, ...] = ()


def diagnose(
    source: Source, request: Request, now: float, others: Iterable[Source] = ()
) -> Diagnosis:
    """Verify a request as a source would, and report the result of each check.

    `others` are sources of the same app, to which the request may belong.
    """
    try:
        reply = source.answer_challenge(request)
        if reply is None and not source.unsigned:
            source.scheme.verify(source.keys, request, now)
    except SignatureRejected as rejected:
        checks = (*_proof_checks(source, request, rejected), Check(_EVENT, "not reached"))
        hints = tuple(_hints(source, request, now, rejected.cause, others))
        return Diagnosis(verified=False, checks=checks, hints=hints)
    except RequestRefused as refused:
        check = Check(_CHECK_NAMES[RejectionCause.MISSING], "failed", refused.message)
        return Diagnosis(verified=False, checks=(check,))
    if reply is not None:
        return Diagnosis(verified=True, checks=(_challenge_check(reply),))
    checks = (*_proof_checks(source, request, None), *_event_checks(source, request, now))
    return Diagnosis(verified=all(check.state == "passed" for check in checks), checks=checks)


def _proof_checks(
    source: Source, request: Request, rejected: SignatureRejected | None
) -> Iterator[Check]:
    """Yield the checks of the scheme in order; checks before the failed one have passed."""
    if source.unsigned:
        yield Check("no signature is required", "passed", "the source is unsigned")
        return
    has_failed = False
    for cause in source.scheme.causes:
        name = _CHECK_NAMES[cause]
        if rejected is not None and cause is rejected.cause:
            has_failed = True
            yield Check(name, "failed", rejected.check)
        elif has_failed:
            yield Check(name, "not reached")
        else:
            yield Check(name, "passed", _passed_detail(source.scheme, cause, request))


def _passed_detail(scheme: Scheme, cause: RejectionCause, request: Request) -> str:
    match cause:
        case RejectionCause.MISSING:
            return scheme.at
        case RejectionCause.TIMESTAMP if scheme.tolerance_seconds is None:
            return "any age is accepted"
        case RejectionCause.TIMESTAMP:
            return f"tolerance {scheme.tolerance_seconds} s"
        case RejectionCause.MISMATCH:
            are_bytes = scheme.coverage.body is BodyCoverage.BYTES
            covered = f"{len(request.body)} bytes of body" if are_bytes else scheme.coverage.summary
            return f"{scheme.summary}; covers {covered}".replace("`", "")
        case _:
            return ""


def _event_checks(source: Source, request: Request, now: float) -> Iterator[Check]:
    """Yield a check for each event of a verified request."""
    try:
        events = source.verify(request, now)
    except SignatureRejected as rejected:  # signed, but no event
        yield Check(_EVENT, "failed", rejected.check)
        return
    except RequestRefused as refused:
        yield Check(_EVENT, "failed", refused.message)
        return
    if isinstance(events, Reply):
        yield _challenge_check(events)
        return
    for identity, body, *_ in events:
        reference = f", reference {identity.reference}" if identity.reference else ""
        event = f"{identity.event_id}, {identity.type or 'no type'}{reference}, {len(body)} bytes"
        yield Check(_EVENT, "passed", event)
    if not events:
        yield Check(_EVENT, "passed", "the request contains no events; nothing is recorded")


def _challenge_check(reply: Reply) -> Check:
    return Check(_CHALLENGE, "passed", f"status {reply.status}; nothing is recorded")


# Hints: changes with which the request would verify.


def _hints(
    source: Source, request: Request, now: float, cause: RejectionCause, others: Iterable[Source]
) -> list[str]:
    if sources := list(_suggest_sources(source, request, now, others)):
        return sources
    suggestions = list(_suggestions(source, request, now, cause))
    if not suggestions and cause is RejectionCause.MISMATCH:
        url = f" The URL was {request.url}." if source.scheme.needs_url else ""
        return [*_capture_notes(request), NO_SUGGESTION + url]
    return list(dict.fromkeys(suggestions))


def _suggestions(
    source: Source, request: Request, now: float, cause: RejectionCause
) -> Iterator[str]:
    match cause:
        case RejectionCause.MISSING:
            yield from _suggest_decompression(source, request, now)
            yield from _suggest_presets(source, request)
        case RejectionCause.TIMESTAMP:
            yield from _suggest_time(source, request, now)
        case RejectionCause.MISMATCH | RejectionCause.WRONG_TARGET | RejectionCause.MALFORMED:
            yield from _suggest_changes(source, request, now)
    yield from _suggest_schemes(source, request, now)


def _suggest_changes(source: Source, request: Request, now: float) -> Iterator[str]:
    yield from _suggest_decompression(source, request, now)
    yield from _suggest_bodies(source, request, now)
    yield from _suggest_urls(source, request, now)
    yield from _suggest_secrets(source, request, now)


def _suggest_sources(
    source: Source, request: Request, now: float, others: Iterable[Source]
) -> Iterator[str]:
    for other in map(_without_tolerance, others):
        is_signed = other.name != source.name and not other.unsigned
        if is_signed and _verifies(other, other.scheme, request, now):
            yield (
                f"The request verifies as source {other.name!r} of this app: "
                f"send it to /webhooks/{other.name}."
            )


def _without_tolerance(source: Source) -> Source:
    """Return the source without its check of the time."""
    return replace(source, scheme=source.scheme.with_tolerance(None))


def _verifies(source: Source, scheme: Scheme, request: Request, now: float) -> bool:
    try:
        keys = [key for secret in source.secrets for key in scheme.keys(secret)]
        scheme.verify(keys, request, now)
    except (RequestRefused, ConfigurationError):
        return False
    return True


def _suggest_presets(source: Source, request: Request) -> Iterator[str]:
    for preset in PRESETS.values():
        for scheme in preset.named_schemes.values():
            kind, _, name = scheme.at.partition("|")[0].partition(":")
            is_present = kind == "header" and request.headers.joined(header_key(name)) is not None
            is_distinctive = preset.name != source.preset_name and name.lower() != "authorization"
            if is_present and is_distinctive:
                yield (
                    f"The request has the header {name}, as sent by {preset.title}: "
                    f"use preset={preset.name!r}?"
                )


def _suggest_time(source: Source, request: Request, now: float) -> Iterator[str]:
    timeless = _without_tolerance(source)
    if _verifies(timeless, timeless.scheme, request, now):
        yield (
            "Only the timestamp is rejected: pass the time of arrival with --at, "
            "or look for clock skew and delayed delivery."
        )
    else:
        yield from _suggest_changes(timeless, request, now)


def _suggest_decompression(source: Source, request: Request, now: float) -> Iterator[str]:
    body = _decompressed(request)
    if body is None:
        return
    changed = Request(request.headers, body, method=request.method, url=request.url)
    if _verifies(source, source.scheme, changed, now):
        kind = "gzip" if request.body.startswith(_GZIP) else "deflate"
        yield (
            f"The body is {kind}-compressed, but the sender signed the uncompressed body: "
            "decompress it first."
        )


def _capture_notes(request: Request) -> Iterator[str]:
    """Yield notes on how the request was captured, for a request that no change makes verify."""
    encoding = (request.headers.joined(b"content-encoding") or b"").lower()
    if request.body.startswith(_GZIP):
        yield "The body is gzip-compressed. Most senders sign the uncompressed body."
    elif b"gzip" in encoding:
        yield (
            "The Content-Encoding is gzip, but the body is not compressed: it was captured after "
            "decompression. If the sender signed the compressed bytes, capture those."
        )


def _decompressed(request: Request) -> bytes | None:
    """Return the decompressed body, or None if it is not compressed or too large."""
    encoding = (request.headers.joined(b"content-encoding") or b"").lower()
    is_marked = b"gzip" in encoding or b"deflate" in encoding
    if not is_marked and not request.body.startswith(_GZIP):
        return None
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        body = stream.decompress(request.body, MAX_DECOMPRESSED_BYTES)
    except zlib.error:
        return None
    return body if stream.eof else None


def _suggest_bodies(source: Source, request: Request, now: float) -> Iterator[str]:
    for change, body in _likely_bodies(request.body):
        changed = Request(request.headers, body, method=request.method, url=request.url)
        if body != request.body and _verifies(source, source.scheme, changed, now):
            yield f"The body verifies {change}: it was changed in transit."
            return


def _likely_bodies(body: bytes) -> Iterator[tuple[str, bytes]]:
    yield "without its trailing line break", body.rstrip(b"\r\n")
    yield "with a trailing line break", body + b"\n"
    yield "with LF line breaks", body.replace(b"\r\n", b"\n")
    yield "with CRLF line breaks", body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield "without its byte order mark", body.removeprefix(b"\xef\xbb\xbf")
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return
    yield "as compact JSON", json.dumps(document, separators=(",", ":")).encode()
    compact = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    yield "as compact JSON in UTF-8", compact.encode(errors="surrogatepass")
    yield "as JSON with spaces", json.dumps(document).encode()
    yield "as indented JSON", json.dumps(document, indent=2).encode()


def _suggest_urls(source: Source, request: Request, now: float) -> Iterator[str]:
    if not source.scheme.needs_url:
        return
    for url in _likely_urls(request):
        changed = Request(request.headers, request.body, method=request.method, url=url)
        if url != request.url and _verifies(source, source.scheme, changed, now):
            yield (
                f"The request verifies with the URL {url}: "
                "set the source's url to the one registered with the provider."
            )


def _likely_urls(request: Request) -> Iterator[str]:
    host = (request.headers.joined(b"host") or b"").decode("latin-1")
    try:
        parts = urlsplit(request.url)
    except ValueError:  # the Host header is not a host
        return
    origins = [(scheme, name) for name in (parts.netloc, host) for scheme in ("https", "http")]
    for scheme, name in origins:
        changed = parts._replace(scheme=scheme, netloc=name)
        yield changed.geturl()
        yield changed._replace(path=changed.path.rstrip("/")).geturl()
        yield changed._replace(path=changed.path.rstrip("/") + "/").geturl()
        yield changed._replace(query="").geturl()
        yield changed._replace(netloc=changed.netloc.partition(":")[0]).geturl()


def _suggest_secrets(source: Source, request: Request, now: float) -> Iterator[str]:
    for secret in source.secrets:
        for change, changed_secret in _likely_secrets(secret):
            changed_source = replace(source, secrets=(changed_secret,))
            if changed_secret != secret and _verifies(changed_source, source.scheme, request, now):
                yield f"The request verifies {change}."
                break
        if _VARIABLE.fullmatch(secret):
            yield "The secret looks like a placeholder or a variable that was not replaced."
    scheme = source.scheme
    if not isinstance(scheme, Signature) or not isinstance(scheme.algorithm, Hmac):
        return
    for description, encoding in _SECRET_ENCODINGS.items():
        if encoding is scheme.algorithm.secret_encoding:
            continue
        changed = replace(scheme, algorithm=replace(scheme.algorithm, secret_encoding=encoding))
        if _verifies(source, changed, request, now):
            yield f"The request verifies with the secret {description}."


def _likely_secrets(secret: bytes) -> Iterator[tuple[str, bytes]]:
    stripped = secret.strip()
    yield "without the whitespace around the secret", stripped
    yield "without the quotes around the secret", stripped.strip(b"\"'")
    yield "with the part of the secret after the =", stripped.partition(b"=")[2].strip(b"\"' ")
    yield "without the prefix whsec_ of the secret", stripped.removeprefix(b"whsec_")
    yield "with the prefix whsec_ before the secret", b"whsec_" + stripped
    yield "with the secret encoded as base64", base64.b64encode(secret)
    yield "with the secret encoded as hexadecimal", secret.hex().encode()


def _suggest_schemes(source: Source, request: Request, now: float) -> Iterator[str]:
    preset = PRESETS.get(source.preset_name)
    for name, scheme in preset.named_schemes.items() if preset else ():
        if scheme != source.scheme and _verifies(source, scheme, request, now):
            yield f"The request verifies with scheme={name!r}."
