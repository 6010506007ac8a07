"""Paths below a mount point, as different frameworks and servers describe them."""

from typing import Any

import pytest

from onceward.http.errors import HttpError
from onceward.http.paths import (
    mount_hint,
    no_such_path,
    require_plain_path,
    root_path,
    route_path,
    with_full_path,
)

MOUNTS: list[tuple[str, str, str]] = [
    ("", "/webhooks/a", "/webhooks/a"),
    ("/", "/webhooks/a", "/webhooks/a"),
    ("/hooks", "/hooks/webhooks/a", "/webhooks/a"),
    ("/hooks/", "/hooks/webhooks/a", "/webhooks/a"),
    ("/hooks", "/webhooks/a", "/webhooks/a"),
    ("/web", "/webhooks/a", "/webhooks/a"),
    ("/hooks", "/hooks", "/hooks"),
]


def test_the_mount_point_is_no_part_of_a_route(subtests: pytest.Subtests) -> None:
    for root, path, route in MOUNTS:
        with subtests.test(root=root, path=path):
            scope = {"path": path, "root_path": root}
            assert route_path(scope) == route
            full = with_full_path(scope)
            assert (full["path"], full["root_path"]) == (root.rstrip("/") + route, root.rstrip("/"))
            assert route_path(full) == route


def test_an_app_without_a_mount_point_has_none() -> None:
    assert root_path({"path": "/"}) == ""


UNPLAIN_PATHS: list[bytes] = [
    *(b"/%61dmin", b"/%5Fa", b"/a%2Fb", b"/a%2e", b"/%39", b"/%5a", b"/%5A", b"/%7e", b"/%7A"),
    *(b"/a%00", b"/%25", b"/%5c", b"//a", b"/./a", b"/..", b"/a/.", b"/a/../b"),
    *(b"/a;b", b"/a\\b", b"/a\0"),
]


def test_a_path_with_a_plainer_form_is_refused(subtests: pytest.Subtests) -> None:
    for raw in UNPLAIN_PATHS:
        with subtests.test(raw=raw):
            with pytest.raises(HttpError) as caught:
                require_plain_path({"path": "/admin", "raw_path": raw})
            assert caught.value.status == 404


def test_a_plain_path_is_served(subtests: pytest.Subtests) -> None:
    for raw in (b"/a.b/.c/..d", b"/a-b_c~d", b"/caf%C3%A9", b"/a%20b", b"/a?b=%61//..;", b"/a%40b"):
        with subtests.test(raw=raw):
            require_plain_path({"path": "/a", "raw_path": raw})


@pytest.mark.parametrize("scope", [{"path": "//a"}, {"path": "/a;b", "raw_path": b""}])
def test_without_the_path_as_sent_its_decoded_form_is_checked(scope: dict[str, Any]) -> None:
    with pytest.raises(HttpError):
        require_plain_path(scope)


def test_the_hint_is_for_an_inbox_mounted_at_the_root_of_another_app() -> None:
    app = object()
    assert "hides every route" in mount_hint({"path": "/x", "app": app})
    assert mount_hint({"path": "/x"}) == ""
    assert mount_hint({"path": "/x", "app": app, "root_path": "/hooks"}) == ""


def test_a_long_path_is_cut_in_the_message() -> None:
    message = no_such_path({"path": "/" + "x" * 1_000}, "Go.").message
    assert message == f"There is nothing at /{'x' * 99}…. Go."
