"""Responses as bytes."""

import pytest

from onceward.http.responses import Response


def test_a_response_header_cannot_contain_a_line_break() -> None:
    response = Response(200, b"", [(b"x-echo", b"a\r\nset-cookie: b")])
    with pytest.raises(ValueError, match="control characters"):
        response.to_bytes([], keep_alive=True)


def test_a_response_has_its_status_line_headers_and_body_in_order() -> None:
    sent = Response(202, b"{}").to_bytes([(b"date", b"today")], keep_alive=True)
    head, _, body = sent.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 202 Accepted",
        b"content-type: application/json",
        b"content-length: 2",
        b"cache-control: no-store",
        b"x-content-type-options: nosniff",
        b"date: today",
    ]


def test_a_204_has_no_content_length() -> None:
    sent = Response(204, b"").to_bytes([], keep_alive=True)
    assert sent.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"content-length" not in sent


@pytest.mark.parametrize("headers", [[], [(b"connection", b"close")]])
def test_the_last_response_has_one_connection_close(headers: list[tuple[bytes, bytes]]) -> None:
    sent = Response(413, b"{}", headers).to_bytes([], keep_alive=False)
    assert sent.count(b"connection: close\r\n") == 1
