"""The options and parameters of on_batch and on_failed are checked at start."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from onceward import Event, Inbox, Transaction
from onceward.errors import ConfigurationError
from onceward.work.definition.batches import make_batch_handler
from onceward.work.definition.handlers import make_handler


class Metric(msgspec.Struct):
    """A payload."""

    value: int


def store(events: list[Event[Any]], tx: Transaction) -> None: ...


def faults_of(function: Callable[..., Any] = store, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        make_batch_handler(function, ["metric.*"], **options)
    return "\n".join(refused.value.faults)


def test_a_batch_handler_has_200_events_at_most_by_default() -> None:
    assert make_batch_handler(store, ["metric.*"]).max_events == 200
    assert make_batch_handler(store, ["metric.*"], max_events=1_000).max_events == 1_000


def test_the_number_of_events_has_limits(subtests: pytest.Subtests) -> None:
    for count in (0, 1_001, "200", 2.0, True, None):
        with subtests.test(count=count):
            assert f"max_events is {count!r}; use a whole number from 1 to 1000" in faults_of(
                max_events=count
            )


SINGLE_EVENT_OPTIONS: list[dict[str, Any]] = [
    {"ordering_key": "id"},
    {"on_head_failed": "continue"},
    {"version": "created"},
    {"version_key": "id"},
    {"transaction": "shared"},
    {"transaction": "own"},
]


def test_options_of_single_events_are_refused_by_name(subtests: pytest.Subtests) -> None:
    for option in SINGLE_EVENT_OPTIONS:
        with subtests.test(option=option):
            (name,) = option
            fault = faults_of(**option)
            assert f"{name} is not for on_batch: " in fault
            assert "remove it, or write @inbox.on" in fault


def test_an_unknown_option_is_named() -> None:
    assert "unknown option 'max_event'; did you mean 'max_events'?" in faults_of(max_event=5)
    assert "unknown option 'mode'; mode belongs to the source: " in faults_of(mode="inline")


def test_event_is_refused_by_name() -> None:
    def take(event: Event[Any], tx: Transaction) -> None: ...

    fault = faults_of(take)
    assert "parameter 'event': a batch handler gets a list; name it events" in fault
    assert "needs events" not in fault


def test_effects_are_refused_by_name() -> None:
    def take(events: list[Event[Any]], tx: Transaction, effects: object) -> None: ...

    assert "parameter 'effects': a batch has no effects" in faults_of(take)


def test_events_and_tx_are_required() -> None:
    def take() -> None: ...

    fault = faults_of(take)
    assert "the handler needs events, the list of events" in fault
    assert "the handler needs tx: " in fault


def test_another_parameter_is_refused() -> None:
    def take(events: list[Event[Any]], tx: Transaction, session: object) -> None: ...

    assert "unknown parameter 'session'; use events, tx" in faults_of(take)


def test_every_fault_is_reported_with_the_handler() -> None:
    def take(event: Event[Any]) -> None: ...

    faults = faults_of(take, ordering_key="id", max_events=0, rate="often").splitlines()
    assert len(faults) == 5
    assert all(fault.startswith("handler 'take' (tests/unit/") for fault in faults)


def test_the_model_is_in_the_annotation_of_the_list() -> None:
    def in_list(events: list[Event[Metric]], tx: Transaction) -> None: ...

    def in_sequence(events: Sequence[Event[Metric]], tx: Transaction) -> None: ...

    def bare(events: list, tx: Transaction) -> None: ...  # type: ignore[type-arg]

    assert make_batch_handler(in_list, ["metric"]).model is Metric
    assert make_batch_handler(in_sequence, ["metric"]).model is Metric
    assert make_batch_handler(store, ["metric"]).model is None
    assert make_batch_handler(bare, ["metric"], model=Metric).model is Metric


def test_a_model_without_event_is_refused() -> None:
    def take(events: list[Metric], tx: Transaction) -> None: ...

    def single(events: Event[Metric], tx: Transaction) -> None: ...

    for function in (take, single):
        assert "write events: list[Event[Model]]" in faults_of(function)


def test_two_models_that_contradict_are_refused() -> None:
    def take(events: list[Event[Metric]], tx: Transaction) -> None: ...

    assert "contradicts events" in faults_of(take, model=dict[str, int])


@pytest.mark.parametrize("source", [{}, {"source": "shop"}])
def test_inline_sources_are_refused(source: dict[str, Any], tmp_path: Any) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}")
    inbox.source("shop", preset="hmac", unsigned=True, mode="inline")
    inbox.on_batch("metric.*", **source)(store)
    inbox.on("order.*", name="credit", on_failed=lambda error: None, **source)(lambda event: None)
    with pytest.raises(ConfigurationError) as refused:
        inbox.service()
    batch, on_failed = refused.value.faults
    assert "on_batch cannot hold for source 'shop', whose mode is 'inline'" in batch
    assert "Write @inbox.on, or " in batch
    assert "on_failed cannot hold for source 'shop', whose mode is 'inline'" in on_failed


def test_a_call_that_is_not_applied_is_named(tmp_path: Any) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}")
    inbox.on_batch("metric.*")
    with pytest.raises(ConfigurationError, match=r"inbox\.on_batch\(…\) registers nothing"):
        inbox.service()


def test_the_decorator_needs_types_and_a_function() -> None:
    with pytest.raises(ConfigurationError, match=r"@inbox\.on_batch needs the event types"):
        Inbox().on_batch(store)  # type: ignore[arg-type] # the mistake
    with pytest.raises(ConfigurationError, match=r"@inbox\.on_batch\(…\) needs a function"):
        Inbox().on_batch("metric")(Metric)


def on_failed_faults(function: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        make_handler(lambda event: None, ["a"], name="a", on_failed=function)
    return "\n".join(refused.value.faults)


def test_a_handler_of_one_event_that_wants_many_is_pointed_to_batches() -> None:
    options: Any = {"max_events": 10}
    with pytest.raises(ConfigurationError) as refused:
        make_handler(lambda events: None, ["a"], name="a", **options)
    option, parameter = sorted(refused.value.faults, key=lambda fault: "parameter" in fault)
    assert "unknown option 'max_events'; a call gets one event; write @inbox.on_batch" in option
    assert "parameter 'events': a call gets one event; name it event, or write @inbox.on" in (
        parameter
    )


def test_on_failed_is_a_function_of_event_tx_and_error() -> None:
    def effects(effects: object) -> None: ...

    def generator() -> Any:
        yield

    assert "on_failed is 'retry'; pass a function of event, tx and error" in on_failed_faults(
        "retry"
    )
    assert "on_failed: parameter 'effects': a call of another system" in on_failed_faults(effects)
    assert "pass a function of event, tx and error" in on_failed_faults(dict)
    assert "on_failed: the function is a generator" in on_failed_faults(generator)
