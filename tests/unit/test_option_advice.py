"""An option at the wrong place, or a wrong value, is refused with what to write instead."""

from collections.abc import Callable
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, PermanentError
from onceward.runtime.suggest import suggest_or_list
from onceward.work.definition.handlers import make_handler
from onceward.work.payloads.models import make_decoder
from onceward.work.payloads.payload import decode

SECRETS = ["a-long-secret-for-tests"]
MODE_OF_SOURCES = 'mode belongs to the source: inbox.source("…", mode="inline")'
VERSION_PATH = "use a path into the payload, such as 'created'"


async def handle() -> None:
    """Do nothing."""


def fault_of(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the only fault of a configuration."""
    with pytest.raises(ConfigurationError) as refused:
        call(*arguments, **options)
    (fault,) = refused.value.faults
    return fault


@pytest.mark.parametrize("options", [{"mode": "inline"}, {"inline": True}])
def test_a_mode_is_not_of_a_handler_nor_of_an_inbox(options: dict[str, Any]) -> None:
    (name,) = options
    handler = fault_of(make_handler, handle, ["a"], **options)
    assert handler.endswith(f": unknown option {name!r}; {MODE_OF_SOURCES}")
    inbox = fault_of(Inbox, **options)
    assert inbox.startswith(f"unknown setting {name!r}; mode is an option of inbox.source")


def test_a_source_gets_the_way_to_be_inline() -> None:
    fault = fault_of(Inbox().source, "stripe", secrets=SECRETS, inline=True)
    assert fault == "source 'stripe': unknown option 'inline'; write mode=\"inline\""


def test_a_setting_is_not_an_option_of_a_source() -> None:
    fault = fault_of(Inbox().source, "stripe", secrets=SECRETS, inline_timeout_seconds=3)
    assert fault.endswith(
        "unknown option 'inline_timeout_seconds'; it is a setting: Inbox(inline_timeout_seconds=…)"
    )


def test_the_suggested_option_is_one_that_is_not_in_use() -> None:
    options: Any = {"version_field": "created", "version_key": "id"}
    with pytest.raises(ConfigurationError, match="'version_field'; did you mean 'version'\\?"):
        make_handler(handle, ["a"], **options)
    names = ["secrets", "scheme"]
    assert suggest_or_list("secret", names, "use", used=["secrets"]) == "; did you mean 'secrets'?"


@pytest.mark.parametrize("value", [3, ["created"], handle])
def test_a_version_that_is_no_path_gets_an_example_of_a_version(value: object) -> None:
    fault = fault_of(make_handler, handle, ["a"], version=value, version_key="id")
    assert fault.endswith(f": version is {value!r}; {VERSION_PATH}")


def test_an_empty_path_gets_an_example() -> None:
    fault = fault_of(make_handler, handle, ["a"], version="", version_key="id")
    assert fault.endswith(f": version is empty; {VERSION_PATH}")
    fault = fault_of(make_handler, handle, ["a"], ordering_key="")
    assert fault.endswith("is empty; use a path into the payload, such as 'data.object.id'")


BRACKETED: list[tuple[str, str]] = [
    ("items[0].rev", "items.0.rev"),
    ("items[0][1]", "items.0.1"),
    ("[0].rev", "0.rev"),
    ("data['object'].rev", "data.object.rev"),
    ("items[", "items.0.id"),
    ("items[].rev", "items.0.id"),
]


def test_a_path_with_brackets_is_shown_with_dots(subtests: pytest.Subtests) -> None:
    for path, dotted in BRACKETED:
        with subtests.test(path=path):
            fault = fault_of(make_handler, handle, ["a"], version=path, version_key="id")
            assert fault.endswith(
                f"version is {path!r}; write the position in a list as a number: {dotted!r}"
            )


def test_versions_and_shared_transactions_exclude_each_other_for_a_reason() -> None:
    options: Any = {"version": "a", "version_key": "b", "transaction": "shared"}
    with pytest.raises(ConfigurationError, match="would roll back its neighbours; remove one"):
        make_handler(handle, ["a"], **options)


@pytest.mark.parametrize("model", [dict, dict[str, Any], dict[str, dict[str, float]]])
def test_a_number_out_of_range_is_named_in_a_dict_too(model: Any) -> None:
    with pytest.raises(PermanentError, match=r"^Malformed payload: plan\.price: number out of"):
        decode(b'{"plan": {"price": 1e400}}', make_decoder(model))


def test_an_option_of_a_source_is_no_setting() -> None:
    assert fault_of(Inbox, unknown_types="review") == (
        "unknown setting 'unknown_types'; unknown_types is an option of inbox.source: "
        'inbox.source("…", unknown_types="review")'
    )
