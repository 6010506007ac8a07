"""Paths of requests, with and without the mount point of the application."""

from __future__ import annotations

from typing import Final

from onceward.http.errors import HttpError
from onceward.http.responses import Scope
from onceward.runtime.redact import printable

_MAX_SHOWN_CHARACTERS: Final = 100


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


def no_such_path(scope: Scope, advice: str) -> HttpError:
    """Return the error for a path that the application does not have."""
    path = printable(scope["path"])
    shown = path if len(path) <= _MAX_SHOWN_CHARACTERS else f"{path[:_MAX_SHOWN_CHARACTERS]}…"
    return HttpError(404, "not_found", f"There is nothing at {shown}. {advice}")
