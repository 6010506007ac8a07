"""``onceward verify``: why a captured request does or does not verify."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceward.cli._options import json_flag, load_inbox, print_json, report_errors
from onceward.cli._sender import resolve_sender, trying
from onceward.errors import ConfigurationError
from onceward.runtime.clock import SystemClock
from onceward.sources.configure import make_source
from onceward.sources.diagnose import Diagnosis, diagnose
from onceward.sources.request import Headers, Request
from onceward.sources.source import Source

_FIRST_LINE: Final = re.compile(rb"([A-Z]+) (\S+) HTTP/[0-9.]+")
_MARKS: Final = {"passed": ("✓", "green"), "failed": ("✗", "bold red"), "not reached": ("·", "dim")}


@click.command()
@click.argument("source")
@click.argument("request_file", metavar="[REQUEST]", default="-")
@trying
@click.option("--header", "-H", "headers", multiple=True, help="'Name: value'; REQUEST is a body.")
@click.option("--method", default="POST", show_default=True, help="With --header: the method.")
@click.option("--at", metavar="TIME", help="When it came, as 2026-11-16T09:00:00Z; else now.")
@json_flag
def verify(
    source: str,
    request_file: str,
    headers: Sequence[str],
    method: str,
    at: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Read a captured request and explain, check by check, why it does or does not verify.

    REQUEST is a file with the request as it went over the wire: a first line, headers, an empty
    line, the body. With --header it is the body alone. Without it, standard input is read.
    """
    with report_errors():
        checked = _source(source, **given)
        content = _read(request_file)
        request, note = (
            (_of_headers(headers, content, method), "") if headers else parse_request(content)
        )
        request.url = _public_url(checked, given["url"], request.url)
        now = SystemClock().now() if at is None else _time(at)
        found = diagnose(checked, request, now)
        if as_json:
            hints = [note, *found.hints] if note else found.hints
            print_json({"verified": found.verified, "checks": found.checks, "hints": hints})
        else:
            _show(found, note)
    sys.exit(0 if found.verified else 1)


def _public_url(source: Source, given: str | None, captured: str) -> str:
    """The URL as the sender has it: what is configured or given, with the request's own query."""
    if given is not None:
        return given
    return captured if source.url is None else source.public_url(captured.partition("?")[2])


def _source(name: str, **given: Any) -> Source:
    """The source as it is configured, else one made of what is given."""
    if given["app"] is not None and not (given["secret"] or given["secret_file"]):
        configured = load_inbox(given["app"]).sources
        if name in configured and given["scheme_name"] is None:
            return configured[name]
    found = resolve_sender(name, **given)
    _ = found.secret  # there must be one
    return make_source("source", preset=found.preset, scheme=found.scheme, secrets=found.secrets)


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    if not Path(path).is_file():
        raise ConfigurationError(f"There is no file {path}.")
    return Path(path).read_bytes()


def _time(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--at {text!r} is not a time such as 2026-11-16T09:00:00Z"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _of_headers(lines: Sequence[str], body: bytes, method: str) -> Request:
    return Request(Headers([_header(line.encode()) for line in lines]), body, method=method)


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name.strip():
        shown = line[:40].decode(errors="replace")
        raise ConfigurationError(f"{shown!r} is not a header: write Name: value")
    return name.strip().lower(), value.strip()


def parse_request(content: bytes) -> tuple[Request, str]:
    """Read a request as it went over the wire, and what had to be mended. Raises."""
    content = content.lstrip(b"\r\n")
    first_break = content.find(b"\n")
    line_break = b"\r\n" if content[max(first_break - 1, 0) : first_break] == b"\r" else b"\n"
    head, _, body = content.partition(line_break * 2)
    first, *lines = head.split(line_break)
    found = _FIRST_LINE.fullmatch(first)
    if found is None:
        message = "REQUEST does not begin with a line such as POST /webhooks/stripe HTTP/1.1"
        raise ConfigurationError(f"{message}; give --header where it is a body")
    headers = Headers([_header(line) for line in lines])
    host = (headers.joined(b"host") or b"").decode("latin-1")
    method, target = found[1].decode(), found[2].decode("latin-1")
    url = target if "://" in target else f"https://{host}{target}"
    body, note = _cut(body, headers)
    return Request(headers, body, method=method, url=url), note


def _cut(body: bytes, headers: Headers) -> tuple[bytes, str]:
    """A body without the line break that an editor put behind it."""
    length = headers.joined(b"content-length") or b""
    if b"chunked" in (headers.joined(b"transfer-encoding") or b"").lower():
        return _unchunked(body)
    if not length.isdigit() or int(length) == len(body):
        return body, ""
    said = int(length)
    if said < len(body) and not body[said:].strip(b"\r\n"):
        return body[:said], "A line break behind the body was passed over."
    cut = ": it is cut off" if len(body) < said else ""
    return body, f"The body has {len(body)} bytes, and its Content-Length says {said}{cut}."


def _unchunked(body: bytes) -> tuple[bytes, str]:
    """The body of a request that came in chunks, whose sizes stand between them."""
    parts, rest = [], body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        try:
            length = int(size.partition(b";")[0], 16)
        except ValueError:
            return body, "It says that it is chunked, and is not: it was taken as it is."
        if not length:
            break
        parts.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(parts), "The chunks of the body were put together."


def _show(found: Diagnosis, note: str) -> None:
    console = Console(highlight=False)
    table = Table(box=None, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for check in found.checks:
        mark, style = _MARKS[check.state]
        table.add_row(Text(mark, style), Text(check.name), Text(check.detail, "dim"))
    console.print(table)
    for line in [note, *found.hints] if note else found.hints:
        console.print(Text.assemble(("\n→ ", "bold yellow"), line))
    verdict = ("It verifies.", "bold green")
    if not found.verified:
        verdict = ("It does not verify.", "bold red")
    console.print(Text.assemble("\n", verdict))
