"""Redacted texts show no secrets, and printable values have no control characters."""

from functools import partial

import psycopg
import pytest

from onceward.runtime.redact import as_sentence, printable, redact, redact_url
from onceward.store.postgres.connections import translate_error
from tests.cpu_time import within

MASK = "[redacted]"


SECRET_TEXTS: list[str] = [
    "cannot reach postgresql://«app:p4ss»@db.example:5432/shop",
    "cannot reach postgresql://«app:p@ss/w0rd»@db.example/shop",
    "cannot reach redis://«:hunter2»@cache",
    "sent Authorization: Bearer «abc.def-123» to it",
    "sent Authorization: Basic «YWxhZGRpbjpvcGVuc2VzYW1l»",
    'got {"password": "«hunter2»"}',
    "host=db password=«hunter2» user=app",
    "POST /pay?api_key=«abc123»&x=1",
    "login with password: «hunter2» failed",
    "login with password = «hunter2» failed",
    'got {"password": "«correct horse battery»"}',
    "got {'db_password': '«correct horse battery»', 'user': 'app'}",
    r'got {\"password\": \"«correct horse\»", \"user\": 5}',
    "sent X-Api-Key: «abc» to it",
    "sent x-auth-token: «abc» to it",
    "sent [(b'x-api-key', b'«abc»')]",
    "grant refresh_token=«abc» is over",
    "grant refresh_token: «abc» is over",
    "grant refreshToken: «abc» is over",
    'grant {"refresh_token": "«abc»"} is over',
    "token: «abc123» is over",
    "client_secret=«abc»",
    "AccountKey=«abc==»;EndpointSuffix=example",
    "pin=«1234»",
    "Cookie: «session=abc; theme=dark»",
    "Set-Cookie: «session=abc; Path=/»",
    "got {'Cookie': '«session=abc; theme=dark»'}",
    "Authorization: «Token abc»",
    "Authorization: «Digest username=a, response=b»",
    "got {'Authorization': '«ApiKey abc»'}",
    "key «SG.abcdefghijkl.mnopqrstuvwx» was refused",
    "key «AIzaSyA1234567890abcdefg» was refused",
    "key «ya29.a0AfH6SMBx» was refused",
    "key «shpat_0123456789abcdef» was refused",
    "key «npm_0123456789ABCDEF» was refused",
    "key «hf_ABCDEFGHIJKLMNOP» was refused",
    "key «glsa_0123456789ABCDEF» was refused",
    "key «rzp_live_abcdef» was refused",
    "key «xapp-1-A1-22-ab» was refused",
    "key «hvs.CAESIJlWh» was refused",
    "bot «12345678:AAabcdefghijklmnopqrstu» was refused",
    "key «sk_live_51HabcDEF» was refused",
    "key «rk_test_51HabcDEF» was refused",
    "key «whsec_MfKQ9r8GKYqr+/=» was refused",
    "key «ghp_16C7e42F292c6912E7710c838347Ae178B4a» was refused",
    "key «github_pat_11ABCDEFG0abcdef» was refused",
    "key «xoxb-123-456-abcDEF» was refused",
    "key «AKIAIOSFODNN7EXAMPLE» was refused",
    "key «sk-proj-abcdefghijklmnop» was refused",
    "token «eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP-mB92K27» expired",
    "no mailbox «jane.doe+news@mail.example.co.uk» here",
    "no mailbox «jörg@bücher.example» here",
    "card «4242424242424242» declined",
    "card «4242 4242 4242 4242» declined",
    "card «4242-4242-4242-4242» declined",
    "account «123456789012» closed",
    "digest «9f86d081884c7d659a2feaa0c55ad015» differs",
    "blob «dGhpcyBpcyBhIHZlcnkgbG9uZyBzZWNyZXQ+Lw==» differs",
    "«-----BEGIN PRIVATE KEY-----\nMIIE\nvQIB\n»-----END PRIVATE KEY-----",
]


def test_text_that_looks_like_a_secret_is_masked(subtests: pytest.Subtests) -> None:
    for text in SECRET_TEXTS:
        with subtests.test(text=text):
            before, _, rest = text.partition("«")
            secret, _, after = rest.partition("»")
            assert redact(f"{before}{secret}{after}") == f"{before}{MASK}{after}"


HELPFUL_TEXTS: list[str] = [
    "KeyError: 'customer'",
    'violates unique constraint "subscription_payment_customer_reference_key"',
    "delivery 72d3162e-cc78-11e3-81ab-4c9367dc0958 has no amount",
    "took 2026-11-15 21:09:33.123456+00:00",
    "cannot open /srv/inbox/src/onceward/sources/presets",
    "amount is 12345678901, which is too much",
    "unexpected token: comma",
    "the secret: pass it in secrets=",
    "spinning: 5, and the pinned: 6",
    "secret_handshake_timeout is too short",
    "no package pypi-package-name-of-ours",
    "a basic_session: 5",
    "Größe 5 µm — ok",
    "https://api.example/v1/orders/42 answered 500",
]


def test_text_that_helps_an_operator_is_not_masked(subtests: pytest.Subtests) -> None:
    for text in HELPFUL_TEXTS:
        with subtests.test(text=text):
            assert redact(text) == text


def test_known_secrets_are_masked_everywhere() -> None:
    text = redact("the key a-b-c-d, also xa-b-c-dx and é-é-é", ["a-b-c-d", "é-é-é".encode()])
    assert text == f"the key {MASK}, also x{MASK}x and {MASK}"


def test_a_secret_that_contains_another_is_masked_as_a_whole() -> None:
    assert redact("the-secret-and-more", ["the-secret", "the-secret-and-more"]) == MASK


def test_an_empty_secret_masks_nothing() -> None:
    assert redact("as it is", ["", b""]) == "as it is"


HOSTILE_TEXTS: list[tuple[str, str]] = [
    ("a\nb\r\tc", "a\\nb\\r\\tc"),
    ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
    ("\x00\x7f\x85\x9b", "\\x00\\x7f\\x85\\x9b"),
    ("\u202eexe.txt\u2066\u200f", "\\u202eexe.txt\\u2066\\u200f"),
    ("a\u2028b\ufeff", "a\\u2028b\\ufeff"),
    ("\ud800", "\\ud800"),
    ("é ☕ \U0001f600", "é ☕ \U0001f600"),
]


def test_control_characters_are_escaped(subtests: pytest.Subtests) -> None:
    for hostile, escaped in HOSTILE_TEXTS:
        with subtests.test(hostile=hostile):
            assert redact(hostile) == escaped
            assert printable(hostile) == escaped


def test_redacted_text_can_be_encoded_as_utf8() -> None:
    everything = "".join(map(chr, range(0x3000))) + "\ud800\udfff"
    for start in range(0, len(everything), 100):
        assert redact(everything[start : start + 100]).encode()


@pytest.mark.parametrize("length", [499, 500])
def test_a_text_within_the_limit_is_not_cut(length: int) -> None:
    text = "a " * 250
    assert redact(text[:length]) == text[:length]
    assert printable(text[:length]) == text[:length]


def test_a_text_beyond_the_limit_is_cut() -> None:
    text = "a " * 300
    assert redact(text) == text[:499] + "…"
    assert printable(text) == text[:499] + "…"
    assert printable(text.encode()) == text[:499] + "…"


def test_a_secret_across_the_limit_is_masked_before_the_cut() -> None:
    text = redact("a " * 245 + "jane.doe.the.second@mail.example")
    assert text == "a " * 245 + MASK


def test_text_after_a_secret_beyond_the_search_window_is_dropped() -> None:
    assert redact("it is " + "A1" * 10_000) == f"it is {MASK}…"


def test_bytes_that_are_not_utf8_become_printable() -> None:
    assert printable(b"caf\xc3\xa9 \xff\n") == "café \\xff\\n"


UNITS: list[str] = [
    "a",
    "A1",
    "1 ",
    "1-",
    "://",
    "://a@",
    "a@",
    "a@b.",
    "a.",
    "eyJ.",
    "eyJ",
    "\n",
    " ",
    "�",
    "-----BEGIN ",
    "bearer ",
    "password=",
    "a" * 31 + " ",
    "1-" * 11 + "x",
    "A" * 5000 + " ",
    "sk_live_",
    "ab-",
    "+/",
    "basic  ",
    "secret='",
    "token: a",
    "password='a",
    "Cookie: ",
    "hf_",
    "sq0aaa-",
    "token",
    "\\",
    "password  = ",
]


def test_a_megabyte_of_any_text_is_redacted_quickly(subtests: pytest.Subtests) -> None:
    for unit in UNITS:
        with subtests.test(unit=unit[:32]):
            text = unit * (1_000_000 // len(unit))
            assert len(within(0.2, partial(redact, text, ["not in there"]))) <= 500
            assert len(within(0.2, partial(printable, text))) <= 500


def test_a_sentence_keeps_its_own_stop() -> None:
    assert as_sentence("Is the server running?") == "Is the server running?"
    assert as_sentence("connection refused") == "connection refused."


def test_the_error_of_a_driver_is_one_line() -> None:
    error = psycopg.OperationalError("connection refused\n\tIs the server running?\n")
    assert str(translate_error(error)) == "connection refused. Is the server running?"


DATABASE_URLS: list[tuple[str, str]] = [
    ("postgresql://ann:hunter2@db:5432/app?sslmode=require", "postgresql://ann:…@db:5432/app"),
    ("postgresql://ann:hun#ter2@db/app", "postgresql://ann:…@db/app"),
    ("postgresql://ann:hun?ter2@db/app", "postgresql://ann:…@db/app"),
    ("postgresql://ann:hun[ter2@db/app", "postgresql://ann:…@db/app"),
    ("postgresql://ann:hun:ter2@db/app", "postgresql://ann:…@db/app"),
    ("postgresql://ann@db/app", "postgresql://ann@db/app"),
    ("postgresql://[::1]:5432/app", "postgresql://[::1]:5432/app"),
    ("postgresql:///app?host=/run&password=hun@ter2", "postgresql:///app"),
    ("sqlite:///a@b#c.db", "sqlite:///a@b#c.db"),
]


def test_a_database_url_is_shown_without_its_password(subtests: pytest.Subtests) -> None:
    for url, shown in DATABASE_URLS:
        with subtests.test(url=url):
            assert redact_url(url) == shown
