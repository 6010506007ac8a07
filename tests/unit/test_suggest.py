"""Suggestions for misspelled names."""

import pytest

from onceward.runtime.suggest import (
    did_you_mean,
    is_misspelling,
    is_respelling,
    nearest,
    suggest_or_list,
)
from onceward.sources.presets import PRESETS

MISSPELLED_PRESETS: list[tuple[str, str]] = [
    ("strype", "stripe"),
    ("Stripe", "stripe"),
    ("githb", "github"),
    ("git-hub", "github"),
    ("shopfy", "shopify"),
    ("twillio", "twilio"),
    ("sns", "aws-sns"),
    ("x", "x-twitter"),
    ("stripe_production", "stripe"),
]


def test_a_misspelled_preset_is_found(subtests: pytest.Subtests) -> None:
    for word, expected in MISSPELLED_PRESETS:
        with subtests.test(word=word):
            assert nearest(word, PRESETS) == expected


def test_a_name_of_the_users_own_is_no_misspelling(subtests: pytest.Subtests) -> None:
    for word in ("crm", "billing", "orders", "acme", "", "partner"):
        with subtests.test(word=word):
            assert nearest(word, PRESETS) is None


def test_a_suggestion_is_a_clause_to_append() -> None:
    assert did_you_mean("secret", ["secrets", "scheme"]) == "; did you mean 'secrets'?"
    assert did_you_mean("colour", ["secrets", "scheme"]) == ""


def test_a_part_of_several_options_suggests_none() -> None:
    options = ["body_timeout_seconds", "handler_timeout_seconds"]
    assert nearest("timeout", options[1:]) == "handler_timeout_seconds"
    assert nearest("timeout", options) is None


def test_all_options_are_listed_if_none_is_similar() -> None:
    options = {"secrets", "scheme"}
    assert suggest_or_list("secret", options, "the options are") == "; did you mean 'secrets'?"
    assert suggest_or_list("url", options, "the options are") == "; the options are scheme, secrets"
    assert suggest_or_list("url", (), "its sources are") == "; its sources are none"


MISSPELLINGS: list[tuple[str, str]] = [
    ("Push", "push"),
    ("issue", "issues"),
    ("receved", "received"),
    ("recieved", "received"),
    ("recqived", "received"),
    ("succeededd", "succeeded"),
    ("pull-request", "pull_request"),
]


def test_one_mistyped_letter_is_a_misspelling(subtests: pytest.Subtests) -> None:
    for word, other in MISSPELLINGS:
        with subtests.test(word=word):
            assert is_misspelling(word, other)
            assert is_misspelling(other, word)


OTHER_WORDS: list[tuple[str, str]] = [
    ("opened", "reopened"),
    ("updated", "deleted"),
    ("event1", "event2"),
    ("ping", "pong"),
    ("", "x"),
]


def test_another_word_is_no_misspelling(subtests: pytest.Subtests) -> None:
    for word, other in OTHER_WORDS:
        with subtests.test(word=word):
            assert not is_misspelling(word, other)
            assert not is_misspelling(other, word)


RESPELLINGS: list[tuple[str, str]] = [
    ("order.paid", "order.payed"),
    ("Order_Canceled", "order.cancelt"),
    ("invoice.finalised", "invoice.finalized"),
    ("a" * 9_000, "a" * 9_000 + "bc"),
]


def test_a_word_of_two_other_letters_is_a_respelling(subtests: pytest.Subtests) -> None:
    for word, other in RESPELLINGS:
        with subtests.test(word=word[:32]):
            assert is_respelling(word, other)
            assert is_respelling(other, word)


NO_RESPELLINGS: list[tuple[str, str]] = [
    ("invoice.paid", "invoice.unpaid"),
    ("invoice.paid", "invoice.void"),
    ("issue.opened", "issue.reopened"),
    ("order.updated", "order.deleted"),
    ("order.event1", "order.event22"),
    ("order.paid", "order.payed.late"),
    ("orders.paid", "order.payed"),
    ("order.past", "order.pale"),
    ("same", "same"),
]


def test_two_words_are_no_respelling(subtests: pytest.Subtests) -> None:
    for word, other in NO_RESPELLINGS:
        with subtests.test(word=word, other=other):
            assert not is_respelling(word, other)
            assert not is_respelling(other, word)
