"""The signals that a process inherits as ignored."""

import signal

_STOP_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def give_children_default_signals() -> None:
    """Let processes that this one starts have the default disposition of every signal.

    ``nohup`` ignores SIGHUP, a shell SIGINT for a background job, and some supervisors SIGTERM. An
    ignored signal is inherited. A handler is not: this process goes on ignoring them, by a handler.
    """
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
