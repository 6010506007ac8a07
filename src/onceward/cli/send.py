"""``onceward send``: test a source with a signed example event."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import click
from rich.text import Text

from onceward.cli._console import escaped_text, make_console
from onceward.cli._examples import example_request
from onceward.cli._options import json_option, print_bytes, print_json, print_line, report_errors
from onceward.cli._sender import Sender, needs_private_key, resolve_sender, sender_options
from onceward.errors import ConfigurationError
from onceward.http.receive_app import WEBHOOKS
from onceward.runtime.clock import SystemClock
from onceward.sources.outgoing import OutgoingRequest

LOCAL_ADDRESS = "http://127.0.0.1:3000"
RESPONSE_TIMEOUT_SECONDS = 30.0
SUCCESS = range(200, 300)
UNAUTHORIZED = 401
NOT_FOUND = (404, 405)
REDIRECTS = range(300, 400)
REASON_ADVICE = "The inbox's log, and the list `rejections` of its admin API, name the reason."
PLAIN_HTTP_REASONS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""Reasons of OpenSSL for a server that does not answer in TLS."""


@click.command()
@click.argument("source")
@sender_options
@click.option(
    "--to",
    metavar="URL",
    show_default=f"{LOCAL_ADDRESS}{WEBHOOKS}SOURCE",
    help="Where to post; /webhooks/SOURCE is added to an address without a path.",
)
@click.option("--id", "event_id", metavar="TEXT", show_default="a new id", help="The event's id.")
@click.option(
    "--type", "event_type", metavar="TEXT", show_default="the example's", help="The event's type."
)
@click.option("--data", type=click.File("rb"), help="A file with the body; - for standard input.")
@click.option("--times", type=click.IntRange(1, 1000), default=1, help="How often to send it.")
@click.option("--dry-run", is_flag=True, help="Print the request without sending it.")
@json_option
def send(
    source: str,
    to: str | None,
    event_id: str | None,
    event_type: str | None,
    data: Any,
    times: int,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Send a signed example event to a source.

    SOURCE is a source of --app, which also provides the secret, or else the name of a preset. For
    providers that sign with a key pair, --secret is the private key.
    """
    with report_errors():
        sender = resolve_sender(source, **options)
        address = _address(source, to)
        body = data.read() if data else None
        outgoing = example_request(
            sender.preset, url=sender.url or address, id=event_id, type=event_type, body=body
        )
        if not sender.unsigned:
            _sign(sender, outgoing)
        if dry_run:
            _print_request(outgoing, as_json=as_json)
            return
        if options["url"] and not sender.scheme.needs_url:
            msg = f"--url has no effect: {source} does not sign the URL; --to says where to post"
            raise ConfigurationError(msg)
        answers = [_post(address, outgoing, as_json=as_json) for _ in range(times)]
        if any(answer.status == UNAUTHORIZED for answer in answers):
            print_line(REASON_ADVICE, err=True)
        elif any(answer.is_of_another_app for answer in answers):
            print_line(_prefix_advice(source, address), err=True)
    sys.exit(0 if all(answer.status in SUCCESS for answer in answers) else 1)


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    status: int
    body: str

    @property
    def is_of_another_app(self) -> bool:
        """Whether no inbox was found: Onceward's errors have a code and a message."""
        if self.status in REDIRECTS:
            return True
        return self.status in NOT_FOUND and not {"error", "message"} <= self._members

    @property
    def _members(self) -> set[str]:
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            return set()
        return {*content} if isinstance(content, dict) else set()


def _prefix_advice(source: str, address: str) -> str:
    parts = _split_url(address)
    if WEBHOOKS not in parts.path:
        url = f"{parts.scheme}://{_host(parts)}{parts.path.rstrip('/')}{WEBHOOKS}{source}"
        return f"This answer is not Onceward's: write --to {url}"
    return (
        "This answer is not Onceward's: if the inbox is mounted, add its prefix: "
        f"--to {parts.scheme}://{_host(parts)}/PREFIX{WEBHOOKS}{source}"
    )


def _host(url: SplitResult) -> str:
    """Return the host and port, without credentials."""
    return url.netloc.rpartition("@")[2]


def _address(source: str, to: str | None) -> str:
    """Return the URL to post to. One without a path is the address of an inbox."""
    url = to or LOCAL_ADDRESS
    has_path = _split_url(url).path.strip("/")
    return url if has_path else f"{url.rstrip('/')}{WEBHOOKS}{source}"


def _sign(sender: Sender, outgoing: OutgoingRequest) -> None:
    """Sign the request as the provider would. Raises ConfigurationError."""
    if needs_private_key(sender.scheme) and sender.uses_app_secrets:
        message = "the app has only the public key: set --secret-file to the private key"
        raise ConfigurationError(message)
    try:
        sender.scheme.sign(sender.require_secret(), outgoing, SystemClock().now())
    except ConfigurationError as error:
        raise ConfigurationError(_name_the_secret(error.faults)) from None


def _name_the_secret(faults: Iterable[str]) -> list[str]:
    """Add the subject to faults of a secret, which schemes report without one."""
    return [
        f"the secret {fault}" if fault.startswith(("is ", "has ")) else fault for fault in faults
    ]


def raw_request(outgoing: OutgoingRequest) -> bytes:
    """Return the request as sent over the wire."""
    parts = urlsplit(outgoing.url)
    target = parts._replace(scheme="", netloc="").geturl() or "/"
    headers = {"host": parts.netloc, **outgoing.headers, "content-length": str(len(outgoing.body))}
    lines = [f"{outgoing.method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + outgoing.body


def _print_request(outgoing: OutgoingRequest, *, as_json: bool) -> None:
    if as_json:
        body = outgoing.body.decode(errors="backslashreplace")
        print_json(
            {
                "method": outgoing.method,
                "url": outgoing.url,
                "headers": outgoing.headers,
                "body": body,
            }
        )
    else:
        print_bytes(raw_request(outgoing))


def _split_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"{url} is not a URL") from None
    return parts


def _post(address: str, outgoing: OutgoingRequest, *, as_json: bool) -> Answer:
    """Send the request, print the response and return it. Raises ConfigurationError."""
    target, signed = _split_url(address), _split_url(outgoing.url)
    if target.scheme not in ("http", "https") or not target.hostname:
        raise ConfigurationError(f"{address} is not an http or https URL")
    is_tls = target.scheme == "https"
    connect = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    host = _host(target)
    connection = connect(host, timeout=RESPONSE_TIMEOUT_SECONDS)
    path = target._replace(scheme="", netloc="", query=signed.query).geturl() or "/"
    headers = {name: value.encode("latin-1", "replace") for name, value in outgoing.headers.items()}
    try:
        connection.request(outgoing.method, path, outgoing.body, headers)
        response = connection.getresponse()
        answer = Answer(response.status, response.read().decode(errors="replace"))
        _print_response(answer, as_json=as_json)
        return answer
    except OSError as error:
        if isinstance(error, ssl.SSLError) and error.reason in PLAIN_HTTP_REASONS:
            advice = f"the server at {host} speaks plain HTTP; write --to http://{host}"
            raise ConfigurationError(advice) from None
        message = f"cannot reach {target.scheme}://{host} ({error.strerror or error})"
        raise ConfigurationError(f"{message}: start the inbox, or set --to") from None
    except (ValueError, http.client.HTTPException):
        raise ConfigurationError(
            "the request cannot be sent: a header or the URL is invalid"
        ) from None
    finally:
        connection.close()


def _print_response(answer: Answer, *, as_json: bool) -> None:
    if as_json:
        print_json({"status": answer.status, "body": answer.body})
        return
    style = "bold green" if answer.status in SUCCESS else "bold red"
    shown = Text.assemble((str(answer.status), style), " ", escaped_text(answer.body))
    make_console(soft_wrap=True).print(shown)
