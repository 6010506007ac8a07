"""The URL of an SQLite file."""

from __future__ import annotations

from onceward.errors import ConfigurationError


def parse_url(url: str) -> tuple[str, str]:
    """Return the path of the file and the value of ``PRAGMA synchronous``.

    Raise ConfigurationError.
    """
    path, _, options = url.removeprefix("sqlite:///").partition("?")
    synchronous = "FULL"
    for option in filter(None, options.split("&")):
        name, _, value = option.partition("=")
        if name != "synchronous" or value.upper() not in ("OFF", "NORMAL", "FULL", "EXTRA"):
            msg = f"{url}: {option!r} is not an option; use synchronous=full|extra|normal|off"
            raise ConfigurationError(msg)
        synchronous = value.upper()
    if not path or path == ":memory:":
        msg = f"{url} names no file. Write sqlite:///name.db, or sqlite:////absolute/name.db"
        raise ConfigurationError(msg)
    return path, synchronous
