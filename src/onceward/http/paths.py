"""Paths of requests, with and without the mount point of the application."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from onceward.http.errors import HttpError
from onceward.http.responses import Scope
from onceward.runtime.redact import printable

INDEX_PATH: Final = "/"
OPENAPI: Final = "/openapi.json"
_MAX_SHOWN_CHARACTERS: Final = 100
_HIDES_ROUTES: Final = (
    'The inbox is mounted at "/", which hides every route that is added after it: '
    'mount it last, or at "/hooks".'
)
_NOT_PLAIN: Final = re.compile(
    rb"%(?:2[def]|3[0-9]|[46][1-9a-f]|[57][0-9a]|5[cf]|7e|00|25)"  # [A-Za-z0-9._~/%-], \\ and NUL
    rb"|//|/\.{1,2}(?:/|$)|[\\;\0]",
    re.IGNORECASE,
)
"""Parts of a path that have a plainer form, or that some programs remove."""


def root_path(scope: Scope) -> str:
    """Return the mount point of the application, without a slash at its end."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def route_path(scope: Scope) -> str:
    """Return the path below the mount point of the application."""
    path: str = scope["path"]
    root = root_path(scope)
    if not root:
        return path
    return path[len(root) :] if path.startswith(f"{root}/") else path


def with_full_path(scope: Scope) -> Scope:
    """Return the scope with the mount point in its path, which some frameworks remove."""
    root = root_path(scope)
    return {**scope, "path": root + route_path(scope), "root_path": root}


def require_plain_path(scope: Scope) -> None:
    """Raise HttpError (404) if the path was not sent in its plain form.

    A proxy may compare its rules with the path as sent: ``/%61dmin`` must not be another way to
    ``/admin``. A few servers do not say how the path was sent; there, its decoded form is checked.
    """
    raw: Any = scope.get("raw_path") or scope["path"]
    raw = raw if isinstance(raw, bytes) else raw.encode(errors="surrogatepass")
    if not _is_plain(raw):
        raise no_such_path(scope, "Send a plain path, without percent-encoding, // or dots.", raw)


@lru_cache(maxsize=100)
def _is_plain(raw: bytes) -> bool:
    return _NOT_PLAIN.search(raw.partition(b"?")[0]) is None


def mount_hint(scope: Scope) -> str:
    """Return a hint for the log if the request may be for a route that the inbox hides."""
    return _HIDES_ROUTES if "app" in scope and not root_path(scope) else ""  # Starlette's Mount


def no_such_path(scope: Scope, advice: str, raw: bytes | None = None) -> HttpError:
    """Return the error for a path that the application does not have, shown as sent if given."""
    path = printable(scope["path"] if raw is None else raw)
    shown = path if len(path) <= _MAX_SHOWN_CHARACTERS else f"{path[:_MAX_SHOWN_CHARACTERS]}…"
    return HttpError(404, "not_found", f"There is nothing at {shown}. {advice}")
