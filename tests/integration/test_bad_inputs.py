"""Bad input: which requests are rejected, and which malformed bodies are stored all the same.

Size and time limits are in test_server_limits.py; tokens, hosts and origins in test_auth.py;
filters and job ids in test_admin_api.py; disconnects and redeliveries in test_receiving.py.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest

from onceward import Event, Inbox, PermanentError
from onceward.sources.json_text import LONG_NUMBER, TOO_DEEP
from tests.integration.running import (
    GITHUB_SECRET,
    JSON,
    PARTNER_SECRET,
    STRIPE_OLD_SECRET,
    STRIPE_SECRET,
    RunningInbox,
    SignedWebhook,
    digest,
    github_webhook,
    partner_webhook,
    request,
    stripe_webhook,
)

BODY = b'{"id":"evt_bad","type":"invoice.paid"}'


@pytest.fixture
def nothing_recorded(shared: RunningInbox) -> Iterator[RunningInbox]:
    """Check that the test adds no row."""
    with recording_nothing(shared):
        yield shared


@contextmanager
def recording_nothing(service: RunningInbox) -> Iterator[None]:
    before = service.rows()
    yield
    assert service.rows() == before


def post_stripe(
    service: RunningInbox, signature: str | bytes, body: bytes = BODY
) -> httpx.Response:
    headers: dict[bytes, bytes] = {
        b"content-type": b"application/json",
        b"stripe-signature": signature.encode() if isinstance(signature, str) else signature,
    }
    return service.http.post("/webhooks/stripe", content=body, headers=headers)


# Signatures.

# Deeper than any interpreter's recursion limit.
DEEP = b"[" * 100_000 + b"]" * 100_000

# Functions of the current timestamp and its correct signature that return the header to send.
SIGNATURES: dict[str, Callable[[str, str], str | bytes]] = {
    "empty": lambda t, s: "",
    "no timestamp": lambda t, s: f"v1={s}",
    "two timestamps": lambda t, s: f"t={t},t={t},v1={s}",
    "no signature": lambda t, s: f"t={t}",
    "an empty signature": lambda t, s: f"t={t},v1=",
    "a truncated signature": lambda t, s: f"t={t},v1={s[:-1]}",
    "half a signature": lambda t, s: f"t={t},v1={s[:32]}",
    "one digit changed": lambda t, s: f"t={t},v1={s[:-1]}{'0' if s[-1] != '0' else '1'}",
    "not hexadecimal": lambda t, s: f"t={t},v1={'zz' * 32}",
    "a space before it": lambda t, s: f"t={t},v1= {s}",
    "not ASCII": lambda t, s: f"t={t},v1={s}".encode() + b"\xff\xc3\xa9",
    "a list with junk": lambda t, s: f",,=,=,v1,t,v1==,;,{',' * 200}",
    "another algorithm": lambda t, s: f"t={t},v1={digest(STRIPE_SECRET, content(t), 'sha1')}",
    "scheme v0": lambda t, s: f"t={t},v0={s}",
    "the word none": lambda t, s: f"t={t},v1=none",
    "with another secret": lambda t, s: f"t={t},v1={digest('whsec_another', content(t))}",
    "with another source's secret": lambda t, s: f"t={t},v1={digest(GITHUB_SECRET, content(t))}",
    "with an empty key": lambda t, s: f"t={t},v1={digest('', content(t))}",
    "301 s old": lambda t, s: signed_at(int(t) - 301),
    "310 s early": lambda t, s: signed_at(int(t) + 310),
    "a time with a sign": lambda t, s: signed_at(f"+{t}"),
    "a time with an underscore": lambda t, s: signed_at(f"{t[0]}_{t[1:]}"),
    "a time with a fraction": lambda t, s: signed_at(f"{t}.0"),
    "a time of 5,000 digits": lambda t, s: signed_at("9" * 5000),
    "a time that is not a number": lambda t, s: signed_at("nan"),
    "a time in full-width digits": lambda t, s: signed_at("".join(chr(0xFF10 + int(d)) for d in t)),
    "a time in hexadecimal": lambda t, s: signed_at(hex(int(t))),
    "a time with an exponent": lambda t, s: signed_at(f"{t[:-1]}e1"),
    "a time with a space": lambda t, s: signed_at(f" {t}"),
    "a time in milliseconds": lambda t, s: signed_at(f"{t}000"),
    "an empty time": lambda t, s: signed_at(""),
    "a negative time": lambda t, s: signed_at(f"-{t}"),
}


def content(stamp: object, body: bytes = BODY) -> bytes:
    return f"{stamp}.".encode() + body


def signed_at(stamp: object, body: bytes = BODY) -> str:
    return f"t={stamp},v1={digest(STRIPE_SECRET, content(stamp, body))}"


def test_a_wrong_signature_is_rejected(shared: RunningInbox, subtests: pytest.Subtests) -> None:
    for name, forge in SIGNATURES.items():
        with subtests.test(name), recording_nothing(shared):
            stamp = str(int(time.time()))
            correct = digest(STRIPE_SECRET, content(stamp))
            response = post_stripe(shared, forge(stamp, correct))
            assert response.status_code == 401
            assert response.json() == {
                "error": "signature_rejected",
                "message": "The signature was not accepted.",
            }


def test_a_webhook_without_a_signature_is_rejected(nothing_recorded: RunningInbox) -> None:
    for source in ("stripe", "github", "partner"):
        headers = JSON | {"x-github-delivery": "1", "x-event-id": "1"}
        response = nothing_recorded.http.post(f"/webhooks/{source}", content=BODY, headers=headers)
        assert response.status_code == 401


GITHUB_SIGNATURES = [
    digest(GITHUB_SECRET, BODY),
    f"sha1={digest(GITHUB_SECRET, BODY, 'sha1')}",
    f"sha256={digest(GITHUB_SECRET, BODY, 'sha1')}",
    f"SHA256={digest(GITHUB_SECRET, BODY)}",
    f"sha256={digest(PARTNER_SECRET, BODY)}",
    "sha256=",
    "none",
]


def test_a_github_signature_in_another_format_is_rejected(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for signature in GITHUB_SIGNATURES:
        with subtests.test(signature), recording_nothing(shared):
            sent = github_webhook("bad", BODY)
            headers = sent.headers | {"x-hub-signature-256": signature}
            response = shared.http.post("/webhooks/github", content=BODY, headers=headers)
            assert response.status_code == 401


def test_a_retired_secret_is_rejected(sqlite_url: str) -> None:
    def stripe_only(*secrets: str) -> Inbox:
        inbox = Inbox(sqlite_url)
        inbox.source("stripe", secrets=secrets)
        return inbox

    sent = [stripe_webhook(f"evt_{number}", secret=STRIPE_OLD_SECRET) for number in (1, 2)]
    with closing(RunningInbox(stripe_only(STRIPE_SECRET, STRIPE_OLD_SECRET), dev=True)) as rotating:
        assert rotating.send(sent[0]).status_code == 202
    with closing(RunningInbox(stripe_only(STRIPE_SECRET), dev=True)) as rotated:
        assert [rotated.send(webhook).status_code for webhook in sent] == [401, 401]
        assert rotated.rows() == (1, 1, 0)


def test_a_body_reserialized_after_signing_is_rejected(
    nothing_recorded: RunningInbox,
) -> None:
    sent = stripe_webhook("evt_again")
    reserialized = json.dumps(json.loads(sent.body), separators=(",", ":")).encode()
    assert reserialized != sent.body
    signature = sent.headers["stripe-signature"]
    assert post_stripe(nothing_recorded, signature, reserialized).status_code == 401


def test_a_webhook_for_one_source_is_rejected_at_another(nothing_recorded: RunningInbox) -> None:
    sent = github_webhook("elsewhere")
    headers = sent.headers | {"x-event-id": "elsewhere", "x-signature": digest(GITHUB_SECRET, b"")}
    response = nothing_recorded.http.post("/webhooks/partner", content=sent.body, headers=headers)
    assert response.status_code == 401


def test_at_most_ten_signatures_are_tried(shared: RunningInbox) -> None:
    stamp, signature = signed_at(int(time.time())).split(",")
    others = [f"v1={digest('other', bytes([number]))}" for number in range(60)]
    events = shared.rows()[0]
    eleventh = post_stripe(shared, ",".join([stamp, *others[:10], signature]))
    assert (eleventh.status_code, shared.rows()[0]) == (401, events)
    tenth = post_stripe(shared, ",".join([stamp, *others[:9], signature]))
    assert (tenth.status_code, shared.rows()[0]) == (202, events + 1)


def test_thousands_of_signatures_are_rejected_quickly(nothing_recorded: RunningInbox) -> None:
    stamp, signature = signed_at(int(time.time())).split(",")
    started = time.monotonic()
    response = post_stripe(nothing_recorded, ",".join([stamp, *["v1=00"] * 5_000, signature]))
    assert response.status_code == 401
    response = post_stripe(nothing_recorded, ",".join([stamp, *["v1=00"] * 10_000, signature]))
    assert response.status_code == 431
    assert time.monotonic() - started < 2


# Ids.


def signed_by_partner(event_id: bytes) -> dict[bytes, bytes]:
    signature = digest(PARTNER_SECRET, BODY).encode()
    return {b"x-event-id": event_id, b"x-signature": signature}


ENVELOPE = {"event_id": "bad", "event_type": "order.paid", "payload": {}}
ENVELOPES: dict[str, tuple[Any, str]] = {
    "no id": ({"event_type": "x", "payload": 1}, "event_id is missing"),
    "no type": ({"event_id": "x", "payload": 1}, "event_type is missing"),
    "no payload": ({"event_id": "x", "event_type": "x"}, "payload is missing"),
    "an empty id": (ENVELOPE | {"event_id": ""}, "event_id is empty"),
    "a long id": (ENVELOPE | {"event_id": "x" * 256}, "event_id is 256 bytes long"),
    "a long id in few characters": (ENVELOPE | {"event_id": "é" * 128}, "event_id is 256 bytes"),
    "an id with a NUL": (ENVELOPE | {"event_id": "a\0b"}, "event_id contains a NUL"),
    "an object as id": (ENVELOPE | {"event_id": {}}, "event_id is an object"),
    "a list as id": (ENVELOPE | {"event_id": ["x"]}, "event_id is a list"),
    "a fraction as id": (ENVELOPE | {"event_id": 1.5}, "event_id is a number with a fraction"),
    "null as id": (ENVELOPE | {"event_id": None}, "event_id is null"),
    "true as id": (ENVELOPE | {"event_id": True}, "event_id is a boolean"),
    "a list as type": (ENVELOPE | {"event_type": []}, "event_type is a list"),
    "a long type": (ENVELOPE | {"event_type": "x" * 256}, "event_type is 256 bytes long"),
    "an object as reference": (ENVELOPE | {"reference": {}}, "reference is an object"),
    "not an object": ([ENVELOPE], "the body is a list, not an object"),
}


def test_an_envelope_without_a_usable_identity_gets_422_with_the_reason(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for name, (body, reason) in ENVELOPES.items():
        with subtests.test(name), recording_nothing(shared):
            response = shared.http.post("/events/ingest", json=body)
            assert response.status_code == 422
            assert reason in response.json()["message"]


NO_JSON = [
    *(b"", b"{", b"nonsense", b"\xff\xfe", b"[" * 100_000),
    b'{"event_id": "x", "event_type": "x", "payload": ',
    b'{"event_id": "\xff", "event_type": "x", "payload": 1}',
    b'{"event_id": "\\ud800", "event_type": "x", "payload": 1}',
    b'{"event_id": ' + b"9" * 5_000 + b', "event_type": "x", "payload": 1}',
    b'{"event_id": NaN, "event_type": "x", "payload": 1}',
    b'{"event_id": "x", "event_type": "x", "payload": ' + DEEP + b"}",
]


def test_an_envelope_that_is_not_json_gets_422(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for body in NO_JSON:
        with subtests.test(repr(body[:60])), recording_nothing(shared):
            response = shared.http.post("/events/ingest", content=body, headers=JSON)
            assert response.status_code == 422
            assert response.json()["message"]


STRIPE_IDS: dict[str, tuple[Any, str]] = {
    "missing": (..., "json:id is missing"),
    "empty": ("", "json:id is empty"),
    "long": ("x" * 256, "json:id is 256 bytes long"),
    "NUL": ("a\0b", "json:id contains a NUL"),
    "a lone surrogate": ("\ud800", "json:id is not valid Unicode"),
    "an object": ({}, "json:id is an object"),
    "a list": ([], "json:id is a list"),
    "a fraction": (1.5, "json:id is a number with a fraction"),
}


def test_a_signed_webhook_without_a_usable_id_gets_422_with_the_reason(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for name, (event_id, reason) in STRIPE_IDS.items():
        with subtests.test(name), recording_nothing(shared):
            event = {"type": "invoice.paid"} | ({} if event_id is ... else {"id": event_id})
            body = json.dumps(event).encode()
            response = post_stripe(shared, signed_at(int(time.time()), body), body)
            assert response.status_code == 422
            assert reason in response.json()["message"]


def test_an_unusable_id_in_a_header_gets_422(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for event_id in (b"", b"x" * 256, b"\xff\xfe", b"\xc3"):
        with subtests.test(repr(event_id[:5])), recording_nothing(shared):
            response = shared.http.post(
                "/webhooks/partner", content=BODY, headers=signed_by_partner(event_id)
            )
            assert response.status_code == 422
            assert "X-Event-Id" in response.json()["message"]


def test_a_nul_in_a_header_gets_400(nothing_recorded: RunningInbox) -> None:
    sent = partner_webhook("a\0b")
    with nothing_recorded.connect() as connection:
        connection.send(request("/webhooks/partner", sent.body, headers=sent.headers))
        assert connection.read_response().status == 400


# Malformed bodies.

MALFORMED = {
    "a NUL": (b'{"ref":"a\x00b"}', "ref: contains a NUL"),
    "half a surrogate pair": (b'{"ref":"\\ud800"}', "ref: contains a lone surrogate"),
    "depth 100,000": (b'{"ref":"x","o":' + DEEP + b"}", TOO_DEEP),
    "an unclosed list": (b"[" * 100_000, TOO_DEEP),
    "5,000 digits": (b'{"ref":' + b"9" * 5_000 + b"}", f"ref: {LONG_NUMBER}"),
    "NaN": (b'{"ref":NaN}', "ref: NaN is not JSON"),
    "bad UTF-8": (b'{"ref":"\xff\xfe"}', "ref: not UTF-8"),
    "a byte order mark": (b'\xef\xbb\xbf{"ref":"x"}', "begins with a byte order mark"),
    "truncated": (b'{"ref":"refs/he', "not JSON (at character 7)"),
    "empty": (b"", "empty"),
    "a list": (b'["ref"]', "expected object, got array"),
    "a string": (b'"ref"', "expected object, got str"),
    "null": (b"null", "expected object, got null"),
    "a missing field": (b"{}", "missing ref"),
    "a field of another type": (b'{"ref":7}', "ref: expected str, got int"),
}


@pytest.mark.every_transport
def test_a_signed_malformed_body_is_stored_unchanged_and_its_job_names_the_fault(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for number, (body, _) in enumerate(MALFORMED.values()):
        assert service.send(github_webhook(f"d-{number}", body)).status_code == 202
    for number, (name, (body, reason)) in enumerate(MALFORMED.items()):
        with subtests.test(name):
            assert service.payload(f"d-{number}")[0] == body
            job = service.settled_job(f"d-{number}")
            outcome = job["status"], job["failure_type"], job["attempts"]
            assert outcome == ("failed", "permanent", 1)
            assert job["last_error"].startswith(f"Malformed payload: {reason}")


ODD_VALUES = {
    "a NUL": b'"a\x00b"',
    "a lone surrogate": b'"\\ud800"',
    "depth 500": b"[" * 499 + b"]" * 499,
    "5,000 digits": b"9" * 5_000,
    "a huge exponent": b"1e100000",
    "NaN": b"NaN",
    "bad UTF-8": b'"\xff\xfe"',
    "the id again": b'0,"id":"evt_beside_again"',
}


def test_a_body_with_an_odd_value_beside_its_id_is_stored(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for mark, (name, odd) in itertools.product((b"", b"\xef\xbb\xbf"), ODD_VALUES.items()):
        with subtests.test(name, mark=mark):
            event_id = f"evt_{digest('beside', mark + odd)[:20]}"
            body = mark + b'{"type":"quiet","odd":%b,"id":"%b"}' % (odd, event_id.encode())
            response = post_stripe(shared, signed_at(int(time.time()), body), body)
            assert (response.status_code, response.json()["event_id"]) == (202, event_id)
            assert shared.payload(event_id)[0] == body


def test_an_envelope_with_a_number_of_5000_digits_is_stored(shared: RunningInbox) -> None:
    body = b'{"event_id":"digits","event_type":"order.paid","payload":{"n":' + b"7" * 5000 + b"}}"
    response = shared.http.post("/events/ingest", content=body, headers=JSON)
    assert response.status_code == 202
    assert shared.payload("digits")[0] == body
    assert shared.settled_job("digits")["last_error"] == (f"Malformed payload: n: {LONG_NUMBER}")


def test_a_handler_without_a_model_fails_with_the_same_reason(shared: RunningInbox) -> None:
    body = b'{"type":"order.paid","lines":[{"n":NaN}]}'
    assert shared.send(partner_webhook("no-model", body)).status_code == 202
    job = shared.settled_job("no-model")
    assert job["last_error"] == "Malformed payload: lines[0].n: NaN is not JSON"


# Encodings, paths, methods, headers and logs.


def test_an_encoded_body_gets_415(shared: RunningInbox, subtests: pytest.Subtests) -> None:
    for encoding in ["gzip", "br", "deflate", "identity, gzip", "x"]:
        with subtests.test(encoding), recording_nothing(shared):
            for sent in (partner_webhook("encoded"), SignedWebhook("", BODY, JSON)):
                path = f"/webhooks/{sent.source}" if sent.source else "/events/ingest"
                response = shared.http.post(
                    path, content=sent.body, headers=sent.headers | {"content-encoding": encoding}
                )
                assert (response.status_code, response.json()["error"]) == (415, "encoded_body")


UNKNOWN_PATHS = ("/x", *(f"/webhooks/{name}" for name in ("unknown", "", "stripe/", "..%2fstripe")))


def test_an_unknown_path_gets_404(shared: RunningInbox, subtests: pytest.Subtests) -> None:
    for path in UNKNOWN_PATHS:
        with subtests.test(path), recording_nothing(shared):
            sent = stripe_webhook("evt_404")
            response = shared.send(sent, path)
            assert response.status_code == 404
            assert set(response.json()) == {"error", "message"}


OTHER_METHODS = ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")


def test_only_post_is_allowed(shared: RunningInbox, subtests: pytest.Subtests) -> None:
    for path, method in itertools.product(("/webhooks/stripe", "/events/ingest"), OTHER_METHODS):
        with subtests.test(f"{method} {path}"), recording_nothing(shared):
            response = shared.http.request(method, path)
            assert response.status_code == 405
            assert response.headers["allow"] == "POST"


SECURITY_HEADERS = ("x-hub-signature-256", "x-github-delivery", "x-github-event")


def test_a_repeated_security_header_gets_400(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for name in (*SECURITY_HEADERS, "content-encoding"):
        with subtests.test(name), recording_nothing(shared):
            sent = github_webhook("repeated")
            headers = {"content-encoding": "identity"} | sent.headers
            lines = f"{name}: {headers[name]}\r\n".encode()
            data = request("/webhooks/github", sent.body, headers=headers, lines=lines)
            with shared.connect() as connection:
                response = connection.send(data).read_response()
            assert response.status == 400
            assert name in json.loads(response.body)["message"]


def test_line_breaks_and_terminal_codes_are_escaped_in_the_log(
    nothing_recorded: RunningInbox, caplog: pytest.LogCaptureFixture
) -> None:
    time.sleep(1.05)  # lines about a path are written once a second
    nothing_recorded.http.post("/webhooks/%0d%0aroot: all is well%1b[31m%00<script>%c2%9b%e2%80%ae")
    # Other lines may count what was suppressed before.
    (line,) = [text for text in caplog.messages if "all is well" in text]
    assert line.isprintable()
    assert line.startswith(
        "/webhooks/\\r\\nroot: all is well\\x1b[31m\\x00<script>\\x9b\\u202e: 404"
    )


def test_line_breaks_and_terminal_codes_are_escaped_in_handler_errors(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "onceward")
    inbox = Inbox(sqlite_url)

    @inbox.on("*")
    async def fail(event: Event[Any]) -> None:
        raise PermanentError(f"no order {event.id}")

    event_id = "a\r\n2026-01-01 all is well\x1b[2J\x9b\u202e"
    shown = "no order a\\r\\n2026-01-01 all is well\\x1b[2J\\x9b\\u202e"
    with closing(RunningInbox(inbox, dev=True)) as service:
        assert service.post(event_id).status_code == 202
        assert shown in service.settled_job(event_id)["last_error"]
    lines = [record.getMessage() for record in caplog.records if "no order" in record.getMessage()]
    assert lines
    assert all(shown in line and line.isprintable() for line in lines)


def test_markup_and_odd_characters_in_an_id_are_returned_unchanged(
    shared: RunningInbox,
) -> None:
    for event_id in ("<script>alert(1)</script>", "a\r\nb\x1b[31m", "../../etc/passwd", "' OR 1=1"):
        response = shared.post(event_id, "<b>type</b>")
        assert response.status_code == 202
        assert response.json()["event_id"] == event_id
        (event,) = shared.items("events", event_id=event_id)
        assert event["event_type"] == "<b>type</b>"
        assert response.headers["x-content-type-options"] == "nosniff"


def test_a_flood_of_failures_does_not_fill_the_log(
    nothing_recorded: RunningInbox, caplog: pytest.LogCaptureFixture
) -> None:
    time.sleep(1.05)  # past the interval that an earlier test started
    for _ in range(50):
        nothing_recorded.http.post("/webhooks/unknown")
    time.sleep(1.05)  # past the interval that the first line started
    nothing_recorded.http.post("/webhooks/unknown")
    lines = [line for line in caplog.messages if line.startswith("/webhooks/unknown: 404: ")]
    assert len(lines) == 2
    assert lines[1].endswith("(from 127.0.0.1; 49 more since the last line)")
