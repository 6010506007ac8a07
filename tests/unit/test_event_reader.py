"""An event is identified by what the proof covers, in every spelling of a request."""

import binascii
import hashlib
import json
from urllib.parse import urlencode

import pytest

import onceward
from onceward.errors import NoEventId, SignatureRejected
from onceward.model.events import Arrival, DuplicateBody
from onceward.sources.configure import make_source
from onceward.sources.event_reader import make_event_reader
from onceward.sources.presets import PRESETS, Preset
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Signature
from onceward.sources.selectors import BODY_HASH, parse_selectors
from onceward.sources.source import Source
from onceward.standalone import Signed
from tests.keys import SCHEMES, pair_for

NOW = 1_790_000_000.0
URL = "https://shop.example/webhooks/source"
SECRET = "a-secret-of-some-length"


def received(signed: Signed) -> Request:
    raw = [(name.lower().encode(), value.encode()) for name, value in signed.headers.items()]
    return Request(Headers(raw), signed.body, url=signed.url)


def only(source: Source, request: Request) -> Arrival:
    """Return what a source records for a request with one event."""
    events = source.verify(request, NOW)
    assert isinstance(events, list)
    (arrival,) = source.arrivals(events, request.headers)
    return arrival


def test_an_uncovered_value_is_never_preferred_as_an_id(subtests: pytest.Subtests) -> None:
    for preset, name, scheme in SCHEMES:
        with subtests.test(f"{preset.name}-{name}"):
            coverage = preset.coverage(scheme)
            for part in make_event_reader(preset, scheme).selectors.id:
                values = [selector for selector in part if selector != BODY_HASH]
                covered = [coverage.covers(item, part[:place]) for place, item in enumerate(values)]
                assert covered == sorted(covered, reverse=True)
                assert part[len(values) :] in ((), (BODY_HASH,))


def test_the_signed_id_of_gitlab_beats_an_unsigned_header() -> None:
    secret = pair_for("gitlab", PRESETS["gitlab"].scheme()).public
    source = make_source("gitlab", secrets=[secret])
    headers = {"webhook-id": "msg_1", "Idempotency-Key": "forged"}
    signed = onceward.sign("gitlab", secret=secret, body=b"{}", headers=headers, now=NOW)
    assert only(source, received(signed)).event_id == "msg_1"


TWO_HEADERS = Preset(
    name="two-headers",
    title="A sender that signs the first of two headers",
    schemes=Signature(at="header:X-Sig", content="{header:X-A|header:X-B}.{body}"),
    id="header:X-A|header:X-Plain|header:X-B",
)


def test_the_second_of_two_signed_headers_beats_an_unsigned_one() -> None:
    (part,) = make_event_reader(TWO_HEADERS, TWO_HEADERS.scheme()).selectors.id
    assert part == parse_selectors("header:X-A|header:X-B|header:X-Plain")


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("header:X-A|header:X-B", DuplicateBody.ALLOWED),
        ("header:X-B|header:X-A", DuplicateBody.FLAGGED),
        ("header:X-A|header:X-Plain|header:X-B", DuplicateBody.FLAGGED),
    ],
)
def test_an_id_in_the_first_of_two_signed_headers_is_covered(
    id: str, expected: DuplicateBody
) -> None:
    source = make_source("source", preset=TWO_HEADERS, secrets=[SECRET], id=id)
    assert source.duplicate_body is expected


FORM_FIELD = Preset(
    name="form-field",
    title="A sender that signs one form field",
    schemes={
        "field": Signature(at="header:X-Sig", content="{form:payload}"),
        "body": Signature(at="header:X-Sig"),
    },
    form_field="form:payload",
    id="header:X-Id|json:id",
    reference="query:account",
)


def test_an_event_in_a_signed_form_field_is_identified_by_it() -> None:
    (part,) = make_event_reader(FORM_FIELD, FORM_FIELD.scheme()).selectors.id
    assert part == parse_selectors("json:id|header:X-Id")


def test_an_event_in_a_form_field_has_the_url_of_its_request() -> None:
    source = make_source("source", preset=FORM_FIELD, secrets=[SECRET])
    body = urlencode({"payload": '{"id":"e1"}'}).encode()
    request = received(onceward.sign(FORM_FIELD, secret=SECRET, body=body, url=f"{URL}?account=7"))
    assert only(source, request).reference == "7"


def test_a_signed_body_without_the_form_field_of_events_is_rejected() -> None:
    source = make_source("source", preset=FORM_FIELD, scheme="body", secrets=[SECRET])
    signed = onceward.sign(FORM_FIELD, scheme="body", secret=SECRET, body=b'{"id":"e1"}')
    with pytest.raises(SignatureRejected) as caught:
        source.verify(received(signed), NOW)
    assert caught.value.check == "no form:payload"


FIELDS = Preset(
    name="fields",
    title="A sender that signs two fields",
    schemes=Signature(at="json:signature", content="{json:number}:{json:paid}"),
    id=("json:number", "json:paid"),
)


def signed_fields(number: object, paid: object, **others: object) -> Request:
    body = json.dumps({"number": number, "paid": paid, **others}).encode()
    return received(onceward.sign(FIELDS, secret=SECRET, body=body))


def test_a_covered_id_has_no_second_spelling() -> None:
    source = make_source("source", preset=FIELDS, secrets=[SECRET])
    genuine = only(source, signed_fields("7", "true"))
    assert genuine.event_id == "7|true"
    assert only(source, signed_fields(7, "true")).event_id == genuine.event_id
    with pytest.raises(NoEventId, match="json:paid is a boolean"):
        source.verify(signed_fields("7", paid=True), NOW)


def test_changed_unsigned_content_under_a_covered_id_is_a_conflict() -> None:
    source = make_source("source", preset=FIELDS, secrets=[SECRET])
    genuine, changed = (only(source, signed_fields("7", "no", note=note)) for note in ("a", "b"))
    assert changed.event_id == genuine.event_id
    assert changed.body_sha256 != genuine.body_sha256


def test_changed_unsigned_content_under_another_id_is_flagged() -> None:
    source = make_source("source", preset=FIELDS, secrets=[SECRET], id=["json:number", "json:note"])
    genuine, changed = (only(source, signed_fields("7", "no", note=note)) for note in ("a", "b"))
    assert changed.event_id != genuine.event_id
    assert changed.body_sha256 != genuine.body_sha256
    assert changed.covered_sha256 == genuine.covered_sha256 is not None
    assert changed.duplicate_body is DuplicateBody.FLAGGED


def test_another_body_under_a_proof_of_the_url_alone_is_a_conflict() -> None:
    scheme = Signature(at="header:X-Sig", content="{url}")
    source = make_source("shop", scheme=scheme, secrets=[SECRET], id="json:id", url=URL)
    signed = onceward.sign("hmac", scheme=scheme, secret=SECRET, body=b'{"id":1}', url=URL)
    genuine = received(signed)
    changed = Request(genuine.headers, b'{"id":1,"a":2}', url=URL)
    assert only(source, genuine).body_sha256 != only(source, changed).body_sha256


def test_a_signed_event_without_a_usable_id_is_kept_under_its_hash() -> None:
    preset = Preset(
        name="batch",
        title="A sender of several events",
        schemes=Signature(at="header:X-Sig"),
        events="json:[]",
        id="json:id",
    )
    source = make_source("source", preset=preset, secrets=[SECRET])
    request = received(onceward.sign(preset, secret=SECRET, body=b'[{"id":[]}]'))
    assert only(source, request).event_id == hashlib.sha256(b'{"id":[]}').hexdigest()


def twilio(body: bytes, content_type: str = "application/x-www-form-urlencoded") -> Request:
    fields = b"From=%2B1&MessageSid=SM1&MessageStatus=delivered"
    signed = onceward.sign("twilio", secret=SECRET, body=fields, url=URL)
    signature = signed.headers["X-Twilio-Signature"].encode()
    headers = [(b"x-twilio-signature", signature), (b"content-type", content_type.encode())]
    return Request(Headers(headers), body, url=URL)


def test_every_spelling_of_a_signed_form_is_one_event() -> None:
    source = make_source("twilio", secrets=[SECRET], url=URL)
    fields = {"MessageSid": "SM1", "MessageStatus": "delivered", "From": "+1"}
    plain = urlencode(fields)
    spellings = [
        plain,
        urlencode(sorted(fields.items())),
        f"{plain}&From=%2B1",
        plain.replace("%2B", "%2b"),
        plain.replace("M", "%4D"),
    ]
    recorded = [only(source, twilio(body.encode())) for body in spellings]
    assert len({arrival.event_id for arrival in recorded}) == 1
    assert len({arrival.body_sha256 for arrival in recorded}) == 1
    assert {arrival.covered_sha256 for arrival in recorded} == {None}
    assert recorded[0].body == spellings[0].encode()


def dropbox_sign(**event: object) -> Request:
    document = {"event": {"event_type": "sent", "event_time": "1789999990"}, **event}
    body = urlencode({"json": json.dumps(document)}).encode()
    return received(onceward.sign("dropbox-sign", secret=SECRET, body=body, now=NOW))


def mercadopago(number: int) -> Request:
    signed = onceward.sign(
        "mercadopago",
        secret=SECRET,
        body=json.dumps({"id": number, "action": "payment.updated"}).encode(),
        headers={"x-request-id": "request-1"},
        url=f"{URL}?data.id=98",
        now=NOW,
    )
    return received(signed)


def mailgun(number: str) -> Request:
    document = {"signature": {"token": "t" * 50}, "event-data": {"id": number, "event": "opened"}}
    body = json.dumps(document).encode()
    return received(onceward.sign("mailgun", secret=SECRET, body=body, now=NOW))


def with_checksum(body: bytes, checksum: int) -> bytes:
    """Append spaces and tabs to a JSON body until it has a CRC-32."""
    columns = []
    base = binascii.crc32(body + b" " * 64)
    for place in range(64):
        changed = bytearray(b" " * 64)
        changed[place] = ord("\t")
        columns.append(binascii.crc32(body + bytes(changed)) ^ base)
    chosen = solve(columns, base ^ checksum)
    tail = bytearray(b" " * 64)
    for place in chosen:
        tail[place] = ord("\t")
    return body + bytes(tail)


def solve(columns: list[int], target: int) -> set[int]:
    """Return the columns whose exclusive or is the target."""
    basis: dict[int, tuple[int, set[int]]] = {}
    for place, column in enumerate(columns):
        value, places = reduced(column, {place}, basis)
        if value:
            basis[value.bit_length()] = (value, places)
    value, places = reduced(target, set(), basis)
    assert value == 0
    return places


def reduced(
    value: int, places: set[int], basis: dict[int, tuple[int, set[int]]]
) -> tuple[int, set[int]]:
    while value and value.bit_length() in basis:
        other, more = basis[value.bit_length()]
        value, places = value ^ other, places ^ more
    return value, places


def test_another_id_with_the_same_proof_has_the_same_covered_hash() -> None:
    """So the second event is flagged: the schemes cover a part of a request, but not its id."""
    for preset, first, second in [
        ("dropbox-sign", dropbox_sign(), dropbox_sign(signature_request={"title": "forged"})),
        ("mercadopago", mercadopago(1), mercadopago(2)),
        ("mailgun", mailgun("e1"), mailgun("e2")),
    ]:
        source = make_source("source", preset=preset, secrets=[SECRET])
        one, other = only(source, first), only(source, second)
        assert one.event_id != other.event_id
        assert one.covered_sha256 == other.covered_sha256 is not None
        assert one.body_sha256 != other.body_sha256
        assert one.duplicate_body is other.duplicate_body is DuplicateBody.FLAGGED


def test_an_id_of_mercadopago_in_another_case_has_the_same_hash() -> None:
    source = make_source("mercadopago", secrets=[SECRET])
    ids = {"x-request-id": "request-1"}
    signed = onceward.sign(
        "mercadopago",
        secret=SECRET,
        body=b'{"id":1,"action":"a"}',
        headers=ids,
        url=f"{URL}?data.id=ab9",
        now=NOW,
    )
    genuine = received(signed)
    other = Request(genuine.headers, b'{"id":2,"action":"a"}', url=f"{URL}?data.id=AB9")
    assert only(source, genuine).covered_sha256 == only(source, other).covered_sha256


def test_a_body_with_the_checksum_of_another_is_flagged() -> None:
    pair = pair_for("paypal", PRESETS["paypal"].scheme())
    source = make_source("paypal", secrets=[pair.public])
    signed = onceward.sign("paypal", secret=pair.private, body=b'{"id":"WH-1"}', now=NOW)
    genuine = received(signed)
    forged = with_checksum(b'{"id":"WH-2"}', binascii.crc32(genuine.body))
    one, other = only(source, genuine), only(source, Request(genuine.headers, forged))
    assert (one.event_id, other.event_id) == ("WH-1", "WH-2")
    assert one.covered_sha256 == other.covered_sha256 is not None
    assert one.body_sha256 != other.body_sha256
    assert other.duplicate_body is DuplicateBody.FLAGGED
