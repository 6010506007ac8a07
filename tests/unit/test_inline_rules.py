"""Options that only a queue can keep are refused for handlers of inline sources."""

from typing import Any

import pytest

from onceward import ConfigurationError, Event, Inbox, Transaction
from onceward.work.inline.rules import inline_handlers


async def book(event: Event[Any], tx: Transaction) -> None:
    pass


def inbox_with(**options: Any) -> Inbox:
    inbox = Inbox()
    inbox.source("hookmesh", scheme="body", secrets=["a-long-secret-for-tests"], mode="inline")
    inbox.source("stripe", secrets=["whsec_a_long_secret_for_tests"])
    inbox.on("order.paid", **options)(book)
    return inbox


WORKER_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"ordering_key": "data.id"}, "ordering_key"),
    ({"version": "created", "version_key": "data.id"}, "version"),
    ({"concurrency": 2}, "concurrency"),
    ({"rate": "10/s"}, "rate"),
    ({"transaction": "shared"}, "transaction='shared'"),
]


def test_an_option_that_needs_a_worker_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for options, shown in WORKER_OPTIONS:
        for source in ("hookmesh", None):
            with subtests.test(source=source, option=shown):
                with pytest.raises(ConfigurationError) as refused:
                    inbox_with(source=source, **options).service()
                (fault,) = refused.value.faults
                assert fault.startswith("handler 'book' (")
                assert f"{shown} cannot hold for source 'hookmesh', whose mode is 'inline'" in fault
                advice = (
                    "set mode='background' on" if source else "pass source= with another source"
                )
                assert f"Remove {shown}, or {advice}" in fault


def test_the_options_are_allowed_for_other_sources() -> None:
    inbox_with(source="stripe", ordering_key="data.id", concurrency=2, rate="10/s").service()


@pytest.mark.parametrize(("source", "found"), [("hookmesh", ["book"]), ("stripe", []), (None, [])])
def test_only_handlers_of_inline_sources_need_no_worker(
    source: str | None, found: list[str]
) -> None:
    service = inbox_with(source=source).service()
    assert inline_handlers(service.handlers.values(), service.sources.values()) == found


def test_a_process_with_a_worker_runs_all_of_its_handlers() -> None:
    service = inbox_with(source="stripe").service()
    service.worker()
    service.app()
    assert service._watch.own_handlers == {"book"}


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="mode is 'sync'; use 'background' or 'inline'"):
        Inbox().source("stripe", secrets=["whsec_a_long_secret"], mode="sync")  # type: ignore[arg-type]
