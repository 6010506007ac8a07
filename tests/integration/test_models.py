"""Models of every kind in a running service. The types of their payloads are checked by mypy."""

from dataclasses import dataclass
from typing import TypedDict, assert_type

import attrs
from pydantic import BaseModel

from onceward import Event, Inbox
from onceward.model.jobs import FailureType, JobStatus
from tests.inprocess import run_inbox


class ModelInvoice(BaseModel):
    amount: int


@dataclass
class DataclassInvoice:
    amount: int


@attrs.define
class AttrsInvoice:
    amount: int


class DictInvoice(TypedDict):
    amount: int


async def test_every_kind_of_model_validates_before_its_handler_starts(database_url: str) -> None:
    inbox = Inbox()
    amounts = []

    @inbox.on("paid")
    async def pydantic_model(event: Event[ModelInvoice]) -> None:
        amounts.append(assert_type(event.payload, ModelInvoice).amount)

    @inbox.on("paid")
    def data_class(event: Event[DataclassInvoice]) -> None:
        amounts.append(assert_type(event.payload, DataclassInvoice).amount)

    @inbox.on("paid")
    def attrs_class(event: Event[AttrsInvoice]) -> None:
        amounts.append(assert_type(event.payload, AttrsInvoice).amount)

    @inbox.on("paid")
    def typed_dict(event: Event[DictInvoice]) -> None:
        amounts.append(assert_type(event.payload, DictInvoice)["amount"])

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("paid", {"amount": 5}, "good")
        await bench.post("paid", {"amount": "much"}, "bad")
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert amounts == [5, 5, 5, 5]
    for name in ("pydantic_model", "data_class", "attrs_class", "typed_dict"):
        job = jobs[f"bad/{name}"]
        assert (job.status, job.failure_type) == (JobStatus.FAILED, FailureType.PERMANENT)
        assert job.last_error == "Malformed payload: amount: expected int, got str"
