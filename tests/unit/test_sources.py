import hashlib
import hmac
import json
from typing import Any

import pytest

from onceward import Inbox
from onceward.errors import ConfigurationError, RequestRefused, SignatureRejected
from onceward.model.events import DuplicateBody, Identity
from onceward.sources.challenge import Reply
from onceward.sources.configure import SourceOptions, make_source
from onceward.sources.presets import PRESETS, find_preset
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Hmac, Signature
from onceward.sources.source import IdentifiedEvent, Source

SECRET = "a secret of the source"
BAD_NAME = "the name must be 1 to 64 of a-z, 0-9, _ and -, beginning with a letter or a digit"
NO_SECRETS = (
    "source 'shop': it has no secrets; give secrets=[…] from the sender's settings, "
    "or unsigned=True to take what anyone sends"
)
FIXED_HEADER = (
    "source 'stripe': the preset 'stripe' fixes the signature's header and prefix; "
    "to set them, use preset='hmac'"
)
NOW = 1_760_000_000.0


def faults_of(name: str = "shop", **options: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        make_source(name, **options)
    return list(caught.value.faults)


def only(admitted: list[IdentifiedEvent] | Reply) -> Identity:
    assert isinstance(admitted, list)
    ((identity, _),) = admitted
    return identity


def shop(**options: Any) -> Source:
    return make_source("shop", **{"secrets": [SECRET], **options})


def signed(body: bytes, header: bytes = b"x-signature", prefix: bytes = b"") -> Headers:
    signature = prefix + hmac.digest(SECRET.encode(), body, "sha256").hex().encode()
    return Headers([(header, signature), (b"x-event-id", b"e1")])


def test_a_source_takes_the_preset_of_its_own_name() -> None:
    assert make_source("stripe", secrets=[SECRET]).scheme == PRESETS["stripe"].scheme()


def test_a_second_account_takes_the_preset_under_another_name() -> None:
    source = make_source("stripe-eu", preset="stripe", secrets=[SECRET])
    assert (source.name, source.preset_name) == ("stripe-eu", "stripe")


def test_a_sender_that_nobody_knows_signs_its_body_by_default() -> None:
    body = b'{"type":"order.shipped"}'
    assert only(shop().verify(Request(signed(body), body), NOW)) == Identity("e1", "order.shipped")


def test_a_sender_that_nobody_knows_can_be_described_by_hand() -> None:
    source = shop(
        signature_header="X-Shop-Sig",
        signature_prefix="v1:",
        id="json:order.id",
        type=["json:kind", "json:step"],
        reference="json:customer",
    )
    body = b'{"order":{"id":7},"kind":"order","step":"shipped","customer":"c1"}'
    identity = only(source.verify(Request(signed(body, b"x-shop-sig", b"v1:"), body), NOW))
    assert identity == Identity("7", "order.shipped", "c1")


def test_a_preset_can_be_told_other_places() -> None:
    source = make_source("github", secrets=[SECRET], type="header:X-GitHub-Event")
    body = b'{"action":"opened"}'
    signature = b"sha256=" + hmac.digest(SECRET.encode(), body, "sha256").hex().encode()
    pairs = [(b"x-hub-signature-256", signature), (b"x-github-delivery", b"d1")]
    headers = Headers([*pairs, (b"x-github-event", b"issues")])
    assert only(source.verify(Request(headers, body), NOW)) == Identity("d1", "issues")


def test_a_request_that_does_not_verify_is_refused_before_it_is_read() -> None:
    with pytest.raises(SignatureRejected):
        shop().verify(Request(Headers([]), b""), NOW)


def test_a_request_that_verifies_still_needs_an_id() -> None:
    with pytest.raises(RequestRefused, match="json:id is missing"):
        shop(id="json:id").verify(Request(signed(b"{}"), b"{}"), NOW)


def test_an_unsigned_source_takes_what_anyone_sends() -> None:
    source = make_source("shop", unsigned=True)
    assert only(source.verify(Request(Headers([(b"x-event-id", b"e1")]), b""), NOW)) == Identity(
        "e1", ""
    )


def test_a_tolerance_can_be_set() -> None:
    source = make_source("stripe", secrets=[SECRET], tolerance_seconds=10)
    content = f"{NOW:.0f}." + '{"id":"evt_1"}'
    signature = hmac.digest(SECRET.encode(), content.encode(), "sha256").hex()
    headers = Headers([(b"stripe-signature", f"t={NOW:.0f},v1={signature}".encode())])
    assert only(source.verify(Request(headers, b'{"id":"evt_1"}'), NOW + 10)).event_id == "evt_1"
    with pytest.raises(SignatureRejected):
        source.verify(Request(headers, b'{"id":"evt_1"}'), NOW + 11)


def test_secrets_may_be_bytes_and_are_never_shown() -> None:
    source = shop(secrets=["the first secret", b"the second secret"])
    assert source.secrets == (b"the first secret", b"the second secret")
    assert "the first" not in repr(source)
    assert "the second" not in repr(source)


@pytest.mark.parametrize("name", ["", "Shop", "shop/eu", "-shop", "shöp", "a" * 65, "a\n", "a b"])
def test_a_name_that_does_not_fit_a_url_is_refused(name: str) -> None:
    assert faults_of(name, secrets=[SECRET]) == [f"source {name!r}: {BAD_NAME}"]


def test_the_name_ingest_is_reserved() -> None:
    fault = "source 'ingest': the name is reserved for POST /events/ingest"
    assert faults_of("ingest", secrets=[SECRET]) == [fault]


def test_a_source_without_secrets_does_not_start() -> None:
    assert faults_of() == [NO_SECRETS]


def test_a_source_is_not_both_signed_and_unsigned() -> None:
    fault = "source 'shop': it has secrets and says unsigned=True; take one of them away"
    assert faults_of(secrets=[SECRET], unsigned=True) == [fault]


def test_bad_secrets_are_named_by_their_position_and_never_shown() -> None:
    assert faults_of(secrets=[SECRET, "", "hunter2", b"trailing newline\n", "\ud800"]) == [
        "source 'shop': secret 2 is empty",
        "source 'shop': secret 3 is 7 bytes long; the least is 8",
        "source 'shop': secret 4 begins or ends with a line break",
        "source 'shop': secret 5 is not valid text",
    ]


def test_a_lone_secret_must_still_be_in_a_list() -> None:
    fault = "source 'shop': secrets must be a list, also where there is only one"
    assert faults_of(secrets=SECRET) == [fault]


def test_a_preset_that_does_not_exist_is_refused_with_those_that_are_called_alike() -> None:
    fault = (
        "source 'shop': no preset 'strype'; did you mean stripe? `onceward sources` lists them all"
    )
    assert faults_of(preset="strype", secrets=[SECRET]) == [fault]
    with pytest.raises(ConfigurationError, match="no preset 'qqq'; `onceward sources` lists"):
        find_preset("qqq")


def test_a_preset_keeps_its_own_signature_header() -> None:
    faults = faults_of("stripe", secrets=[SECRET], signature_header="X-Signature")
    assert faults == [FIXED_HEADER]


def test_a_tolerance_without_a_timestamp_is_refused() -> None:
    fault = "source 'shop': tolerance_seconds has no use: the preset 'hmac' signs no timestamp"
    assert faults_of(secrets=[SECRET], tolerance_seconds=300) == [fault]


def test_every_fault_is_told_at_once() -> None:
    assert faults_of(
        "Stripe",
        preset="hmac",
        secrets=["short"],
        signature_header="X Y",
        signature_prefix="é",
        id="id",
        type="json:",
        reference="header:",
        keep_headers=["Cookie", "é"],
    ) == [
        f"source 'Stripe': {BAD_NAME}",
        "source 'Stripe': signature_header 'X Y' is not the name of a header",
        "source 'Stripe': signature_prefix must be plain ASCII",
        "source 'Stripe': 'id' is no place: write header:Some-Name or json:some.path",
        "source 'Stripe': 'json:' has an empty name in its path",
        "source 'Stripe': '' is not the name of a header",
        "source 'Stripe': keep_headers: cookie holds credentials and is never kept",
        "source 'Stripe': keep_headers: 'é' is not the name of a header",
        "source 'Stripe': secret 1 is 5 bytes long; the least is 8",
    ]


def test_an_unknown_option_is_refused_by_name() -> None:
    (fault,) = faults_of(secrets=[SECRET], secret="a", keep_headers=["X"])
    assert fault.startswith("source 'shop': unknown option 'secret'; the options are duplicate")


def test_the_inbox_refuses_an_unknown_option_too() -> None:
    options: Any = {"secrets": [SECRET], "tolerance": 5}
    with pytest.raises(ConfigurationError, match="unknown option 'tolerance'"):
        Inbox().source("shop", **options)


def test_an_unknown_preset_or_scheme_is_reported_without_faults_that_depend_on_it() -> None:
    unknown_preset = faults_of(preset="strype", secrets=["short"], tolerance_seconds=300)
    assert len(unknown_preset) == 1
    (fault,) = faults_of("gitlab", scheme="jwt", secrets=[SECRET], url="https://shop.example")
    assert "has no scheme 'jwt'; there are: signing-token, static-token" in fault


def test_every_option_is_documented_where_users_look() -> None:
    documented = Inbox.source.__doc__ or ""
    assert [it for it in SourceOptions.__optional_keys__ if f"`{it}`" not in documented] == []


def test_a_tolerance_below_a_second_is_refused() -> None:
    fault = "source 'stripe': tolerance_seconds is 0; it must be 1 or more"
    assert faults_of("stripe", secrets=[SECRET], tolerance_seconds=0) == [fault]


def test_headers_worth_keeping_are_kept_and_credentials_are_not() -> None:
    source = make_source("github", secrets=[SECRET], keep_headers=["X-Trace", "user-agent"])
    pairs = [
        (b"content-type", b"application/json"),
        (b"user-agent", b"caf\xe9"),
        (b"x-github-event", b"push"),
        (b"x-trace", b'a "quoted" one'),
        (b"authorization", b"Bearer abc"),
        (b"cookie", b"session=abc"),
        (b"x-hub-signature-256", b"sha256=00"),
    ]
    assert json.loads(source.encode_kept_headers(Headers(pairs))) == {
        "content-type": "application/json",
        "user-agent": "café",
        "x-github-event": "push",
        "x-trace": 'a "quoted" one',
    }


def test_a_kept_header_may_be_repeated() -> None:
    headers = Headers([(b"user-agent", b"a"), (b"user-agent", b"b")])
    assert shop().encode_kept_headers(headers) == b'{"user-agent":"a, b"}'


def test_a_lone_kept_header_must_still_be_in_a_list() -> None:
    fault = "source 'shop': keep_headers must be a list, also where there is only one"
    assert faults_of(secrets=[SECRET], keep_headers="X-Trace") == [fault]


# The same body under another id, and what differs between deliveries.


@pytest.mark.parametrize(
    ("preset", "duplicate_body"),
    [
        ("github", DuplicateBody.FLAGGED),  # the id is in a header that nobody signs
        ("shopify", DuplicateBody.FLAGGED),
        ("stripe", DuplicateBody.ALLOWED),  # in the body
        ("standard-webhooks", DuplicateBody.ALLOWED),  # in a header that is signed
        ("twitch", DuplicateBody.ALLOWED),
        ("telegram", DuplicateBody.ALLOWED),  # nothing is signed
    ],
)
def test_the_same_body_is_looked_for_where_nobody_signs_the_id(
    preset: str, duplicate_body: DuplicateBody
) -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert make_source("it", preset=preset, secrets=[secret]).duplicate_body is duplicate_body
    assert (
        make_source("it", preset=preset, secrets=[secret], duplicate_body="hold").duplicate_body
        is DuplicateBody.HELD
    )


def test_an_id_from_the_body_needs_no_look_at_others() -> None:
    source = make_source("it", preset="github", secrets=["a-secret-of-ours"], id="json:id")
    assert source.duplicate_body is DuplicateBody.ALLOWED
    wrong: Any = "stop"
    with pytest.raises(ConfigurationError, match="duplicate_body must be one of allow, flag, hold"):
        make_source("it", preset="github", secrets=["a-secret-of-ours"], duplicate_body=wrong)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (b'{"try":1,"a":1}', b'{"try":2,"a":1}', True),
        (b'{"a":{"try" : "x\\"y"}}', b'{"a":{"try": null}}', True),
        (b'{"try":1,"a":1}', b'{"try":1,"a":2}', False),
        (b'{"a":"try"}', b'{"a":"tri"}', False),
        (b'{"retry":1}', b'{"retry":2}', False),
        (b'{"a":"\\"try\\":1"}', b'{"a":"\\"try\\":2"}', False),  # in a text it is a text
        (b'{"try":[1]}', b'{"try":[2]}', False),  # only plain values
    ],
)
def test_what_varies_tells_no_body_from_another(one: bytes, other: bytes, is_same: bool) -> None:  # noqa: FBT001
    source = make_source("it", secrets=["a-secret-of-ours"], volatile_fields=["try"])
    assert (source.digest(one) == source.digest(other)) is is_same
    plain = make_source("it", secrets=["a-secret-of-ours"])
    assert plain.digest(one) == hashlib.sha256(one).digest()


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Signature, {"content": "{body"}, "a brace that is not closed"),
        (Signature, {"content": "hello"}, "nothing of the request in it"),
        (Signature, {"encoding": "b64"}, "encoding 'b64' is none of hex"),
        (Signature, {"time_format": "unix"}, "time_format 'unix' is none of"),
        (Signature, {"algorithm": "sha256"}, "the algorithm is none"),
        (Signature, {"algorithm": Hmac}, "the algorithm is none"),
        (Hmac, {"digest": "sha3"}, "the digest 'sha3' is none of sha1"),
    ],
)
def test_a_description_that_cannot_work_is_refused(kind: Any, given: Any, message: str) -> None:
    at = {"at": "header:X"} if kind is Signature else {}
    with pytest.raises(ConfigurationError, match=message):
        kind(**at, **given)


def test_a_secret_that_is_neither_text_nor_bytes_is_refused() -> None:
    number: Any = 12345678
    with pytest.raises(ConfigurationError, match="secret 1 is neither a text nor bytes"):
        make_source("it", secrets=[number])
