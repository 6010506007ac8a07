"""The pattern that a handler was probably meant to have, for a type that it does not match."""

import pytest

from onceward.model.jobs import Route
from onceward.operate.ignored_watch import intended_pattern

NEAR = [
    ("pull_request", "pull_request.opened", "pull_request.*"),
    ("customer.subscription", "customer.subscription.deleted", "customer.subscription.*"),
    ("invoice.*", "invoice", "invoice"),
    ("issue.opened", "issues.opened", "issues.opened"),
    ("issue.*", "issues.opened", "issues.*"),
    ("issue", "issues.opened", "issues.*"),
    ("user.created", "users.created", "users.created"),
    ("Invoice.Paid", "invoice.paid", "invoice.paid"),
    ("PULL_REQUEST.*", "pull_request.opened", "pull_request.*"),
    ("pull-request.opened", "pull_request.opened", "pull_request.opened"),
    ("invoice_paid", "invoice.paid", "invoice.paid"),
    ("invoice.piad", "invoice.paid", "invoice.paid"),
    ("invioce.*", "invoice.paid", "invoice.*"),
    ("order.paid", "order.payed", "order.payed"),
    ("orders/payed", "orders/paid", "orders/paid"),
    ("orders.create", "orders/create", "orders/create"),
    ("orders.*", "orders/create", "orders/create"),
    ("orders", "orders/create", "orders/create"),
    ("item", "item:added", "item:added"),
]


def test_a_near_pattern_is_corrected(subtests: pytest.Subtests) -> None:
    for pattern, event_type, intended in NEAR:
        with subtests.test(pattern=pattern, event_type=event_type):
            assert not Route(pattern, "github").matches("github", event_type)
            assert intended_pattern(Route(pattern, "github"), "github", event_type) == intended
            assert intended_pattern(Route(pattern), "github", event_type) == intended
            assert Route(intended, "github").matches("github", event_type)


OTHER_TYPES = [
    ("invoice.paid", "invoice.created"),
    ("invoice.paid", "invoice.payment_failed"),
    ("customer.subscription.updated", "customer.subscription.deleted"),
    ("pull_request.opened", "pull_request.reopened"),
    ("pull_request.labeled", "pull_request.unlabeled"),
    ("pull_request.opened", "pull_request_review.submitted"),
    ("payment", "payment_intent.created"),
    ("payment.*", "payment_intent.created"),
    ("order.v1", "order.v2"),
    ("invoice.paid", "invoice.void"),
    ("invoice.paid", "invoice.unpaid"),
    ("ping", "pong"),
    ("push", "star.created"),
    ("invoice", "invoice.*"),
]


def test_another_type_is_no_mistake(subtests: pytest.Subtests) -> None:
    for pattern, event_type in OTHER_TYPES:
        with subtests.test(pattern=pattern, event_type=event_type):
            assert intended_pattern(Route(pattern, "github"), "github", event_type) is None


def test_a_handler_of_another_source_is_not_meant() -> None:
    assert intended_pattern(Route("pull_request", "gitlab"), "github", "pull_request.x") is None


@pytest.mark.parametrize(
    ("source", "type", "matches"),
    [
        ("stripe", "invoice.paid", True),
        ("stripe", "invoice", False),
        ("github", "invoice.paid", False),
    ],
)
def test_a_route_matches_as_in_the_store(source: str, type: str, *, matches: bool) -> None:
    assert Route("invoice.*", "stripe").matches(source, type) is matches
