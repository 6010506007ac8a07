"""Why Redis is not used: a kind that everyone may see, and a reason for the log with what to do."""

from __future__ import annotations

import re
from typing import Final

from onceward.accelerators.redis.address import RedisAddress
from onceward.accelerators.redis.connection import NoTls, UntrustedCertificate
from onceward.accelerators.redis.replies import ReplyError
from onceward.runtime.error_text import locate
from onceward.runtime.redact import redact

BAD_REPLIES: Final = "its replies are not valid"
_CODE: Final = re.compile("[A-Z]{1,20}")
"""The first word of an error of Redis. Another peer may reply anything, and it would be public."""
_SHOWN_CHARACTERS: Final = 4
"""An error that contains so many characters of the password's beginning is not shown."""
_SETTING: Final = "in redis, or in ONCEWARD_REDIS"
_REFUSED: Final = {
    "WRONGPASS": (
        "it refuses the user or the password",
        (
            f"it refuses the user or the password (WRONGPASS). Check both {_SETTING}; a special "
            "character in them is percent-encoded, such as %40 for @"
        ),
    ),
    "NOAUTH": (
        "it wants a password",
        (
            f"it wants a password, and the URL has none (NOAUTH). Write it {_SETTING}: "
            "redis://:password@host:6379/0, or redis://user:password@host:6379/0"
        ),
    ),
    "NOPERM": (
        "its user lacks a privilege",
        (
            "the user of the URL lacks a privilege (NOPERM). Grant it: ACL SETUSER user "
            "~onceward:* +set +mget +select"
        ),
    ),
}
"""The errors about who may use Redis, by their code."""
_NO_PASSWORD_SET: Final = ("ERR AUTH <password> called without", "ERR Client sent AUTH, but no")


class UnexpectedReply(Exception):
    """A reply that is not the one to the command."""


def describe(error: Exception, address: RedisAddress) -> tuple[str, str]:
    """Return the kind of a failure, which is public, and its reason for the log."""
    match error:
        case ReplyError():
            return _describe_reply(error, address.password)
        case UnexpectedReply():
            return BAD_REPLIES, "a reply is not the one to its command"
        case UntrustedCertificate() | NoTls():
            return _describe_tls(error, address.host)
        case TimeoutError():
            return "it is too slow", "it did not reply in time"
        case OSError():
            return "it cannot be reached", redact(str(error) or type(error).__name__)
        case _:
            return "of an internal error", locate(error)


def _describe_tls(error: UntrustedCertificate | NoTls, host: str) -> tuple[str, str]:
    reason = redact(str(error))
    if isinstance(error, NoTls):
        return "it does not respond with TLS", (
            f"it does not respond with TLS: {reason}. If it has no TLS, write redis:// instead of "
            f"rediss:// {_SETTING}; if it has, name the port of its TLS"
        )
    return "its certificate is not trusted", (
        f"its certificate is not trusted: {reason}. It must name the host {host}. Add its "
        "authority to those of the system, or name a file with it in SSL_CERT_FILE"
    )


def _describe_reply(error: ReplyError, password: str) -> tuple[str, str]:
    """Describe an error that Redis replied. It may quote the arguments of AUTH, or a part."""
    if error.code in _REFUSED:
        return _REFUSED[error.code]
    if str(error).startswith(_NO_PASSWORD_SET):
        return "it has no password, and the URL has one", (
            f"it has no password, and the URL has one. Remove it {_SETTING}, or set requirepass in "
            "Redis"
        )
    start = password[:_SHOWN_CHARACTERS]
    is_code = _CODE.fullmatch(error.code) and not (start and start in error.code)
    code = error.code if is_code else "an error"
    if start and start in str(error):
        return f"it replied {code}", f"it replied {code}, whose text may quote the password"
    return f"it replied {code}", redact(str(error))
