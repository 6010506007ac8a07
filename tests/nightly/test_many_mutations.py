"""Mutations of signed requests, forty times as many as in the tests of each change."""

from tests.property.test_verify_mutations import reject_mutations


def test_two_hundred_thousand_mutations_cause_only_rejections() -> None:
    reject_mutations(200_000)
