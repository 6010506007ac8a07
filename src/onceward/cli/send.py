"""``onceward send``: try a source out with a request as its sender would make it."""

from __future__ import annotations

import http.client
import sys
from typing import Any
from urllib.parse import SplitResult, urlsplit

import click
from rich.console import Console
from rich.text import Text

from onceward.cli._examples import example_of
from onceward.cli._options import json_flag, print_json, report_errors
from onceward.cli._sender import Sender, resolve_sender, trying
from onceward.errors import ConfigurationError
from onceward.http.receive_app import WEBHOOKS
from onceward.runtime.clock import SystemClock
from onceward.sources.outgoing import OutgoingRequest

ANSWER_SECONDS = 30.0
OK = range(200, 300)


@click.command()
@click.argument("source")
@trying
@click.option("--to", metavar="URL", help="Where to post; http://127.0.0.1:3000/webhooks/SOURCE.")
@click.option("--id", "event_id", metavar="TEXT", help="The event's id; else a new one.")
@click.option("--type", "event_type", metavar="TEXT", help="The event's type; else the example's.")
@click.option("--data", type=click.File("rb"), help="A body of your own; - for standard input.")
@click.option("--times", type=click.IntRange(1, 1000), default=1, help="Send the same so often.")
@click.option("--dry-run", is_flag=True, help="Print the request and send nothing.")
@json_flag
def send(
    source: str,
    to: str | None,
    event_id: str | None,
    event_type: str | None,
    data: Any,
    times: int,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Send an example event to SOURCE, signed as its sender would.

    SOURCE is the name of a preset, or with --app of a source of yours. The secret comes from the
    app, else from --secret; for senders with a key pair it is the private key.
    """
    with report_errors():
        found = resolve_sender(source, **given)
        address = to or f"http://127.0.0.1:3000{WEBHOOKS}{source}"
        body = data.read() if data else None
        draft = example_of(
            found.preset, url=found.url or address, id=event_id, type=event_type, body=body
        )
        if not found.unsigned:
            _sign(found, draft)
        if dry_run:
            _print_request(draft, as_json=as_json)
            return
        statuses = [_post(address, draft, as_json=as_json) for _ in range(times)]
    sys.exit(0 if all(status in OK for status in statuses) else 1)


def _sign(found: Sender, draft: OutgoingRequest) -> None:
    """Sign as the sender would. Raises ConfigurationError that says what to do."""
    if found.needs_private_key and not found.is_given:
        message = "the app has only the public key: give --secret-file with the private one"
        raise ConfigurationError(message)
    try:
        found.scheme.sign(found.secret, draft, SystemClock().now())
    except ConfigurationError as error:
        report_errors = [
            f"the secret {it}" if it.startswith(("is ", "has ")) else it for it in error.faults
        ]
        raise ConfigurationError(report_errors) from None


def raw_request(draft: OutgoingRequest) -> bytes:
    """The request as it goes over the wire."""
    parts = urlsplit(draft.url)
    target = parts._replace(scheme="", netloc="").geturl() or "/"
    headers = {"host": parts.netloc, **draft.headers, "content-length": str(len(draft.body))}
    lines = [f"{draft.method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + draft.body


def _print_request(draft: OutgoingRequest, *, as_json: bool) -> None:
    if as_json:
        body = draft.body.decode(errors="backslashreplace")
        report_errors = {
            "method": draft.method,
            "url": draft.url,
            "headers": draft.headers,
            "body": body,
        }
        print_json(report_errors)
    else:
        sys.stdout.buffer.write(raw_request(draft))
        sys.stdout.flush()


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"{url} is not a URL") from None
    return parts


def _post(address: str, draft: OutgoingRequest, *, as_json: bool) -> int:
    """Send it, and show the answer."""
    place, signed = _split(address), _split(draft.url)
    if place.scheme not in ("http", "https") or not place.hostname:
        raise ConfigurationError(f"{address} is not a URL that one can post to")
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.netloc.rpartition("@")[2], timeout=ANSWER_SECONDS)
    target = place._replace(scheme="", netloc="", query=signed.query).geturl() or "/"
    headers = {name: value.encode("latin-1", "replace") for name, value in draft.headers.items()}
    try:
        connection.request(draft.method, target, draft.body, headers)
        answer = connection.getresponse()
        _show(answer.status, answer.read().decode(errors="replace"), as_json=as_json)
        return answer.status
    except OSError as error:
        where = place.netloc.rpartition("@")[2]
        message = f"nobody answers at {place.scheme}://{where} ({error.strerror or error})"
        raise ConfigurationError(f"{message}; start the inbox, or name another with --to") from None
    except (ValueError, http.client.HTTPException):
        raise ConfigurationError("it cannot be sent: a header or the URL is not valid") from None
    finally:
        connection.close()


def _show(status: int, body: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"status": status, "answer": body})
        return
    style = "bold green" if status in OK else "bold red"
    Console(highlight=False, soft_wrap=True).print(Text.assemble((str(status), style), " ", body))
