"""No command prints a control character that a sender, a server or a file contains."""

import ast
import asyncio
import hashlib
import hmac
import json
import os
import pty
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.processes import COMMAND, eventually
from tests.factories import make_store
from tests.integration.commands import environment, post, run, serve, started

# Terminal codes, a forged line, C1 controls, DEL, and invisible characters of Unicode.
HOSTILE = "x\x1b[31m\x1b]0;t\x07\r\nonceward: all is well\x9b2J\x7f\u202e\u200b\U000e0041y"
ESCAPED = r"x\x1b[31m\x1b]0;t\x07\r\nonceward: all is well\x9b2J\x7f\u202e\u200b\U000e0041y"
APP = """
from onceward import Inbox, PermanentError

inbox = Inbox()
inbox.source("notion", verify_token="a-token-of-our-own")
inbox.source("partner", preset="hmac", secrets=["partner-secret"])

@inbox.on("*")
async def refuse(event):
    raise PermanentError(f"{event.id} {event.type}")
"""
CLI = Path(__file__).parents[2] / "src" / "onceward" / "cli"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def assert_clean(text: str) -> None:
    assert text
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    assert not [line for line in text.split("\n") if line.startswith("onceward: all is well")]


def test_an_event_with_a_hostile_id_type_and_error(folder: Path) -> None:
    for form in ("text", "json"):
        with started(*serve("app.py", "--dev", "--log", form), cwd=folder) as service:
            assert post(service.address, HOSTILE + form, HOSTILE).status_code == 202
            eventually(lambda: "failed for good" in service.log, "the job has failed")
            assert_clean(service.log)


def test_secrets(folder: Path) -> None:
    database = folder / "onceward.db"

    async def provision() -> None:
        store = make_store(f"sqlite:///{database}")
        await store.open(serving=True)
        await store.register(["notion"], [], [])
        await store.store_secret("notion", HOSTILE.encode("latin-1", "replace"))
        await store.close()

    asyncio.run(provision())
    shown = run("secrets", "app.py", cwd=folder).stdout
    assert_clean(shown)
    assert r"x\x1b[31m\x1b]0;t\x07\r\nonceward" in shown
    line = run("secrets", "app.py", "--json", cwd=folder).stdout
    assert_clean(line)
    assert json.loads(line)["secret"].startswith("x\x1b[31m")


def test_verify_of_a_signed_event(folder: Path) -> None:
    body = json.dumps({"type": HOSTILE})
    head = f"POST /webhooks/partner HTTP/1.1\nx-event-id: evt_1\nx-signature: {digest(body)}\n"
    (folder / "captured").write_text(f"{head}\n{body}")
    verify = ("verify", "partner", "captured", "--app", "app.py")
    text, line = (run(*verify, *more, cwd=folder).stdout for more in ([], ["--json"]))
    for shown in (text, line):
        assert_clean(shown)
    assert r"evt_1, x\x1b[31m" in text
    details = [check["detail"] for check in json.loads(line)["checks"]]
    assert [detail for detail in details if HOSTILE in detail]


def digest(body: str) -> str:
    return hmac.new(b"partner-secret", body.encode(), hashlib.sha256).hexdigest()


def test_verify_of_a_faulty_request(folder: Path) -> None:
    value = HOSTILE.replace("\r\n", " ")
    captured = f"POST /webhooks/partner HTTP/1.1\r\nx-signature: {value}\r\nx-event-id: {value}\r\n"
    (folder / "captured").write_bytes(captured.encode() + b"content-length: 2\r\n\r\n{}")
    for more in ([], ["--json"]):
        done = run("verify", "partner", "captured", "--app", "app.py", *more, cwd=folder)
        assert done.returncode == 1
        assert_clean(done.stdout)
    done = run("verify", HOSTILE, "captured", "--app", "app.py", cwd=folder)
    assert done.returncode == 2
    assert_clean(done.stderr)
    (folder / "captured").write_text(f"POST / HTTP/1.1\n{HOSTILE.partition(':')[0]}")
    done = run("verify", "partner", "captured", "--app", "app.py", cwd=folder)
    assert_clean(done.stderr)


@pytest.fixture
def hostile_server() -> Iterator[str]:
    """Run a server whose responses contain control characters."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = HOSTILE.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_send(folder: Path, hostile_server: str) -> None:
    send = ("send", "partner", "--app", "app.py")
    text = run(*send, "--to", hostile_server, cwd=folder).stdout
    assert text == f"200 {ESCAPED}\n"
    line = run(*send, "--to", hostile_server, "--json", cwd=folder).stdout
    assert_clean(line)
    assert json.loads(line) == {"status": 200, "body": HOSTILE}
    line = run(*send, "--id", HOSTILE, "--dry-run", "--json", cwd=folder).stdout
    assert_clean(line)


def test_a_printed_request_is_exact_in_a_pipe_and_escaped_on_a_terminal(folder: Path) -> None:
    (folder / "body").write_text(HOSTILE)
    send = ("send", "partner", "--app", "app.py", "--dry-run", "--data", "body")
    with (folder / "out").open("wb") as out:
        subprocess.run([COMMAND, *send], cwd=folder, env=environment(), stdout=out, check=True)
    assert (folder / "out").read_bytes().endswith(b"\r\n\r\n" + HOSTILE.encode())
    ours, terminal = pty.openpty()
    subprocess.run([COMMAND, *send], cwd=folder, env=environment(), stdout=terminal, check=True)
    os.close(terminal)
    shown = os.read(ours, 65_536).decode().replace("\r\n", "\n")
    os.close(ours)
    assert_clean(shown.replace("\nonceward: all is well", "\n"))  # the body has a line break
    assert r"\x1b[31m" in shown


def test_errors_of_the_app(folder: Path) -> None:
    (folder / "broken.py").write_text(
        f"def f():\n    raise ValueError({HOSTILE!r})\nf()  # \x1b[31m"
    )
    done = run("serve", "broken.py", cwd=folder)
    assert done.returncode == 2
    assert_clean(done.stderr)
    assert "broken.py" in done.stderr
    done = run("serve", f"{HOSTILE}.py", cwd=folder)
    assert done.returncode == 2
    assert_clean(done.stderr)


def test_the_banner(folder: Path) -> None:
    (folder / "odd.py").write_text(
        f"from onceward import Inbox\ninbox = Inbox()\n"
        f"@inbox.on({HOSTILE!r}, name={'handler' + chr(0x9B)!r})\nasync def f(event): ..."
    )
    for more in ([], ["--json"]):
        done = run("migrate", "odd.py", *more, cwd=folder)
        assert_clean(done.stdout or done.stderr)
    process = subprocess.Popen(
        [COMMAND, *map(str, serve("odd.py", "--dev"))],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        banner = ""
        for line in process.stdout:
            banner += line
            if "Press Ctrl-C" in line:
                break
        process.kill()
    assert_clean(banner)


def test_only_modules_that_escape_print() -> None:
    """A command that prints by itself would evade the escaping."""
    found = []
    for path in sorted(CLI.glob("*.py")):
        if path.name in ("_console.py", "_options.py", "_logging.py"):
            continue
        for node in ast.walk(ast.parse(path.read_bytes(), path)):
            names = {"echo", "secho", "print", "Console", "stdout", "stderr"}
            if isinstance(node, ast.Name) and node.id in names:
                found.append(f"{path.name}:{node.lineno}: {node.id}")
            elif isinstance(node, ast.Attribute) and node.attr in names - {"print"}:
                found.append(f"{path.name}:{node.lineno}: {node.attr}")
    assert found == []
