"""`onceward send`, `verify` and `secrets`."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from onceward.sources.presets import PRESETS
from tests.integration.commands import Started, run, serve, started
from tests.keys import pair_for

APP = """
from onceward import Inbox

inbox = Inbox()
inbox.source("stripe", secrets=["whsec_the_secret_of_stripe"])
inbox.source("shop", preset="shopify", secrets=["the-secret-of-the-shop"])
inbox.source("notion", verify_token="a-token-of-our-own")
inbox.source("open", preset="hmac", unsigned=True)
inbox.source("discord", secrets=["5f1c" * 16])
inbox.source(
    "warehouse",
    preset="hmac",
    secrets=["a-secret-of-ours"],
    id="json:message.id",
    type="header:X-Topic",
)
"""
SECRET = "whsec_the_secret_of_stripe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture(scope="module")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the service."""
    path = tmp_path_factory.mktemp("served")
    (path / "app.py").write_text(APP)
    return path


@pytest.fixture(scope="module")
def service(served_folder: Path) -> Iterator[Started]:
    """Run the app for the whole file; each test uses its own sources."""
    with started(*serve("app.py", "--dev"), cwd=served_folder) as running:
        yield running


def test_send_posts_an_event_that_the_source_accepts(folder: Path, service: Started) -> None:
    for source in ("stripe", "shop"):
        to = service.address
        sent = run("send", source, "--app", "app.py", "--to", to, "--times", "2", cwd=folder)
        assert sent.returncode == 0, sent.stderr
        first, second = sent.stdout.splitlines()
        assert '"duplicate":false' in first
        assert '"duplicate":true' in second
    to = f"{service.address}/webhooks/stripe"
    chosen = run(
        *("send", "stripe", "--secret", SECRET, "--to", to, "--json"),
        *("--id", "evt_mine", "--type", "order.paid"),
        cwd=folder,
    )
    assert json.loads(json.loads(chosen.stdout)["body"])["event_id"] == "evt_mine"
    wrong = run("send", "stripe", "--to", to, cwd=folder, ONCEWARD_SECRET="whsec_another")
    assert (wrong.returncode, wrong.stdout[:3]) == (1, "401")
    assert wrong.stderr == (
        "The inbox's log, and the list `rejections` of its admin API, name the reason.\n"
    )
    plain = f"{service.address.replace('http:', 'https:')}/webhooks/stripe"
    refused = run("send", "stripe", "--secret", SECRET, "--to", plain, cwd=folder)
    host = service.address.removeprefix("http://")
    assert refused.stderr == (
        f"onceward: the server at {host} speaks plain HTTP; write --to {service.address}\n"
    )
    lost = run("send", "stripe", "--secret", SECRET, "--to", f"{to}s", cwd=folder)
    assert (lost.stdout[:3], lost.stderr) == ("404", "")
    (folder / "body.json").write_text('{"id":"evt_own","type":"x"}')
    own = run("send", "stripe", "--secret", SECRET, "--to", to, "--data", "body.json", cwd=folder)
    assert "evt_own" in own.stdout


def test_verify_accepts_the_request_that_send_prints(
    folder: Path, subtests: pytest.Subtests
) -> None:
    for name in PRESETS:
        with subtests.test(name):
            pair = pair_for(name, PRESETS[name].scheme())
            (folder / "private").write_text(pair.private)
            (folder / "public").write_text(pair.public)
            url = "https://shop.example/webhooks/it"
            sent = run(
                "send", name, "--secret-file", "private", "--url", url, "--dry-run", cwd=folder
            )
            assert sent.returncode == 0, sent.stderr
            (folder / "request").write_text(sent.stdout, newline="")
            verified = run(
                "verify", name, "request", "--secret-file", "public", "--json", cwd=folder
            )
            explanation = json.loads(verified.stdout)
            assert (verified.returncode, explanation["verified"]) == (0, True), explanation
            assert {check["state"] for check in explanation["checks"]} == {"passed"}


def test_verify_needs_the_url_of_a_sender_that_signs_it(folder: Path) -> None:
    (folder / "body").write_bytes(b"{}")
    arguments = ("verify", "square", "body", "--secret", SECRET, "-H", "x-signature: 1")
    refused = run(*arguments, cwd=folder)
    assert "set --url to the public URL, which the provider signs" in refused.stderr
    explained = run(*arguments, "--url", "https://shop.example/webhooks/square", cwd=folder)
    assert "signature is present" in explained.stdout


def test_a_json_body_of_twilio_is_verified_as_captured(folder: Path) -> None:
    (folder / "body").write_bytes(b'{"type":"a"}')
    url = "https://shop.example/webhooks/twilio?a=1"
    arguments = ("--secret", SECRET, "--url", url, "--data", "body", "--dry-run")
    sent = run("send", "twilio", *arguments, cwd=folder)
    (folder / "request").write_text(sent.stdout, newline="")
    verified = run("verify", "twilio", "request", "--secret", SECRET, cwd=folder)
    assert verified.returncode == 0, verified.stdout


def test_verify_shows_the_check_that_failed(folder: Path) -> None:
    sent = run("send", "stripe", "--secret", SECRET, "--dry-run", cwd=folder).stdout
    (folder / "request").write_text(sent.replace("invoice.paid", "invoice.lost"), newline="")
    verified = run("verify", "stripe", "request", "--app", "app.py", cwd=folder)
    assert verified.returncode == 1
    assert "✗  signature matches a secret" in verified.stdout
    assert "The request does not verify." in verified.stdout
    late = run(
        *("verify", "stripe", "request", "--secret", SECRET, "--at", "2020-01-01T00:00:00Z"),
        cwd=folder,
    )
    assert "✗  timestamp is within the tolerance" in late.stdout


def test_verify_names_the_source_of_the_app_to_which_a_request_belongs(folder: Path) -> None:
    sent = run("send", "shop", "--app", "app.py", "--dry-run", cwd=folder).stdout
    (folder / "request").write_text(sent, newline="")
    hint = "→ The request verifies as source 'shop' of this app: send it to /webhooks/shop."
    for secret in ([], ["--secret", SECRET]):
        verified = run("verify", "stripe", "request", "--app", "app.py", *secret, cwd=folder)
        assert verified.returncode == 1
        assert hint in " ".join(verified.stdout.split())


def test_verify_ignores_a_line_break_after_the_body(folder: Path) -> None:
    sent = run("send", "stripe", "--secret", SECRET, "--dry-run", cwd=folder).stdout
    (folder / "request").write_text(sent + "\n", newline="")
    verified = run("verify", "stripe", "request", "--secret", SECRET, cwd=folder)
    assert verified.returncode == 0
    assert "Ignored a line break after the body." in verified.stdout


def test_verify_notes_a_truncated_or_chunked_body(folder: Path) -> None:
    sent = run("send", "stripe", "--secret", SECRET, "--dry-run", cwd=folder).stdout
    (folder / "request").write_text(sent[:-31], newline="")
    truncated = run("verify", "stripe", "request", "--secret", SECRET, "--json", cwd=folder)
    assert ": it is truncated." in json.loads(truncated.stdout)["hints"][0]
    head, _, body = sent.partition("\n\n")
    others = [line for line in head.splitlines() if not line.startswith("content-length")]
    head = "\r\n".join([*others, "transfer-encoding: chunked"])
    chunks = f"{10:x}\r\n{body[:10]}\r\n{len(body) - 10:x}\r\n{body[10:]}\r\n0\r\n\r\n"
    (folder / "request").write_text(f"{head}\r\n\r\n{chunks}", newline="")
    chunked = run("verify", "stripe", "request", "--secret", SECRET, cwd=folder)
    assert chunked.returncode == 0, chunked.stdout
    assert "Decoded the chunked body." in chunked.stdout


def test_verify_explains_a_hostile_request(folder: Path) -> None:
    request = f"POST / HTTP/1.1\nContent-Length: {'9' * 5000}\n\n{{}}"
    (folder / "request").write_text(request, newline="")
    header = b"x: \xff".decode(errors="surrogateescape")
    for arguments in (("request",), ("request", "-H", header)):
        explained = run("verify", "github", *arguments, "--secret", SECRET, cwd=folder)
        assert "The request does not verify." in explained.stdout, explained.stderr


def test_send_places_id_and_type_where_a_custom_source_reads_them(
    folder: Path, service: Started
) -> None:
    for source, event_type in (("warehouse", "example"), ("open", "order.created")):
        to = f"{service.address}/webhooks/{source}"
        sent = run("send", source, "--app", "app.py", "--to", to, cwd=folder)
        assert sent.returncode == 0, sent.stdout + sent.stderr
        events = httpx.get(f"{service.address}/admin/events", params={"source": source})
        assert [item["event_type"] for item in events.json()["items"]] == [event_type]


def test_verify_takes_a_body_with_headers(folder: Path) -> None:
    sent = json.loads(
        run("send", "stripe", "--secret", SECRET, "--dry-run", "--json", cwd=folder).stdout
    )
    (folder / "body").write_text(sent["body"])
    headers = [part for pair in sent["headers"].items() for part in ("-H", ": ".join(pair))]
    verified = run("verify", "stripe", "body", "--secret", SECRET, *headers, cwd=folder)
    assert verified.returncode == 0, verified.stdout


LACKING = [
    ("", "REQUEST is empty"),
    ("\n\r\n", "REQUEST is empty"),
    ('POST / HTTP/1.1\nhost: x\n{"a": 1}', "REQUEST has no empty line between headers and"),
    ("POST / HTTP/1.1\r\nhost: x\r\nplain", "REQUEST has no empty line between headers and"),
]


def test_verify_says_what_a_captured_request_lacks(folder: Path, subtests: pytest.Subtests) -> None:
    for request_text, message in LACKING:
        with subtests.test(repr(request_text)):
            (folder / "request").write_text(request_text, newline="")
            done = run("verify", "stripe", "request", "--secret", SECRET, cwd=folder)
            assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_verify_accepts_a_request_that_ends_with_its_headers(folder: Path) -> None:
    (folder / "request").write_text("POST / HTTP/1.1\nhost: x\n")
    done = run("verify", "stripe", "request", "--secret", SECRET, cwd=folder)
    assert done.returncode == 1
    assert "✗" in done.stdout


class NotFound(BaseHTTPRequestHandler):
    """An app without an inbox at this path."""

    status = 404

    def do_POST(self) -> None:
        """Answer as FastAPI does."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b'{"detail":"Not Found"}')

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


class Redirect(NotFound):
    """An app with an inbox below this path."""

    status = 307


@pytest.mark.parametrize("handler", [NotFound, Redirect])
def test_send_names_the_path_of_the_source(folder: Path, handler: type[NotFound]) -> None:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/hooks"
        sent = run("send", "stripe", "--secret", SECRET, "--to", url, cwd=folder)
    assert sent.returncode == 1
    assert sent.stderr == f"This answer is not Onceward's: write --to {url}/webhooks/stripe\n"


def test_send_suggests_the_prefix_of_a_mount(folder: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), NotFound) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        sent = run("send", "stripe", "--secret", SECRET, "--to", f"http://{host}", cwd=folder)
    assert sent.returncode == 1
    assert sent.stderr == (
        "This answer is not Onceward's: if the inbox is mounted, add its prefix: "
        f"--to http://{host}/PREFIX/webhooks/stripe\n"
    )


INVALID = [
    (["sources", "strype"], "there is no preset 'strype'; did you mean 'stripe'?"),
    (["send", "stipe", "--app", "app.py"], "app.py has no source 'stipe'; did you mean 'str"),
    (["send", "strpe"], "there is no preset 'strpe'; did you mean 'stripe'?"),
    (["send", "shop"], "lists all presets; for a source of your app, add --app app.py"),
    (["verify", "shop"], "lists all presets; for a source of your app, add --app app.py"),
    (["send", "stripe"], "a secret is required: set --secret, --secret-file or --app"),
    (
        ["send", "missing", "--app", "app.py"],
        "app.py has no source 'missing'; its sources are discord",
    ),
    (["send", "discord", "--app", "app.py"], "the app has only the public key"),
    (["send", "notion", "--app", "app.py"], "`onceward secrets` shows provisioned secrets"),
    (["send", "stripe", "--secret", SECRET, "--to", "http://["], "http://[ is not a URL"),
    (["send", "stripe", "--secret", SECRET, "--url", "http://x"], "--to says where to post"),
    (["send", "stripe", "--secret", SECRET, "--secret-file", "."], "is a directory"),
    (["send", "github", "--secret", SECRET, "--id", "a\nb", "--to", "http://localhost:9/"], ""),
    (
        ["send", "stripe", "--secret", SECRET, "--to", "ftp://x"],
        "ftp://x/webhooks/stripe is not an http or https URL",
    ),
    (
        ["send", "stripe", "--secret", SECRET, "--to", "http://127.0.0.1:9/"],
        "cannot reach http://127.0.0.1:9",
    ),
    (["send", "sendgrid", "--secret", "x" * 20], "is not a P-256 private key"),
    (["verify", "stripe", "nothing", "--secret", SECRET], "no such file: nothing"),
    (["verify", "stripe", "app.py", "--secret", SECRET], "REQUEST must begin with a line"),
    (["verify", "stripe", "app.py", "--secret", SECRET, "-H", "x"], "'x' is not a header"),
    (
        ["verify", "stripe", "app.py", "--secret", SECRET, "-H", "a: b", "--at", "noon"],
        "--at 'noon' is not a time",
    ),
]


def test_an_invalid_command_exits_with_the_reason(folder: Path, subtests: pytest.Subtests) -> None:
    for arguments, message in INVALID:
        with subtests.test(" ".join(arguments)):
            done = run(*arguments, cwd=folder)
            assert done.returncode == 2
            assert message in done.stderr
            assert "Traceback" not in done.stderr


def test_secrets_shows_and_deletes_provisioned_secrets(
    served_folder: Path, service: Started
) -> None:
    folder = served_folder
    missing = run("secrets", "app.py", "--database", "sqlite:///other.db", cwd=folder)
    assert missing.returncode == 2
    url = f"{service.address}/webhooks/notion?verify_token=a-token-of-our-own"
    token = {"verification_token": "secret_of_notion"}
    assert httpx.post(url, json=token).status_code == 200
    shown = run("secrets", "app.py", cwd=folder)
    assert "secret_of_notion" in shown.stdout
    line = json.loads(run("secrets", "app.py", "--json", cwd=folder).stdout)
    assert (line["source"], line["secret"]) == ("notion", "secret_of_notion")
    assert "secret_of_notion" not in service.log
    deleted = run("secrets", "app.py", "--forget", "notion", cwd=folder)
    assert deleted.stdout == "No provider has sent a secret.\n"
    assert run("secrets", "app.py", "--forget", "notion", cwd=folder).returncode == 2
