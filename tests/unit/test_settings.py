"""Settings come from code, environment and command line, and all faults are reported together."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.settings import (
    Settings,
    SettingsOptions,
    default_database_note,
    misspelled_variables,
    resolve,
)


def faults_of(**sources: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as raised:
        resolve(**sources)  # type: ignore[arg-type] # each is a mapping
    return raised.value.faults


def test_a_misspelled_setting_is_refused_where_it_is_written() -> None:
    options: Any = {"worker": 2}
    with pytest.raises(ConfigurationError) as raised:
        Inbox(**options)
    assert raised.value.faults == ("unknown setting 'worker'; did you mean 'workers'?",)


def test_an_invalid_setting_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match="max_attempts: 0 is too small"):
        Inbox(max_attempts=0)


MAXIMA: list[tuple[str, int, int]] = [
    ("max_attempts", 10**30, 1_000_000),
    ("dedupe_window_days", 36_501, 36_500),
    ("rejection_rows", 2**31, 2**31 - 1),
    ("delivery_rows", 2**31, 2**31 - 1),
]


def test_a_number_that_the_database_cannot_store_is_refused(subtests: pytest.Subtests) -> None:
    for name, value, maximum in MAXIMA:
        with subtests.test(name=name):
            (fault,) = faults_of(code={name: value})
            assert fault == f"{name} is too large; the maximum is {maximum}"
            resolve(code={name: maximum})


def test_without_any_source_the_defaults_apply() -> None:
    assert resolve() == Settings()
    assert resolve(code={}, environment={}, command_line={}) == Settings()


def test_environment_variables_are_the_names_of_settings_in_capitals() -> None:
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


def test_code_overrides_the_environment_and_the_command_line_overrides_both() -> None:
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


def test_a_delay_of_more_than_a_year_is_refused() -> None:
    (fault,) = faults_of(code={"retry_max_seconds": 1e12})
    assert fault == "retry_max_seconds is above 366 days; set a shorter delay"
    assert resolve(code={"retry_max_seconds": 366 * 86_400}).retry_max_seconds == 366 * 86_400


def test_the_first_delay_must_not_exceed_the_longest() -> None:
    assert faults_of(code={"retry_base_seconds": 60, "retry_max_seconds": 30}) == (
        "retry_base_seconds is above retry_max_seconds; for a constant delay set both alike",
    )


def test_all_settings_that_contradict_each_other_are_reported_together() -> None:
    longest, body = {"retry_base_seconds": 60, "retry_max_seconds": 30}, {"max_pending_bytes": 2048}
    assert len(faults_of(code={**longest, **body})) == 2


def test_an_empty_variable_counts_as_unset() -> None:
    assert resolve(environment={"ONCEWARD_WORKERS": ""}) == Settings()
    assert resolve(environment={"ONCEWARD_ARCHIVE": "", "ONCEWARD_REDIS": ""}) == Settings()


@pytest.mark.parametrize("name", ["archive", "redis", "database_url"])
def test_an_empty_text_is_refused_where_it_is_written(name: str) -> None:
    """Payloads would be dropped without the archive that was meant."""
    options: Any = {name: ""}
    for given in ({"code": options}, {"command_line": options}):
        (fault,) = faults_of(**given)
        assert fault.startswith(f"{name} is an empty text; leave it out for the default (")
    with pytest.raises(ConfigurationError, match=f"{name} is an empty text"):
        Inbox(**options)


def test_true_has_several_spellings(subtests: pytest.Subtests) -> None:
    for text in ("1", "true", "YES", "on"):
        with subtests.test(text=text):
            settings = resolve(environment={"ONCEWARD_ALLOW_WEAK_DURABILITY": text})
            assert settings.allow_weak_durability


def test_all_faults_are_reported_together() -> None:
    faults = faults_of(
        environment={"ONCEWARD_WORKERS": "many", "ONCEWARD_MIGRATE_AT_START": "maybe"},
        code={"lease_seconds": 0.01, "wrokers": 3},
        command_line={"max_attempts": "3"},
    )
    message = "\n".join(faults)
    assert len(faults) == 5
    for name in ("ONCEWARD_WORKERS", "ONCEWARD_MIGRATE_AT_START", "'wrokers'"):
        assert name in message
    assert "lease_seconds: 0.01 is too small; the minimum is 0.3" in faults
    assert "max_attempts: '3' is not a whole number" in faults


INVALID_VALUES: list[tuple[str, object]] = [
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
]


def test_an_invalid_value_is_reported_with_the_name_of_its_setting(
    subtests: pytest.Subtests,
) -> None:
    for name, value in INVALID_VALUES:
        with subtests.test(name, value=value):
            (fault,) = faults_of(code={name: value})
            assert fault.startswith(f"{name}: ")


def test_an_unusable_number_in_the_environment_is_reported(subtests: pytest.Subtests) -> None:
    for text in ("nan", "inf", "-1", "1e400"):
        with subtests.test(text=text):
            (fault,) = faults_of(environment={"ONCEWARD_LEASE_SECONDS": text})
            assert fault.startswith("lease_seconds: ")


def test_seconds_may_be_a_whole_number() -> None:
    assert resolve(code={"lease_seconds": 60}).lease_seconds == 60


def test_a_tuple_setting_accepts_a_list() -> None:
    assert resolve(code={"allowed_hosts": ["a.example"]}).allowed_hosts == ("a.example",)


def test_every_setting_is_documented_and_its_default_is_valid(subtests: pytest.Subtests) -> None:
    for entry in fields(Settings):
        with subtests.test(entry.name):
            assert entry.metadata["doc"]
            assert entry.default == "" or resolve(code={entry.name: entry.default}) == Settings()


def test_the_pending_limit_must_hold_the_largest_body() -> None:
    with pytest.raises(ConfigurationError, match="max_pending_bytes is below max_body_bytes"):
        resolve(code={"max_pending_bytes": 2048, "max_body_bytes": 4096})


def test_the_keyword_arguments_of_an_inbox_are_the_settings() -> None:
    options, settings = get_type_hints(SettingsOptions), get_type_hints(Settings)
    lists = {name for name, hint in settings.items() if hint == tuple[str, ...]}
    assert options == settings | dict.fromkeys(lists, tuple[str, ...] | list[str])


def test_a_default_database_is_explained() -> None:
    note = "ONCEWARD_DATABASE_URL is not set, so the database is sqlite:///onceward.db"
    assert default_database_note([], {}) == note
    assert default_database_note(["workers"], {"ONCEWARD_DATABASE_URL": ""}) == note
    other = {"DATABASE_URL": "postgresql://ann:hunter2@db/shop"}
    assert default_database_note([], other) == f"{note}; DATABASE_URL is not read"
    assert default_database_note(["database_url"], other) == ""
    assert default_database_note([], {"ONCEWARD_DATABASE_URL": "sqlite:///x.db"}) == ""


@pytest.mark.parametrize("name", ["HOST", "LOG", "PORT"])
def test_a_variable_for_an_option_of_the_command_line_is_reported(name: str) -> None:
    (warning,) = misspelled_variables([f"ONCEWARD_{name}", "ONCEWARD_WORKERS"])
    assert warning == f"ONCEWARD_{name} is not a setting; use --{name.lower()}"
