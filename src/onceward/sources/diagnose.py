"""Why a request does or does not verify, check by check, and what would have to be different."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from onceward.errors import ConfigurationError, RejectionCause, RequestRefused, SignatureRejected
from onceward.sources.challenge import Reply
from onceward.sources.presets import PRESETS
from onceward.sources.request import Request, header_key
from onceward.sources.schemes import Hmac, Scheme, Signature
from onceward.sources.schemes.algorithms import SecretDecoder, as_base64, as_hex, as_text
from onceward.sources.source import Source

NO_SUGGESTION: Final = (
    "The secret is another, or the body or the URL was changed in a way that is none of the usual."
)

State = Literal["passed", "failed", "not reached"]

_CHECK_NAMES: Final = {
    RejectionCause.MISSING: "there is a proof",
    RejectionCause.MALFORMED: "it is written as it should be",
    RejectionCause.TIMESTAMP: "its time is near enough",
    RejectionCause.MISMATCH: "it was made with one of the secrets",
    RejectionCause.WRONG_TARGET: "it is for this request",
}
_SECRET_ENCODINGS: Final[dict[str, SecretDecoder]] = {
    "taken as plain text": as_text,
    "decoded from base64": as_base64,
    "decoded from hexadecimal digits": as_hex,
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, and what would help where it did not verify."""

    verified: bool
    checks: tuple[Check, ...]
    hints: tuple[str, ...]


def diagnose(source: Source, request: Request, now: float) -> Diagnosis:
    """Verify a request as a source would, and say what came of each check."""
    try:
        reply = source.answer_challenge(request)
        if reply is None and not source.unsigned:
            source.scheme.verify(source.keys, request, now)
    except SignatureRejected as rejected:
        checks = (
            *_proof_checks(source, request, rejected),
            Check("it tells of an event", "not reached"),
        )
        return Diagnosis(
            verified=False, checks=checks, hints=tuple(_hints(source, request, now, rejected.cause))
        )
    except RequestRefused as refused:
        checks = (Check(_CHECK_NAMES[RejectionCause.MISSING], "failed", refused.message),)
        return Diagnosis(verified=False, checks=checks, hints=())
    if reply is not None:
        checks = (Check("it asks for an answer", "passed", _describe_reply(reply)),)
        return Diagnosis(verified=True, checks=checks, hints=())
    checks = (*_proof_checks(source, request, None), *_event_checks(source, request, now))
    verified = all(check.state == "passed" for check in checks)
    return Diagnosis(verified=verified, checks=checks, hints=())


def _proof_checks(
    source: Source, request: Request, rejected: SignatureRejected | None
) -> Iterator[Check]:
    """The checks of the proof: those before the one that failed passed."""
    if source.unsigned:
        yield Check("nothing has to be proved", "passed", "the source is unsigned")
        return
    has_failed = False
    for cause in source.scheme.causes:
        if rejected is not None and cause is rejected.cause:
            has_failed = True
            yield Check(_CHECK_NAMES[cause], "failed", rejected.check)
        elif has_failed:
            yield Check(_CHECK_NAMES[cause], "not reached")
        else:
            yield Check(_CHECK_NAMES[cause], "passed", _passed_detail(source, cause, request))


def _passed_detail(source: Source, cause: RejectionCause, request: Request) -> str:
    scheme = source.scheme
    match cause:
        case RejectionCause.MISSING:
            return scheme.at
        case RejectionCause.TIMESTAMP if scheme.tolerance_seconds is None:
            return "no tolerance is set"
        case RejectionCause.TIMESTAMP:
            return f"it may be {scheme.tolerance_seconds} s off"
        case RejectionCause.MISMATCH:
            covered = f"{len(request.body)} bytes of body" if scheme.covers_body else "not the body"
            return f"{scheme.summary.replace('`', '')}; {covered}"
        case _:
            return ""


def _describe_reply(reply: Reply) -> str:
    return f"it is answered with {reply.status}, and nothing is recorded"


def _event_checks(source: Source, request: Request, now: float) -> Iterator[Check]:
    """What a genuine request is about."""
    try:
        events = source.verify(request, now)
    except RequestRefused as refused:
        yield Check("it tells of an event", "failed", refused.message)
        return
    if isinstance(events, Reply):
        yield Check("it asks for an answer", "passed", _describe_reply(events))
        return
    for identity, body in events:
        about = f" about {identity.reference}" if identity.reference else ""
        detail = f"{identity.event_id}, {identity.type or 'no type'}{about}, {len(body)} bytes"
        yield Check("it tells of an event", "passed", detail)
    if not events:
        yield Check("it tells of an event", "passed", "of none: nothing is recorded")


# What would have to be different.


def _hints(source: Source, request: Request, now: float, cause: RejectionCause) -> list[str]:
    suggestions = list(_suggestions(source, request, now, cause))
    if not suggestions and cause is RejectionCause.MISMATCH:
        return [NO_SUGGESTION + (f" The URL was {request.url}." if source.scheme.needs_url else "")]
    return list(dict.fromkeys(suggestions))


def _suggestions(
    source: Source, request: Request, now: float, cause: RejectionCause
) -> Iterator[str]:
    match cause:
        case RejectionCause.MISSING:
            yield from _suggest_presets(source, request)
        case RejectionCause.TIMESTAMP if _verifies(
            source, _without_tolerance(source.scheme), request, now
        ):
            yield (
                "Apart from its time it verifies: say when it came with --at, or look at the "
                "clocks, or at who held it back."
            )
        case RejectionCause.MISMATCH | RejectionCause.WRONG_TARGET | RejectionCause.MALFORMED:
            yield from _suggest_bodies(source, request, now)
            yield from _suggest_urls(source, request, now)
            yield from _suggest_secrets(source, request, now)
        case _:
            pass
    yield from _suggest_schemes(source, request, now)


def _verifies(source: Source, scheme: Scheme, request: Request, now: float) -> bool:
    try:
        keys = [key for secret in source.secrets for key in scheme.keys(secret)]
        scheme.verify(keys, request, now)
    except (RequestRefused, ConfigurationError):
        return False
    return True


def _without_tolerance(scheme: Scheme) -> Scheme:
    if scheme.tolerance_seconds is None or not isinstance(scheme, Signature):
        return scheme
    return replace(scheme, tolerance_seconds=None)


def _suggest_presets(source: Source, request: Request) -> Iterator[str]:
    for preset in PRESETS.values():
        for scheme in preset.named_schemes.values():
            kind, _, name = scheme.at.partition("|")[0].partition(":")
            is_present = kind == "header" and request.headers.joined(header_key(name)) is not None
            if is_present and preset.name != source.preset_name and name.lower() != "authorization":
                yield f"It has a {name} header, which {preset.title} sends: preset={preset.name!r}?"


def _suggest_bodies(source: Source, request: Request, now: float) -> Iterator[str]:
    for change, body in _likely_bodies(request.body):
        changed = Request(request.headers, body, method=request.method, url=request.url)
        if body != request.body and _verifies(source, source.scheme, changed, now):
            yield f"It verifies {change}: something on the way changed the body."
            return


def _likely_bodies(body: bytes) -> Iterator[tuple[str, bytes]]:
    yield "without the line break at its end", body.rstrip(b"\r\n")
    yield "with a line break at its end", body + b"\n"
    yield "with plain line breaks", body.replace(b"\r\n", b"\n")
    yield "with the line breaks of Windows", body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield "without a byte order mark", body.removeprefix(b"\xef\xbb\xbf")
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
            yield f"It verifies for {url}: set the source's url to the one that the sender has."


def _likely_urls(request: Request) -> Iterator[str]:
    host = (request.headers.joined(b"host") or b"").decode("latin-1")
    try:
        parts = urlsplit(request.url)
    except ValueError:  # the Host header was no host
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
        stripped = replace(source, secrets=(secret.strip(),))
        if secret.strip() != secret and _verifies(stripped, source.scheme, request, now):
            yield "It verifies without the white space around the secret."
    scheme = source.scheme
    if isinstance(scheme, Signature) and isinstance(scheme.algorithm, Hmac):
        for description, secret_encoding in _SECRET_ENCODINGS.items():
            other = replace(
                scheme, algorithm=replace(scheme.algorithm, secret_encoding=secret_encoding)
            )
            is_other = secret_encoding is not scheme.algorithm.secret_encoding
            if is_other and _verifies(source, other, request, now):
                yield f"It verifies with the secret {description}."


def _suggest_schemes(source: Source, request: Request, now: float) -> Iterator[str]:
    preset = PRESETS.get(source.preset_name)
    for name, scheme in preset.named_schemes.items() if preset else ():
        if scheme != source.scheme and _verifies(source, scheme, request, now):
            yield f"It verifies with scheme={name!r}."
