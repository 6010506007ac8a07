"""Settings come from code, environment and command line, and every fault is told at once."""

from dataclasses import fields
from typing import get_type_hints

import pytest

from onceward.errors import ConfigurationError
from onceward.settings import Settings, SettingsOptions, resolve


def faults_of(**given: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        resolve(**given)  # type: ignore[arg-type] # each is a mapping
    return refused.value.faults


def test_without_anything_given_the_defaults_hold() -> None:
    assert resolve() == Settings()
    assert resolve(code={}, environment={}, command_line={}) == Settings()


def test_the_environment_is_read_by_the_settings_name_in_capitals() -> None:
    settings = resolve(
        environment={
            "ONCEWARD_DATABASE_URL": "postgresql://db/inbox",
            "ONCEWARD_WORKERS": "7",
            "ONCEWARD_LEASE_SECONDS": "2.5",
            "ONCEWARD_MIGRATE_AT_START": "No",
            "ONCEWARD_ALLOWED_HOSTS": "a.example, b.example,,",
            "WORKERS": "9",
            "ONCEWARD_SOMETHING_ELSE": "of another program",
        }
    )
    assert settings == Settings(
        database_url="postgresql://db/inbox",
        workers=7,
        lease_seconds=2.5,
        migrate_at_start=False,
        allowed_hosts=("a.example", "b.example"),
    )


def test_code_wins_over_the_environment_and_the_command_line_over_both() -> None:
    settings = resolve(
        environment={
            "ONCEWARD_WORKERS": "1",
            "ONCEWARD_MAX_ATTEMPTS": "1",
            "ONCEWARD_POLL_SECONDS": "1",
        },
        code={"workers": 2, "max_attempts": 2},
        command_line={"workers": 3},
    )
    assert (settings.workers, settings.max_attempts, settings.poll_seconds) == (3, 2, 1.0)


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert resolve(environment={"ONCEWARD_WORKERS": ""}) == Settings()


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_yes_has_several_spellings(text: str) -> None:
    assert resolve(environment={"ONCEWARD_ALLOW_WEAK_DURABILITY": text}).allow_weak_durability


def test_all_faults_are_told_at_once() -> None:
    faults = faults_of(
        environment={"ONCEWARD_WORKERS": "many", "ONCEWARD_MIGRATE_AT_START": "maybe"},
        code={"lease_seconds": 0.01, "wrokers": 3},
        command_line={"max_attempts": "3"},
    )
    told = "\n".join(faults)
    assert len(faults) == 5
    for name in ("ONCEWARD_WORKERS", "ONCEWARD_MIGRATE_AT_START", "'wrokers'"):
        assert name in told
    assert "lease_seconds: 0.01 is too small; the minimum is 0.3" in faults
    assert "max_attempts: '3' is not a whole number" in faults


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 2.0),
        ("workers", True),
        ("workers", -1),
        ("workers", None),
        ("lease_seconds", "60"),
        ("lease_seconds", float("nan")),
        ("lease_seconds", float("inf")),
        ("poll_seconds", False),
        ("migrate_at_start", 1),
        ("database_url", None),
        ("allowed_hosts", "a.example"),
        ("max_batch_events", 0),
    ],
)
def test_a_value_that_is_none_is_refused_by_the_settings_name(name: str, value: object) -> None:
    (fault,) = faults_of(code={name: value})
    assert fault.startswith(f"{name}: ")


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e400"])
def test_a_number_that_is_no_limit_is_refused_from_the_environment_too(text: str) -> None:
    (fault,) = faults_of(environment={"ONCEWARD_LEASE_SECONDS": text})
    assert fault.startswith("lease_seconds: ")


def test_a_whole_number_will_do_for_seconds() -> None:
    assert resolve(code={"lease_seconds": 60}).lease_seconds == 60


def test_a_list_of_names_may_be_written_as_a_list() -> None:
    assert resolve(code={"allowed_hosts": ["a.example"]}).allowed_hosts == ("a.example",)


@pytest.mark.parametrize("entry", fields(Settings), ids=lambda entry: entry.name)
def test_every_setting_says_what_it_is_for_and_its_default_is_allowed(entry: object) -> None:
    name, default = entry.name, entry.default  # type: ignore[attr-defined]
    assert entry.metadata["doc"]  # type: ignore[attr-defined]
    assert resolve(code={name: default}) == Settings()


def test_a_body_that_could_never_wait_is_a_contradiction() -> None:
    with pytest.raises(ConfigurationError, match="max_pending_bytes is below max_body_bytes"):
        resolve(code={"max_pending_bytes": 2048, "max_body_bytes": 4096})


def test_the_keyword_arguments_of_an_inbox_are_the_settings() -> None:
    options, settings = get_type_hints(SettingsOptions), get_type_hints(Settings)
    lists = {name for name, hint in settings.items() if hint == tuple[str, ...]}
    assert options == settings | dict.fromkeys(lists, tuple[str, ...] | list[str])
