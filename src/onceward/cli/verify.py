"""``onceward verify``: explain why a captured request does or does not verify."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table
from rich.text import Text

from onceward.cli._console import escaped_text, make_console
from onceward.cli._loading import load_inbox
from onceward.cli._options import json_option, print_json, report_errors
from onceward.cli._sender import Sender, resolve_sender, sender_options
from onceward.errors import ConfigurationError
from onceward.runtime.clock import SystemClock
from onceward.sources.configure import make_source
from onceward.sources.diagnose import Diagnosis, diagnose
from onceward.sources.request import Headers, Request, is_header_name
from onceward.sources.schemes import UrlCoverage
from onceward.sources.source import Source

_REQUEST_LINE: Final = re.compile(rb"([A-Z]+) (\S+) HTTP/[0-9.]+")
_MAX_LENGTH_DIGITS: Final = 18
_MARKS: Final = {"passed": ("✓", "green"), "failed": ("✗", "bold red"), "not reached": ("·", "dim")}


@click.command()
@click.argument("source")
@click.argument("request_file", metavar="[REQUEST]", default="-")
@sender_options
@click.option(
    "--header", "-H", "headers", multiple=True, help="'Name: value'; REQUEST is then a body."
)
@click.option("--method", default="POST", show_default=True, help="The method, with --header.")
@click.option("--at", metavar="TIME", show_default="now", help="Arrival time, in ISO 8601.")
@json_option
def verify(
    source: str,
    request_file: str,
    headers: Sequence[str],
    method: str,
    at: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Explain why a captured request does or does not verify.

    SOURCE is a source of --app, or else the name of a preset. REQUEST is a file with the raw HTTP
    request: request line, headers, an empty line, body. With --header, it is the body alone. The
    default is standard input.
    """
    with report_errors():
        app_sources = _app_sources(options["app"])
        chosen = _choose_source(source, app_sources, **options)  # before standard input is read
        content = _read_input(request_file)
        if headers:
            request, note = _request_from_headers(headers, content, method), ""
        else:
            request, note = parse_request(content)
        name = source if source in app_sources else "source"
        configured_source = (
            chosen if isinstance(chosen, Source) else _make_source(name, chosen, request.url)
        )
        request.url = _public_url(configured_source, options["url"], request.url)
        now = SystemClock().now() if at is None else _parse_time(at)
        diagnosis = diagnose(configured_source, request, now, app_sources.values())
        if note:
            diagnosis = replace(diagnosis, hints=(note, *diagnosis.hints))
        if as_json:
            print_json(
                {
                    "verified": diagnosis.verified,
                    "checks": diagnosis.checks,
                    "hints": diagnosis.hints,
                }
            )
        else:
            _print_diagnosis(diagnosis)
    sys.exit(0 if diagnosis.verified else 1)


def _public_url(source: Source, option: str | None, captured: str) -> str:
    """Return --url, else the source's URL with the captured query, else the captured URL."""
    if option is not None:
        return option
    if source.url is None or source.url == captured:
        return captured
    return source.public_url(captured.partition("?")[2])


def _app_sources(app: str | None) -> Mapping[str, Source]:
    return {} if app is None else load_inbox(app).sources


def _choose_source(name: str, app_sources: Mapping[str, Source], **options: Any) -> Source | Sender:
    """Return the app's source as configured, or the sender of the options."""
    has_own_secret = options["secret"] or options["secret_file"]
    if name in app_sources and not has_own_secret and options["scheme_name"] is None:
        return app_sources[name]
    sender = resolve_sender(name, **options)
    sender.require_secret()
    return sender


def _make_source(name: str, sender: Sender, captured_url: str) -> Source:
    """Make a source of a sender; its URL is that of the captured request if none is set."""
    url = None
    if sender.scheme.coverage.url is not UrlCoverage.NOTHING:
        url = sender.url or captured_url
        if not url:
            raise ConfigurationError("set --url to the public URL, which the provider signs")
    return make_source(
        name,
        preset=sender.preset,
        scheme=sender.scheme,
        secrets=sender.secrets,
        url=url,
    )


def _read_input(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    if not Path(path).is_file():
        raise ConfigurationError(f"no such file: {path}")
    return Path(path).read_bytes()


def _parse_time(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--at {text!r} is not a time such as 2026-11-16T09:00:00Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _request_from_headers(lines: Sequence[str], body: bytes, method: str) -> Request:
    pairs = [_parse_header(line.encode(errors="surrogateescape")) for line in lines]
    return Request(Headers(pairs), body, method=method)


def _parse_header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name.strip():
        shown = line[:40].decode(errors="replace")
        raise ConfigurationError(f"{shown!r} is not a header; use 'Name: value'")
    return name.strip().lower(), value.strip()


def _is_header(line: bytes) -> bool:
    name, colon, _ = line.partition(b":")
    return bool(colon) and is_header_name(name.strip().decode("latin-1"))


def parse_request(content: bytes) -> tuple[Request, str]:
    """Parse a raw HTTP request; also return a note about repairs. Raises ConfigurationError."""
    content = content.lstrip(b"\r\n")
    first_break = content.find(b"\n")
    line_break = b"\r\n" if content[max(first_break - 1, 0) : first_break] == b"\r" else b"\n"
    head, blank_line, body = content.partition(line_break * 2)
    first, *lines = head.split(line_break)
    if not first:
        raise ConfigurationError("REQUEST is empty")
    request_line = _REQUEST_LINE.fullmatch(first)
    if request_line is None:
        message = "REQUEST must begin with a line such as POST /webhooks/stripe HTTP/1.1"
        raise ConfigurationError(f"{message}; if it is a body, set its headers with --header")
    if not blank_line and not all(map(_is_header, filter(None, lines))):
        raise ConfigurationError("REQUEST has no empty line between headers and body")
    headers = Headers([_parse_header(line) for line in lines if line])
    host = (headers.joined(b"host") or b"").decode("latin-1")
    method, target = request_line[1].decode(), request_line[2].decode("latin-1")
    url = target if "://" in target else f"https://{host}{target}"
    body, note = _decode_body(body, headers)
    return Request(headers, body, method=method, url=url), note


def _decode_body(body: bytes, headers: Headers) -> tuple[bytes, str]:
    """Decode the body and drop a line break that an editor appended; also return a note."""
    length = headers.joined(b"content-length") or b""
    if b"chunked" in (headers.joined(b"transfer-encoding") or b"").lower():
        return _decode_chunks(body)
    if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS or int(length) == len(body):
        return body, ""
    declared = int(length)
    if declared < len(body) and not body[declared:].strip(b"\r\n"):
        return body[:declared], "Ignored a line break after the body."
    suffix = ": it is truncated" if len(body) < declared else ""
    return body, f"The body has {len(body)} bytes, but its Content-Length is {declared}{suffix}."


def _decode_chunks(body: bytes) -> tuple[bytes, str]:
    """Decode a body with chunked transfer encoding; also return a note."""
    parts, rest = [], body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        try:
            length = int(size.partition(b";")[0], 16)
        except ValueError:
            return body, "The body is not chunked, despite its Transfer-Encoding; used as captured."
        if not length:
            break
        parts.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(parts), "Decoded the chunked body."


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    console = make_console()
    table = Table(box=None, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for check in diagnosis.checks:
        mark, style = _MARKS[check.state]
        table.add_row(
            Text(mark, style), escaped_text(check.name), escaped_text(check.detail, "dim")
        )
    console.print(table)
    for hint in diagnosis.hints:
        console.print(Text.assemble(("\n→ ", "bold yellow"), escaped_text(hint)))
    result = ("The request verifies.", "bold green")
    if not diagnosis.verified:
        result = ("The request does not verify.", "bold red")
    console.print(Text.assemble("\n", result))
