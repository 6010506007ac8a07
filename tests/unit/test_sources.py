"""A source is checked when it is configured, and verifies and identifies requests."""

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
from onceward.sources.event_reader import IdentifiedEvent
from onceward.sources.presets import PRESETS, find_preset
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Hmac, Signature
from onceward.sources.source import Source
from onceward.work.payloads.payload import FORM, content_type_of

SECRET = "a secret of the source"
BAD_NAME = (
    "the name must have 1 to 64 characters of a-z, 0-9, _ and -, and start with a letter or a digit"
)
NO_SECRETS = (
    "source 'shop': there are no secrets; pass secrets=[…] from the provider's settings, "
    "or unsigned=True to accept requests from anyone"
)
FIXED_HEADER = (
    "source 'stripe': the preset 'stripe' defines the signature's header and prefix; "
    "use preset='hmac' to set your own"
)
NOW = 1_760_000_000.0


def faults_of(name: str = "shop", **options: Any) -> list[str]:
    if name == "shop":
        options = {"preset": "hmac", **options}
    with pytest.raises(ConfigurationError) as caught:
        make_source(name, **options)
    return list(caught.value.faults)


def only(events: list[IdentifiedEvent] | Reply) -> Identity:
    assert isinstance(events, list)
    ((identity, *_),) = events
    return identity


def shop(**options: Any) -> Source:
    return make_source("shop", **{"preset": "hmac", "secrets": [SECRET], **options})


def signed(body: bytes, header: bytes = b"x-signature", prefix: bytes = b"") -> Headers:
    signature = prefix + hmac.digest(SECRET.encode(), body, "sha256").hex().encode()
    return Headers([(header, signature), (b"x-event-id", b"e1")])


def test_a_source_uses_the_preset_of_the_same_name() -> None:
    assert make_source("stripe", secrets=[SECRET]).scheme == PRESETS["stripe"].scheme()


def test_a_second_account_uses_a_preset_under_another_name() -> None:
    source = make_source("stripe-eu", preset="stripe", secrets=[SECRET])
    assert (source.name, source.preset_name) == ("stripe-eu", "stripe")


def test_a_source_of_ones_own_verifies_an_hmac_of_the_body() -> None:
    body = b'{"type":"order.shipped"}'
    assert only(shop().verify(Request(signed(body), body), NOW)) == Identity("e1", "order.shipped")


def test_a_sender_without_a_preset_can_be_configured() -> None:
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


def test_options_override_the_selectors_of_a_preset() -> None:
    source = make_source("github", secrets=[SECRET], type="header:X-GitHub-Event")
    body = b'{"action":"opened"}'
    signature = b"sha256=" + hmac.digest(SECRET.encode(), body, "sha256").hex().encode()
    pairs = [(b"x-hub-signature-256", signature), (b"x-github-delivery", b"d1")]
    headers = Headers([*pairs, (b"x-github-event", b"issues")])
    assert only(source.verify(Request(headers, body), NOW)) == Identity("d1", "issues")


def test_a_request_is_verified_before_it_is_identified() -> None:
    with pytest.raises(SignatureRejected):
        shop().verify(Request(Headers([]), b""), NOW)


def test_a_verified_request_without_an_id_is_refused() -> None:
    with pytest.raises(RequestRefused, match="json:id is missing"):
        shop(id="json:id").verify(Request(signed(b"{}"), b"{}"), NOW)


def test_an_unsigned_source_accepts_requests_from_anyone() -> None:
    source = make_source("shop", preset="hmac", unsigned=True)
    assert only(source.verify(Request(Headers([(b"x-event-id", b"e1")]), b""), NOW)) == Identity(
        "e1", ""
    )


def test_the_tolerance_can_be_configured() -> None:
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


def test_a_name_that_does_not_fit_a_url_is_refused(subtests: pytest.Subtests) -> None:
    for name in ("", "Shop", "shop/eu", "-shop", "shöp", "a" * 65, "a\n", "a b"):
        with subtests.test(name=name):
            faults = faults_of(name, preset="hmac", secrets=[SECRET])
            assert faults == [f"source {name!r}: {BAD_NAME}"]


@pytest.mark.parametrize("options", [{"preset": "hmac"}, {"mode": "inline"}, {}])
def test_the_source_ingest_is_built_in(options: dict[str, Any]) -> None:
    (fault,) = faults_of("ingest", secrets=[SECRET], **options)
    assert fault.startswith("source 'ingest': 'ingest' is built in and has no options: ")


def test_a_source_without_secrets_is_refused() -> None:
    assert faults_of() == [NO_SECRETS]


def test_a_source_cannot_be_both_signed_and_unsigned() -> None:
    fault = "source 'shop': secrets and unsigned=True exclude each other; remove one of them"
    assert faults_of(secrets=[SECRET], unsigned=True) == [fault]


def test_an_invalid_secret_is_reported_by_its_position_and_never_shown() -> None:
    assert faults_of(secrets=[SECRET, "", "hunter2", b"trailing newline\n", "\ud800"]) == [
        "source 'shop': secret 2 is empty; is its environment variable set?",
        "source 'shop': secret 3 is 7 bytes long; the minimum is 8",
        "source 'shop': secret 4 has a line break at its start or end",
        "source 'shop': secret 5 is not valid Unicode",
    ]


def test_a_single_secret_must_be_in_a_list() -> None:
    fault = "source 'shop': secrets must be a list, not a single secret"
    assert faults_of(secrets=SECRET) == [fault]


def test_an_unknown_preset_is_refused_with_a_similar_name() -> None:
    fault = (
        "source 'shop': there is no preset 'strype'; did you mean 'stripe'? "
        "`onceward sources` lists all presets"
    )
    assert faults_of(preset="strype", secrets=[SECRET]) == [fault]
    with pytest.raises(ConfigurationError, match=r"no preset 'qqq'\. `onceward sources` lists"):
        find_preset("qqq")


WITHOUT_PRESET: list[Any] = [
    {"secrets": [SECRET]},
    {"unsigned": True},
    {"secrets": [SECRET], "signature_header": "X-Signature"},
    {"secrets": [SECRET], "scheme": "default"},
]


def test_a_name_that_is_no_preset_needs_one(subtests: pytest.Subtests) -> None:
    for options in WITHOUT_PRESET:
        with subtests.test(options=options):
            assert faults_of("strype", **options) == [
                (
                    "source 'strype': there is no preset of this name; did you mean 'stripe'? To "
                    "keep the name, pass preset='stripe'; for a sender of your own, pass "
                    "preset='hmac'"
                )
            ]
            assert faults_of("crm", **options) == [
                (
                    "source 'crm': there is no preset of this name. For a sender of your own, pass "
                    "preset='hmac'; `onceward sources` lists all presets"
                )
            ]


def test_a_scheme_of_ones_own_needs_no_preset() -> None:
    scheme = Signature(at="header:X-Crm-Signature")
    assert make_source("crm", scheme=scheme, secrets=[SECRET]).scheme is scheme


def test_the_signature_header_of_a_preset_cannot_be_changed() -> None:
    faults = faults_of("stripe", secrets=[SECRET], signature_header="X-Signature")
    assert faults == [FIXED_HEADER]


def test_a_tolerance_without_a_timestamp_is_refused() -> None:
    fault = "source 'shop': tolerance_seconds has no effect: the preset 'hmac' signs no timestamp"
    assert faults_of(secrets=[SECRET], tolerance_seconds=300) == [fault]


def test_all_faults_are_reported_at_once() -> None:
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
        "source 'Stripe': signature_header 'X Y' is not a valid header name",
        "source 'Stripe': signature_prefix must be ASCII",
        "source 'Stripe': 'id' is not a selector; write header:Some-Name or json:some.path",
        "source 'Stripe': 'json:' has an empty name in its path",
        "source 'Stripe': '' is not a valid header name",
        "source 'Stripe': keep_headers: cookie carries credentials and is never stored",
        "source 'Stripe': keep_headers: 'é' is not a valid header name",
        "source 'Stripe': secret 1 is 5 bytes long; the minimum is 8",
    ]


def test_an_unknown_option_is_refused() -> None:
    (fault,) = faults_of(secrets=[SECRET], secret="a", keep_headers=["X"])
    assert fault == "source 'shop': unknown option 'secret'; did you mean 'secrets'?"
    (fault,) = faults_of(secrets=[SECRET], colour="red")
    assert fault.startswith("source 'shop': unknown option 'colour'; the options are duplicate")


def test_a_misspelled_option_is_reported_before_the_faults_it_causes() -> None:
    (fault,) = faults_of("crm", prset="stripe", secret=SECRET)[:1]
    assert fault == "source 'crm': unknown option 'prset'; did you mean 'preset'?"


def test_the_inbox_refuses_an_unknown_option() -> None:
    options: Any = {"secrets": [SECRET], "tolerance": 5}
    with pytest.raises(ConfigurationError, match="unknown option 'tolerance'"):
        Inbox().source("shop", **options)


def test_a_second_source_of_the_same_name_is_refused() -> None:
    inbox = Inbox()
    inbox.source("shop", preset="hmac", secrets=[SECRET])
    with pytest.raises(ConfigurationError, match="another source already has this name"):
        inbox.source("shop", preset="hmac", secrets=[SECRET])


def test_an_unknown_preset_or_scheme_is_reported_without_dependent_faults() -> None:
    unknown_preset = faults_of(preset="strype", secrets=["short"], tolerance_seconds=300)
    assert len(unknown_preset) == 1
    (fault,) = faults_of("gitlab", scheme="jwt", secrets=[SECRET], url="https://shop.example")
    assert "has no scheme 'jwt'; its schemes are signing-token, static-token" in fault
    (fault,) = faults_of("gitlab", scheme="static_token", secrets=[SECRET])
    assert "has no scheme 'static_token'; did you mean 'static-token'?" in fault


def test_inbox_source_documents_every_option() -> None:
    documented = Inbox.source.__doc__ or ""
    assert [name for name in SourceOptions.__optional_keys__ if f"`{name}`" not in documented] == []


def test_a_tolerance_below_a_second_is_refused() -> None:
    fault = "source 'stripe': tolerance_seconds is 0; it must be at least 1"
    assert faults_of("stripe", secrets=[SECRET], tolerance_seconds=0) == [fault]


def test_configured_headers_are_kept_and_credentials_are_not() -> None:
    source = make_source("github", secrets=[SECRET], keep_headers=["X-Trace", "user-agent"])
    pairs = [
        (b"content-type", b"application/json"),
        (b"user-agent", b"caf\xe9"),
        (b"x-github-event", b"push"),
        (b"x-trace", b'a "quoted" text'),
        (b"authorization", b"Bearer abc"),
        (b"cookie", b"session=abc"),
        (b"x-hub-signature-256", b"sha256=00"),
    ]
    assert json.loads(source.encode_kept_headers(Headers(pairs))) == {
        "content-type": "application/json",
        "user-agent": "café",
        "x-github-event": "push",
        "x-trace": 'a "quoted" text',
    }


def test_a_header_that_is_too_long_is_not_stored_but_named() -> None:
    source = make_source("github", secrets=[SECRET], keep_headers=["X-Trace", "X-Path"])
    pairs = [
        (b"content-type", FORM.encode() + b";" + b"a" * 1024),
        (b"user-agent", b"a" * 1024),
        (b"x-trace", b"a" * 1025),
        (b"x-path", b"a" * 512),
        (b"x-path", b"a" * 511),
    ]
    stored = source.encode_kept_headers(Headers(pairs))
    assert json.loads(stored) == {
        "user-agent": "a" * 1024,
        "onceward-omitted-headers": "content-type, x-trace, x-path",
    }
    assert content_type_of(stored) == "", "read as JSON, as without the header"


def test_the_values_of_a_repeated_header_are_joined() -> None:
    headers = Headers([(b"user-agent", b"a"), (b"user-agent", b"b")])
    assert shop().encode_kept_headers(headers) == b'{"user-agent":"a, b"}'


def test_a_single_header_to_keep_must_be_in_a_list() -> None:
    fault = "source 'shop': keep_headers must be a list, not a single text"
    assert faults_of(secrets=[SECRET], keep_headers="X-Trace") == [fault]


# Duplicate bodies and volatile fields.


DUPLICATE_BODIES: list[tuple[str, DuplicateBody]] = [
    ("github", DuplicateBody.FLAGGED),  # the id is in an unsigned header
    ("shopify", DuplicateBody.FLAGGED),
    ("stripe", DuplicateBody.ALLOWED),  # the id is in the body
    ("standard-webhooks", DuplicateBody.ALLOWED),  # the id is in a signed header
    ("twitch", DuplicateBody.ALLOWED),
    ("telegram", DuplicateBody.ALLOWED),  # the token signs nothing
]


def test_duplicate_bodies_are_flagged_if_the_id_is_unsigned(subtests: pytest.Subtests) -> None:
    for preset, duplicate_body in DUPLICATE_BODIES:
        with subtests.test(preset=preset):
            secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
            assert (
                make_source("shop", preset=preset, secrets=[secret]).duplicate_body
                is duplicate_body
            )
            assert (
                make_source(
                    "shop", preset=preset, secrets=[secret], duplicate_body="hold"
                ).duplicate_body
                is DuplicateBody.HELD
            )


def test_duplicate_bodies_are_allowed_if_the_id_is_in_the_body() -> None:
    source = make_source("shop", preset="github", secrets=[SECRET], id="json:id")
    assert source.duplicate_body is DuplicateBody.ALLOWED
    wrong: Any = "stop"
    with pytest.raises(ConfigurationError, match="duplicate_body must be one of allow, flag, hold"):
        make_source("shop", preset="github", secrets=[SECRET], duplicate_body=wrong)


VOLATILE_BODIES: list[tuple[bytes, bytes, bool]] = [
    (b'{"try":1,"a":1}', b'{"try":2,"a":1}', True),
    (b'{"a":{"try" : "x\\"y"}}', b'{"a":{"try": null}}', True),
    (b'{"try":1,"a":1}', b'{"try":1,"a":2}', False),
    (b'{"a":"try"}', b'{"a":"tri"}', False),
    (b'{"retry":1}', b'{"retry":2}', False),
    (b'{"a":"\\"try\\":1"}', b'{"a":"\\"try\\":2"}', False),  # inside a string
    (b'{"try":[1]}', b'{"try":[2]}', False),  # only scalars are volatile
]


def test_volatile_fields_do_not_change_the_digest(subtests: pytest.Subtests) -> None:
    for first, second, is_same in VOLATILE_BODIES:
        with subtests.test(first=first):
            source = shop(volatile_fields=["try"])
            assert (source.digest(first) == source.digest(second)) is is_same
            plain = shop()
            assert plain.digest(first) == hashlib.sha256(first).digest()


INVALID_SCHEMES: list[tuple[Any, Any, str]] = [
    (Signature, {"content": "{body"}, "an unmatched brace"),
    (Signature, {"content": "hello"}, "has no placeholder"),
    (Signature, {"encoding": "b64"}, "encoding 'b64' is not one of hex"),
    (Signature, {"time_format": "unix"}, "time_format 'unix' is not one of"),
    (Signature, {"algorithm": "sha256"}, "algorithm must be an object"),
    (Signature, {"algorithm": Hmac}, "algorithm must be an object"),
    (Hmac, {"digest": "sha3"}, "the digest 'sha3' is not one of sha1"),
]


def test_an_invalid_scheme_is_refused(subtests: pytest.Subtests) -> None:
    for kind, options, message in INVALID_SCHEMES:
        with subtests.test(kind=kind, options=options):
            at = {"at": "header:X"} if kind is Signature else {}
            with pytest.raises(ConfigurationError, match=message):
                kind(**at, **options)


def test_a_secret_that_is_neither_str_nor_bytes_is_refused() -> None:
    number: Any = 12345678
    with pytest.raises(ConfigurationError, match="secret 1 is neither str nor bytes"):
        make_source("shop", preset="hmac", secrets=[number])


def test_a_secret_from_a_variable_that_is_not_set_is_refused() -> None:
    unset: Any = None
    advice = r"is its environment variable set\?"
    with pytest.raises(ConfigurationError, match=f"secret 1 is None; {advice}"):
        make_source("shop", preset="hmac", secrets=[unset])
    with pytest.raises(ConfigurationError, match=f"secret 1 is empty; {advice}"):
        make_source("shop", preset="hmac", secrets=[""])


def test_a_secret_with_a_space_or_quotes_around_it_is_refused(subtests: pytest.Subtests) -> None:
    for secret in (" the-secret", "the-secret\t", '"the-secret"', "'the-secret"):
        with subtests.test(secret=secret):
            (fault,) = faults_of(secrets=[SECRET, secret])
            assert fault == (
                "source 'shop': secret 2 has a space or quotes at its start or end; remove them, "
                "or pass the secret as bytes if they belong to it"
            )
            shop(secrets=[secret.encode()])


@pytest.mark.parametrize("secret", ["sk_live_0123456789abcdef", b"rk_test_0123456789abcdef"])
def test_an_api_key_is_not_the_secret_of_a_webhook(secret: str | bytes) -> None:
    fault = "secret 1 is an API key; the signing secret of a webhook begins with whsec_"
    with pytest.raises(ConfigurationError, match=f"^source 'stripe': {fault}$"):
        make_source("stripe", secrets=[secret])
    shop(secrets=[secret])


def test_a_json_path_is_no_selector() -> None:
    options: dict[str, Any] = {"id": "json:$.order.id", "type": ["header:X-Type|json:$.type"]}
    assert faults_of(secrets=[SECRET], reference="json:$ref", **options) == [
        "source 'shop': id 'json:$.order.id': write json:order.id, without $",
        "source 'shop': type 'json:$.type': write json:type, without $",
    ]
