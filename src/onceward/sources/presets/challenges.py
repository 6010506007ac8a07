"""The challenges of each provider that has one."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from onceward.sources.challenge import Challenge, ChallengeCredentials, Reply
from onceward.sources.request import Request

ECHO_MOST: Final = 4_096


SECRET_LEAST: Final = 8


SECRET_MOST: Final = 256


JSON: Final = "application/json"


def _member(request: Request, *path: str) -> Any:
    """A text in the body; None where there is none."""
    value = request.document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _echo(text: str | None) -> Reply | None:
    if text is None or not 0 < len(text) <= ECHO_MOST:
        return None
    return Reply(body=text.encode(errors="replace"))


def _json(value: object) -> Reply:
    return Reply(body=msgspec.json.encode(value), content_type=JSON)


def _hmac(known: ChallengeCredentials, text: str) -> bytes | None:
    """The digest of a text; None where there is no secret to make it with."""
    if not known.secrets:
        return None
    return hmac.digest(known.secrets[0], text.encode(errors="replace"), "sha256")


def _slack(request: Request, _: ChallengeCredentials) -> Reply | None:
    if _member(request, "type") != "url_verification":
        return None
    return _echo(_member(request, "challenge"))


def _zoom(request: Request, known: ChallengeCredentials) -> Reply | None:
    token = _member(request, "payload", "plainToken")
    if _member(request, "event") != "endpoint.url_validation" or token is None:
        return None
    digest = _hmac(known, token)
    return None if digest is None else _json({"plainToken": token, "encryptedToken": digest.hex()})


def _twitch(request: Request, _: ChallengeCredentials) -> Reply | None:
    kind = request.headers.get(b"twitch-eventsub-message-type")
    if kind != b"webhook_callback_verification":
        return None
    return _echo(_member(request, "challenge"))


def _meta(request: Request, known: ChallengeCredentials) -> Reply | None:
    """The token is the operator's own, and not the one that signs."""
    asked = dict(request.query)
    sent = asked.get("hub.verify_token", "").encode(errors="replace")
    is_ours = known.verify_token is not None and hmac.compare_digest(sent, known.verify_token)
    if asked.get("hub.mode") != "subscribe" or not is_ours:
        return Reply(403)
    return _echo(asked.get("hub.challenge")) or Reply(403)


def _graph(request: Request, _: ChallengeCredentials) -> Reply | None:
    return _echo(dict(request.query).get("validationToken"))


def _event_grid(request: Request, _: ChallengeCredentials) -> Reply | None:
    if request.headers.get(b"aeg-event-type") != b"SubscriptionValidation":
        return None
    events = request.document
    data = events[0].get("data") if isinstance(events, list) and _is_object(events[:1]) else None
    code = data.get("validationCode") if isinstance(data, dict) else None
    return _json({"validationResponse": code}) if isinstance(code, str) else None


def _is_object(items: Sequence[object]) -> bool:
    return len(items) == 1 and isinstance(items[0], dict)


def _cloudevents(request: Request, _: ChallengeCredentials) -> Reply | None:
    """Whoever asks may send: it is the token that decides."""
    origin = request.headers.get(b"webhook-request-origin")
    headers = [("Allow", "POST, OPTIONS")]
    if origin is not None and origin.decode("latin-1").isprintable():
        headers.append(("WebHook-Allowed-Origin", origin.decode("latin-1")))
        if request.headers.get(b"webhook-request-rate") is not None:
            headers.append(("WebHook-Allowed-Rate", "*"))
    return Reply(headers=tuple(headers))


def _discord(request: Request, _: ChallengeCredentials) -> Reply | None:
    document = request.document if isinstance(request.document, dict) else {}
    match document.get("type"):
        case 0:
            return Reply(204)
        case 1 if "event" not in document:
            return _json({"type": 1})
        case _:
            return None


def _may_hand_over(request: Request, known: ChallengeCredentials) -> bool:
    """Whether the URL has the operator's own token: else anyone could hand over a secret."""
    sent = dict(request.query).get("verify_token", "").encode(errors="replace")
    return known.verify_token is not None and hmac.compare_digest(sent, known.verify_token)


def _asana(request: Request, known: ChallengeCredentials) -> Reply | None:
    secret = request.headers.get(b"x-hook-secret")
    if secret is None or request.headers.get(b"x-hook-signature") is not None:
        return None
    if not _may_hand_over(request, known) or not SECRET_LEAST <= len(secret) <= SECRET_MOST:
        return Reply(403)
    return Reply(headers=(("X-Hook-Secret", secret.decode("latin-1")),), provisioned_secret=secret)


def _notion(request: Request, known: ChallengeCredentials) -> Reply | None:
    if request.headers.get(b"x-notion-signature") is not None or not _may_hand_over(request, known):
        return None
    token = _member(request, "verification_token")
    if token is None:
        return None
    secret = token.encode(errors="replace")
    is_one = SECRET_LEAST <= len(secret) <= SECRET_MOST
    return Reply(provisioned_secret=secret) if is_one else Reply(403)


def _present(_: Request, __: ChallengeCredentials) -> Reply:
    return Reply()


SLACK: Final = Challenge(signed=_slack)


ZOOM: Final = Challenge(signed=_zoom)


TWITCH: Final = Challenge(signed=_twitch)


DISCORD: Final = Challenge(signed=_discord)


META: Final = Challenge(unsigned=_meta, methods=("GET",))


GRAPH: Final = Challenge(unsigned=_graph, methods=("POST",))


EVENT_GRID: Final = Challenge(unsigned=_cloudevents, methods=("OPTIONS",), signed=_event_grid)


CLOUDEVENTS: Final = Challenge(unsigned=_cloudevents, methods=("OPTIONS",))


ASANA: Final = Challenge(unsigned=_asana, methods=("POST",), provisions_secret=True)


NOTION: Final = Challenge(unsigned=_notion, methods=("POST",), provisions_secret=True)


HEAD: Final = Challenge(unsigned=_present, methods=("HEAD",))
