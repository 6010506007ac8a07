"""The replies that providers require before or instead of events."""

from __future__ import annotations

import hmac
import re
from typing import Final

import msgspec

from onceward.sources.challenge import Challenge, ChallengeCredentials, Reply
from onceward.sources.request import Request
from onceward.sources.schemes.algorithms import MIN_SECRET_BYTES
from onceward.sources.schemes.encodings import encode_base64

MAX_ECHO_CHARACTERS: Final = 4_096
MAX_SECRET_BYTES: Final = 256
JSON: Final = "application/json"
_SIGNABLE_TOKEN: Final = re.compile(r"[A-Za-z0-9+/=_-]{1,200}")
"""Tokens that are signed on request. With the same secret, the provider signs its events: a token
must not be readable as the signed content of one.
"""


def _body_text(request: Request, *path: str) -> str | None:
    """Return a string in the JSON body, or None."""
    value = request.document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _echo_reply(text: str | None) -> Reply | None:
    """Return a reply that repeats the text, or None when it is missing, empty or too long."""
    if text is None or not 0 < len(text) <= MAX_ECHO_CHARACTERS:
        return None
    return Reply(body=text.encode(errors="replace"))


def json_reply(value: object) -> Reply:
    """Return a 200 reply with a JSON body."""
    return Reply(body=msgspec.json.encode(value), content_type=JSON)


def _sign_token(credentials: ChallengeCredentials, token: str | None) -> bytes | None:
    """Return the digest of a token, or None if it is not a token or the source has no secret."""
    if not credentials.secrets or token is None or not _SIGNABLE_TOKEN.fullmatch(token):
        return None
    return hmac.digest(credentials.secrets[0], token.encode(), "sha256")


def _is_verify_token(text: str, credentials: ChallengeCredentials) -> bool:
    expected = credentials.verify_token
    return expected is not None and hmac.compare_digest(text.encode(errors="replace"), expected)


def _has_verify_token(request: Request, credentials: ChallengeCredentials) -> bool:
    """Return whether the URL has the operator's token; without it, anyone could set a secret."""
    return _is_verify_token(dict(request.query).get("verify_token", ""), credentials)


def _has_valid_length(secret: bytes) -> bool:
    return MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES


def _slack_reply(request: Request, _: ChallengeCredentials) -> Reply | None:
    if _body_text(request, "type") != "url_verification":
        return None
    return _echo_reply(_body_text(request, "challenge"))


def _zoom_reply(request: Request, credentials: ChallengeCredentials) -> Reply | None:
    token = _body_text(request, "payload", "plainToken")
    if _body_text(request, "event") != "endpoint.url_validation":
        return None
    if (digest := _sign_token(credentials, token)) is None:
        return None
    return json_reply({"plainToken": token, "encryptedToken": digest.hex()})


def _x_reply(request: Request, credentials: ChallengeCredentials) -> Reply | None:
    digest = _sign_token(credentials, dict(request.query).get("crc_token"))
    if digest is None:
        return None
    return json_reply({"response_token": f"sha256={encode_base64(digest)}"})


def _twitch_reply(request: Request, _: ChallengeCredentials) -> Reply | None:
    """Repeat the challenge. The body shows that it is one; the header with the type is unsigned."""
    return _echo_reply(_body_text(request, "challenge"))


def _meta_reply(request: Request, credentials: ChallengeCredentials) -> Reply | None:
    """Repeat the challenge if the request has the operator's token, which is not the secret."""
    query = dict(request.query)
    is_ours = _is_verify_token(query.get("hub.verify_token", ""), credentials)
    if query.get("hub.mode") != "subscribe" or not is_ours:
        return Reply(403)
    return _echo_reply(query.get("hub.challenge")) or Reply(403)


def _graph_reply(request: Request, _: ChallengeCredentials) -> Reply | None:
    return _echo_reply(dict(request.query).get("validationToken"))


def _event_grid_reply(request: Request, _: ChallengeCredentials) -> Reply | None:
    if request.headers.get(b"aeg-event-type") != b"SubscriptionValidation":
        return None
    match request.document:
        case [{"data": {"validationCode": str(code)}}, *_]:
            return json_reply({"validationResponse": code})
        case _:
            return None


def _cloudevents_reply(request: Request, _: ChallengeCredentials) -> Reply | None:
    """Allow every origin: the token, not the origin, authenticates a request."""
    origin = request.headers.get(b"webhook-request-origin")
    headers = [("Allow", "POST, OPTIONS")]
    if origin is not None and origin.decode("latin-1").isprintable():
        headers.append(("WebHook-Allowed-Origin", origin.decode("latin-1")))
        if request.headers.get(b"webhook-request-rate") is not None:
            headers.append(("WebHook-Allowed-Rate", "*"))
    return Reply(headers=tuple(headers))


def _discord_reply(request: Request, _: ChallengeCredentials) -> Reply | None:
    document = request.document if isinstance(request.document, dict) else {}
    match document.get("type"):
        case 0:
            return Reply(204)
        case 1 if "event" not in document:
            return json_reply({"type": 1})
        case _:
            return None


def _asana_reply(request: Request, credentials: ChallengeCredentials) -> Reply | None:
    secret = request.headers.get(b"x-hook-secret")
    if secret is None or request.headers.get(b"x-hook-signature") is not None:
        return None
    if not _has_verify_token(request, credentials) or not _has_valid_length(secret):
        return Reply(403)
    return Reply(headers=(("X-Hook-Secret", secret.decode("latin-1")),), provisioned_secret=secret)


def _notion_reply(request: Request, credentials: ChallengeCredentials) -> Reply | None:
    token = _body_text(request, "verification_token")
    is_signed = request.headers.get(b"x-notion-signature") is not None
    if is_signed or token is None or credentials.verify_token is None:
        return None
    secret = token.encode(errors="replace")
    if not _has_verify_token(request, credentials) or not _has_valid_length(secret):
        return Reply(403)
    return Reply(provisioned_secret=secret)


def _head_reply(_: Request, __: ChallengeCredentials) -> Reply:
    return Reply()


SLACK: Final = Challenge(signed=_slack_reply)
ZOOM: Final = Challenge(signed=_zoom_reply)
X: Final = Challenge(unsigned=_x_reply, methods=("GET",))
TWITCH: Final = Challenge(signed=_twitch_reply)
DISCORD: Final = Challenge(signed=_discord_reply)
META: Final = Challenge(unsigned=_meta_reply, methods=("GET",))
GRAPH: Final = Challenge(unsigned=_graph_reply, methods=("POST",))
EVENT_GRID: Final = Challenge(
    unsigned=_cloudevents_reply, methods=("OPTIONS",), signed=_event_grid_reply
)
CLOUDEVENTS: Final = Challenge(unsigned=_cloudevents_reply, methods=("OPTIONS",))
ASANA: Final = Challenge(unsigned=_asana_reply, methods=("POST",), provisions_secret=True)
NOTION: Final = Challenge(unsigned=_notion_reply, methods=("POST",), provisions_secret=True)
HEAD_PROBE: Final = Challenge(unsigned=_head_reply, methods=("HEAD",))
