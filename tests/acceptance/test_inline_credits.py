"""The inline example, run by the real command, responds with the outcome of its handler."""

from support.database import RawDatabase
from support.processes import INLINE_CREDITS, Serve
from tests.inline_sources import hookmesh_webhook
from tests.integration.running import SignedWebhook


def send(service: Serve, webhook: SignedWebhook) -> tuple[int, object]:
    """Send a webhook, and return the status and the body of the response."""
    response = service.http.post(
        "/webhooks/hookmesh", content=webhook.body, headers=webhook.headers
    )
    return response.status_code, response.json()


def test_the_sender_learns_whether_the_credits_were_booked(
    database_url: str, raw_db: RawDatabase
) -> None:
    paid = hookmesh_webhook(customer="ann", credits=5)
    empty = hookmesh_webhook("evt_2", customer="ann", credits=0)
    with Serve(INLINE_CREDITS, database_url, forked=True) as service:
        assert send(service, paid) == (200, {"status": "processed", "event_id": "evt_1"})
        assert send(service, paid) == (200, {"status": "already_processed", "event_id": "evt_1"})
        assert send(service, empty) == (
            500,
            {"error": "Processing failed", "message": "an order must have credits"},
        )
        assert [job["failure_type"] for job in service.items("jobs")] == ["inline", None]
    assert raw_db.rows("SELECT customer, credits FROM accounts") == [("ann", 5)]
