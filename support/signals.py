"""The signals that a process inherits as ignored."""

import signal

_IGNORED_IN_BACKGROUND = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def give_children_default_signals() -> None:
    """Let processes that this one starts have the default disposition of every signal.

    ``nohup`` and shells that start a background job ignore SIGHUP or SIGINT, and an ignored signal
    is inherited. A handler is not: this process goes on ignoring them, by a handler.
    """
    for number in _IGNORED_IN_BACKGROUND:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
