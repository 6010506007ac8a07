"""A service beside its OpenAPI document, and requests that schemathesis generates from it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, settings

from onceward import Event
from onceward.http.admin_app import ADMIN
from onceward.http.openapi.document import document
from onceward.settings import Settings
from tests.integration.running import RunningInbox, make_inbox

TOKEN: Final = "token-of-ann-0123456789"
BEARER: Final = {"Authorization": f"Bearer {TOKEN}"}
BROKEN: Final = {"event_id": "broken", "event_type": "order.broken", "payload": {}}
PUBLIC: Final = {"receive_webhook", "get_health", "get_readiness"}
EXAMPLES: Final = 10

Document = dict[str, Any]
Case = schemathesis.Case[Any]

# A thread of the service may use `random` while hypothesis draws a value.
IGNORE_RANDOM: Final = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)
UNHURRIED: Final = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def described(*, dev: bool) -> Document:
    sources = make_inbox("sqlite:///unused.db")._sources
    return document(settings=Settings(), sources=sources, prefix=ADMIN, dev=dev)


def schema_of(described: Document, *, boundaries: bool = True) -> Any:
    """Return what generates requests: random ones, and with `boundaries` every boundary value."""
    config = {
        "generation": {"max-examples": EXAMPLES, "deterministic": True},
        "phases": {"coverage": {"enabled": boundaries}},
        "operations": [
            {  # each source decides where its id is, so any body may lack one
                "include-operation-id": "receive_webhook",
                "checks": {"positive_data_acceptance": {"enabled": False}},
            }
        ],
    }
    return schemathesis.openapi.from_dict(described, config=schemathesis.Config.from_dict(config))


@contextmanager
def open_service(url: str) -> Iterator[RunningInbox]:
    """Run a service in dev mode."""
    inbox = make_inbox(url)

    @inbox.on("plan", version="created", version_key="id")
    async def sync(event: Event[Any]) -> None:
        pass

    running = RunningInbox(inbox, dev=True)
    running.http.post("/events/ingest", json=BROKEN)
    yield running
    running.close()


@contextmanager
def closed_service(folder: Path) -> Iterator[RunningInbox]:
    """Run a service in production mode, on SQLite and with one token holder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
        inbox = make_inbox(f"sqlite:///{folder / 'onceward.db'}", trusted_proxies=["127.0.0.1"])
        running = RunningInbox(inbox, dev=False)
    running.http.post("/events/ingest", json=BROKEN, headers=BEARER)
    yield running
    running.close()


def aim(case: Case, service: RunningInbox) -> None:
    """Replace a random job id by an existing one, to test more than the 404.

    Leave out requests with an unknown parameter that has no values: it is not sent at all.
    """
    assume([] not in (case.query or {}).values())
    operation = case.operation.definition.raw["operationId"]
    needs_job = operation in ("get_job", "requeue_jobs", "cancel_jobs")
    if needs_job and re.fullmatch("[0-9]{1,18}", str(case.path_parameters.get("id"))):
        job = service.raw_db.value("SELECT min(id) FROM onceward.jobs")
        case.path_parameters["id"] = str(job)
