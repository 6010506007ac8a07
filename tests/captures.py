"""Genuine requests of every scheme, as an adversary may have seen them, and what comes of them."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from onceward.cli._examples import example_request
from onceward.errors import ConfigurationError, RequestRefused
from onceward.model.events import Arrival, DuplicateBody
from onceward.sources.configure import SourceOptions, make_source
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets import Preset
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Scheme
from onceward.sources.source import Source
from tests.keys import pair_for

NOW: Final = 1_790_000_000.0
URL: Final = "https://shop.example/webhooks/source"
FORGED_BODY: Final = b'{"id":"forged"}'
STRANGER_TEXT: Final = (
    ".1790000000.{} 2026-09-21T14:13:20Z{} \nx-timestamp:2026-09-21T14:13:20Z\n"
    f'x&bodySHA256={hashlib.sha256(FORGED_BODY).hexdigest()}&y=1\n1790000001.{{"id":"x"}}:42:EUR:a|b;'
    "request-id:forged;ts:1790000000;\nMessageId\nforged\nTimestamp\nx\nTopicArn\nx\nType\n"
)
"""Text that a stranger has a provider sign, such as a message: full of separators."""

Pairs = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Sent:
    """A request as it travels: an adversary can change every part of it."""

    headers: Pairs
    body: bytes
    query: str = ""
    method: str = "POST"

    def header(self, name: bytes) -> bytes:
        return dict(self.headers).get(name, b"")

    def with_header(self, name: bytes, value: bytes | None) -> "Sent":
        """Return the request with a header set, or removed."""
        others = tuple(pair for pair in self.headers if pair[0] != name)
        return replace(self, headers=others if value is None else (*others, (name, value)))


def sent(outgoing: OutgoingRequest) -> Sent:
    request = outgoing.request()
    return Sent(request.headers.pairs, request.body, urlsplit(request.url).query, request.method)


class Case(NamedTuple):
    """A scheme of a preset, with a source that uses it."""

    preset: Preset
    name: str
    scheme: Scheme
    source: Source

    @property
    def label(self) -> str:
        return f"{self.preset.name}-{self.name}"


def case(preset: Preset, name: str, url: str = URL) -> Case:
    scheme = preset.named_schemes[name]
    secret = pair_for(preset.name, scheme).public
    options: SourceOptions = {"preset": preset, "scheme": name, "secrets": [secret]}
    if scheme.needs_url:
        options["url"] = url
    source = make_source("source", **options)
    return Case(preset, name, scheme, source)


def captures(of: Case) -> list[Sent]:
    """Return signed requests: an example, one with a stranger's text, and other kinds of bodies."""
    url = of.source.url or URL
    plain, texts = (example_request(of.preset, url=url) for _ in range(2))
    texts.body = with_text(of.preset, texts)
    others = [
        OutgoingRequest({"content-type": kind}, body, url=url)
        for kind, body in OTHER_BODIES.get(of.preset.name, ())
    ]
    return [signed(of, outgoing) for outgoing in (plain, texts, *others)]


FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/json"
OTHER_BODIES: Final = {
    "slack": [(FORM, b"command=%2Forder&trigger_id=13345224609.738474920.8088930838d88f008e0")],
    "twilio": [(JSON, b'{"specversion":"1.0","type":"com.twilio.messaging","id":"EZ1"}')],
    "zendesk": [(JSON, b'{"amount":1000}')],
}


def signed(of: Case, outgoing: OutgoingRequest) -> Sent:
    of.scheme.sign(pair_for(of.preset.name, of.scheme).private, outgoing, NOW)
    return sent(outgoing)


def with_text(preset: Preset, outgoing: OutgoingRequest) -> bytes:
    """Return a body with a stranger's text in it."""
    fields = dict(form(outgoing.body))
    if preset.name in ("dropbox-sign", "mandrill"):
        ((name, text),) = fields.items()
        return urlencode(
            {name: text.replace("{", f'{{"note":{json.dumps(STRANGER_TEXT)},', 1)}
        ).encode()
    try:
        document = outgoing.document()
    except ConfigurationError:
        return urlencode({"Body": STRANGER_TEXT, **fields}).encode()
    if preset.name == "adyen":
        for holder in document["notificationItems"]:
            holder["NotificationRequestItem"]["merchantReference"] = "order:1130:EUR:REFUND:true"
    elif isinstance(document, dict):
        document = {"note": STRANGER_TEXT, **document}
        document |= {"Message": STRANGER_TEXT} if "Message" in document else {}
    return json.dumps(document).encode()


def form(body: bytes) -> list[tuple[str, str]]:
    return parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")


def deliver(source: Source, request: Sent, now: float = NOW) -> list[Arrival]:
    """Return what a source records for a request: nothing if it refuses it."""
    url = "" if not source.needs_url else source.public_url(request.query) if source.url else URL
    received = Request(Headers(request.headers), request.body, method=request.method, url=url)
    try:
        events = source.verify(received, now)
    except RequestRefused:
        return []
    return source.arrivals(events, received.headers) if isinstance(events, list) else []


class Ledger:
    """The rules of the ledger: an id once, and covered content that came before is flagged."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self._hashes: set[bytes] = set()

    def record(self, arrivals: Iterable[Arrival]) -> list[Arrival]:
        """Record arrivals and return the new events that are not flagged."""
        unflagged = []
        for arrival in arrivals:
            if arrival.event_id in self.ids:
                continue
            self.ids.add(arrival.event_id)
            covered = arrival.covered_sha256 or arrival.body_sha256
            is_known = covered in self._hashes
            if not is_known or arrival.duplicate_body is DuplicateBody.ALLOWED:
                unflagged.append(arrival)
            self._hashes.add(covered)
        return unflagged
