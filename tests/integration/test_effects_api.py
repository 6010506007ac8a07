"""The admin API of outside effects: the list, and a person's answer about an unknown outcome."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from onceward import EffectNotApplied, Effects, Event, Inbox
from onceward.model.effects import MAX_RESULT_BYTES
from support.postgres import Cluster
from support.processes import Item, eventually
from tests.integration.conftest import Serve
from tests.integration.running import RunningInbox

ACTION = {"actor": " ann ", "reason": " found in the dashboard "}
HAPPENED = {**ACTION, "outcome": "happened"}
DID_NOT_HAPPEN = {**ACTION, "outcome": "did_not_happen", "call_no": 1}
EFFECT = (
    "id idempotency_key job_id reference status function call_no deadline_at error_message "
    "created_at updated_at"
)
AUDIT = "id job_id subject action actor authenticated_as reason created_at"
RESOLVE = "/admin/effects/1/resolve"


class Bank:
    """Another system. It loses the answer of the first call of each key."""

    def __init__(self, url: str) -> None:
        self.calls: list[str] = []
        self.refused: set[str] = set()
        """Keys whose calls are refused."""
        self.returned: dict[str, object] = {}
        """What `effects.call` returned to the handler, by event."""
        self.inbox = Inbox(url, poll_seconds=0.2, retry_base_seconds=0.01, retry_max_seconds=0.02)

        @self.inbox.effect(timeout_seconds=60)
        async def charge(*, idempotency_key: str) -> str:
            self.calls.append(idempotency_key)
            if idempotency_key in self.refused:
                raise EffectNotApplied("closed")
            if self.calls.count(idempotency_key) == 1:
                raise ConnectionResetError("lost")
            return "charged"

        @self.inbox.on("order.placed", max_attempts=1)
        async def bill(event: Event[Any], effects: Effects) -> None:
            key = event.payload.get("key", f"charge:{event.id}")
            self.returned[event.id] = await effects.call(key, charge)

        @self.inbox.on("order.marked")
        async def mark(event: Event[Any], effects: Effects) -> None:
            await effects.once(f"mark:{event.id}")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def bank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """Return a bank whose inbox is on each store."""
    if request.param == "sqlite":
        return Bank(f"sqlite:///{tmp_path_factory.mktemp('effects') / 'onceward.db'}")
    cluster: Cluster = request.getfixturevalue("postgres_cluster")
    return Bank(cluster.create_database(request.getfixturevalue("postgres_template")))


@pytest.fixture(scope="module")
def service(bank: Bank) -> Iterator[RunningInbox]:
    """Run the inbox with its worker; each test uses its own events."""
    running = RunningInbox(bank.inbox, dev=True)
    yield running
    running.close()


def lost_call(service: RunningInbox, event_id: str, **more: Any) -> Item:
    """Let a job fail because the answer of its call is lost; return the effect."""
    assert service.post(event_id, "order.placed", payload={}, **more).status_code == 202
    job = service.settled_job(event_id)
    assert (job["status"], job["failure_type"]) == ("failed", "unknown_outcome")
    return only_effect(service, event_id)


def expired_call(service: RunningInbox, event_id: str, **more: Any) -> Item:
    """Lose the answer of a call, and let its deadline pass."""
    effect = lost_call(service, event_id, **more)
    pass_deadline(service, effect)
    return effect


def pass_deadline(service: RunningInbox, effect: Item) -> None:
    past = service.raw_db.past
    service.raw_db.rows(
        f"UPDATE onceward.effects SET deadline_at = {past} WHERE id = {effect['id']}"  # noqa: S608 - the test's own values
    )


def only_effect(service: RunningInbox, event_id: str) -> Item:
    (effect,) = service.items("effects", event_id=event_id)
    return effect


def resolve(service: RunningInbox, effect: Item | str, body: Any) -> httpx.Response:
    effect_id = effect if isinstance(effect, str) else effect["id"]
    return service.http.post(f"/admin/effects/{effect_id}/resolve", json=body)


def wait_until_done(service: RunningInbox, event_id: str) -> None:
    assert eventually(lambda: service.items("jobs", event_id=event_id, status="done"), "done")


# Answers.


def test_an_effect_that_happened_returns_the_result_and_is_audited(
    service: RunningInbox, bank: Bank
) -> None:
    effect = expired_call(service, "happened")
    response = resolve(service, effect, {**HAPPENED, "result": {"receipt": "ch_1"}})
    assert response.status_code == 200, response.text
    result = response.json()
    entry = result.pop("audit")
    assert result == {
        "ok": True,
        "id": effect["id"],
        "status": "succeeded",
        "requeued": [effect["job_id"]],
    }
    assert set(entry) == set(AUDIT.split())
    assert (entry["action"], entry["subject"], entry["job_id"]) == (
        "resolve_happened",
        f"effect:{effect['id']}",
        None,
    )
    assert (entry["actor"], entry["reason"]) == ("ann", "found in the dashboard")
    assert entry["authenticated_as"] == "dev"
    assert service.items("audit", subject=f"effect:{effect['id']}") == [entry]
    (requeue,) = service.items("audit", event_id="happened")
    assert (requeue["action"], requeue["subject"], requeue["job_id"]) == (
        "manual_requeue",
        f"job:{effect['job_id']}",
        effect["job_id"],
    )
    for field in ("actor", "reason", "authenticated_as"):
        assert requeue[field] == entry[field]
    wait_until_done(service, "happened")
    assert bank.returned["happened"] == {"receipt": "ch_1"}
    assert bank.calls.count("charge:happened") == 1
    after = only_effect(service, "happened")
    assert (after["status"], after["call_no"], after["error_message"]) == ("succeeded", 1, None)


def test_an_effect_that_did_not_happen_is_called_again(service: RunningInbox, bank: Bank) -> None:
    effect = expired_call(service, "did-not")
    result = resolve(service, effect, DID_NOT_HAPPEN).json()
    assert (result["status"], result["requeued"]) == ("failed", [effect["job_id"]])
    assert result["audit"]["action"] == "resolve_did_not_happen"
    wait_until_done(service, "did-not")
    assert bank.returned["did-not"] == "charged"
    after = only_effect(service, "did-not")
    assert (after["status"], after["call_no"]) == ("succeeded", 2)


RESULTS: list[tuple[str, dict[str, Any], object]] = [
    ("absent", {}, None),
    ("null", {"result": None}, None),
    ("zero", {"result": 0}, 0),
    ("list", {"result": [1, {"ü": None}], "call_no": 7}, [1, {"ü": None}]),
    ("longest", {"result": "x" * (MAX_RESULT_BYTES - 2)}, "x" * (MAX_RESULT_BYTES - 2)),
]


def test_the_call_returns_the_answers_result(
    service: RunningInbox, bank: Bank, subtests: pytest.Subtests
) -> None:
    for name, body, returned in RESULTS:
        with subtests.test(name):
            effect = expired_call(service, f"result-{name}")
            response = resolve(service, effect, {**HAPPENED, **body})
            assert response.status_code == 200, response.text
            wait_until_done(service, f"result-{name}")
            assert bank.returned[f"result-{name}"] == returned


def test_a_result_is_stored_as_a_call_would(service: RunningInbox) -> None:
    effect = expired_call(service, "spaces")
    content = json.dumps({**HAPPENED, "result": {"n": [1, 2]}}, indent=4)
    response = service.http.post(
        f"/admin/effects/{effect['id']}/resolve",
        content=content,
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 200, response.text
    stored = service.raw_db.value(
        f"SELECT result FROM onceward.effects WHERE id = {effect['id']}"  # noqa: S608 - the test's own values
    )
    assert stored == '{"n":[1,2]}'


def test_every_job_that_waits_for_the_effect_is_queued_again(
    service: RunningInbox, bank: Bank
) -> None:
    effect = expired_call(service, "first-of-two")
    payload = {"key": "charge:first-of-two"}
    assert service.post("second-of-two", "order.placed", payload=payload).status_code == 202
    second = service.settled_job("second-of-two")
    assert second["failure_type"] == "unknown_outcome"
    result = resolve(service, effect, {**HAPPENED, "result": 5}).json()
    assert result["requeued"] == [effect["job_id"], second["id"]]
    for event_id in ("first-of-two", "second-of-two"):
        wait_until_done(service, event_id)
        assert bank.returned[event_id] == 5


def test_requeueing_the_job_does_not_repeat_the_call(service: RunningInbox, bank: Bank) -> None:
    effect = expired_call(service, "requeued")
    path = f"/admin/jobs/{effect['job_id']}/requeue"
    assert service.http.post(path, json=ACTION).status_code == 200
    job = service.settled_job("requeued")
    assert (job["failure_type"], job["attempts"]) == ("unknown_outcome", 2)
    assert bank.calls.count("charge:requeued") == 1
    assert resolve(service, effect, HAPPENED).json()["requeued"] == [job["id"]]


# Refusals.


def refused(service: RunningInbox, effect: Item, body: Any) -> str:
    """Answer, and return the message of the 409. It leaves no trace."""
    before = service.items("effects"), service.items("audit"), service.items("jobs")
    response = resolve(service, effect, body)
    assert (response.status_code, response.json()["error"]) == (409, "not_in_state")
    assert (service.items("effects"), service.items("audit"), service.items("jobs")) == before
    message: str = response.json()["message"]
    return message


@pytest.mark.parametrize("body", [HAPPENED, DID_NOT_HAPPEN], ids=["happened", "did not"])
def test_an_answer_before_the_deadline_gets_409(service: RunningInbox, body: Any) -> None:
    effect = lost_call(service, f"early-{body['outcome']}")
    assert "may be under way for" in refused(service, effect, body)


def test_an_answer_about_another_call_gets_409(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for call_no in [0, 2, -1, 2**40]:
        with subtests.test(str(call_no)):
            effect = expired_call(service, f"call-no-{call_no}")
            message = refused(service, effect, {**DID_NOT_HAPPEN, "call_no": call_no})
            assert f"its last call is 1, not {call_no}" in message


@pytest.mark.parametrize("body", [HAPPENED, DID_NOT_HAPPEN], ids=["happened", "did not"])
def test_an_answer_about_a_known_success_gets_409(service: RunningInbox, body: Any) -> None:
    event_id = f"known-{body['outcome']}"
    effect = expired_call(service, event_id)
    assert resolve(service, effect, HAPPENED).status_code == 200
    wait_until_done(service, event_id)
    assert "has already succeeded" in refused(service, effect, body)


def test_a_second_answer_that_it_did_not_happen_gets_409(service: RunningInbox, bank: Bank) -> None:
    bank.refused.add("charge:twice")
    assert service.post("twice", "order.placed", payload={}).status_code == 202
    job = service.settled_job("twice")
    assert (job["status"], job["failure_type"]) == ("failed", "exhausted")
    effect = only_effect(service, "twice")
    assert (effect["status"], effect["error_message"]) == ("failed", "closed")
    pass_deadline(service, effect)
    assert "already known not to have happened" in refused(service, effect, DID_NOT_HAPPEN)


def test_a_person_who_knows_better_answers_that_a_refused_call_happened(
    service: RunningInbox, bank: Bank
) -> None:
    bank.refused.add("charge:better")
    assert service.post("better", "order.placed", payload={}).status_code == 202
    job = service.settled_job("better")
    effect = only_effect(service, "better")
    pass_deadline(service, effect)
    result = resolve(service, effect, {**HAPPENED, "result": 1}).json()
    assert (result["status"], result["requeued"]) == ("succeeded", [])  # no job waits for it
    assert service.http.get(f"/admin/jobs/{job['id']}").json()["status"] == "failed"


def test_a_mark_gets_409(service: RunningInbox) -> None:
    assert service.post("mark", "order.marked").status_code == 202
    assert service.settled_job("mark")["status"] == "done"
    message = refused(service, only_effect(service, "mark"), HAPPENED)
    assert "a mark of effects.once" in message


def test_one_of_many_concurrent_answers_succeeds(service: RunningInbox) -> None:
    effect = expired_call(service, "raced")
    with ThreadPoolExecutor(6) as people:
        calls = people.map(lambda _: resolve(service, effect, HAPPENED).status_code, range(6))
        assert sorted(calls) == [200] + [409] * 5
    assert len(service.items("audit", subject=f"effect:{effect['id']}")) == 1
    assert len(service.items("audit", event_id="raced")) == 1


def test_an_unknown_effect_gets_404(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for effect in ["999999999", "0", "x", "-1", "1" * 30, "%20", "1.0"]:
        with subtests.test(effect):
            response = resolve(service, effect, HAPPENED)
            assert (response.status_code, response.json()["error"]) == (404, "not_found")
            assert "effect" in response.json()["message"]


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({}, "outcome must be happened or did_not_happen"),
    ({"outcome": "Happened"}, "outcome must be happened or did_not_happen"),
    ({"outcome": "succeeded"}, "outcome must be happened or did_not_happen"),
    ({"outcome": "did_not_happen"}, "needs the call_no"),
    ({"outcome": "did_not_happen", "call_no": None}, "needs the call_no"),
    ({"outcome": "did_not_happen", "call_no": 1, "result": 5}, "has no result"),
    ({"outcome": "did_not_happen", "call_no": 1, "result": None}, "has no result"),
    (
        {"outcome": "happened", "result": "x" * (MAX_RESULT_BYTES - 1)},
        f"result is {MAX_RESULT_BYTES + 1} bytes long; the limit is {MAX_RESULT_BYTES}",
    ),
]


def test_an_unusable_answer_gets_422(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for body, message in UNUSABLE:
        with subtests.test(
            message, **{name: value for name, value in body.items() if name != "result"}
        ):
            response = resolve(service, "1", {**ACTION, **body})
            assert (response.status_code, response.json()["error"]) == (422, "bad_outcome")
            assert message in response.json()["message"]


def test_a_result_that_no_call_could_store_gets_422(service: RunningInbox) -> None:
    body = b'{"actor": "ann", "reason": "x", "outcome": "happened", "result": %b}'
    for result in (b"1e999", b"9" * 5000, b'"\xff"'):
        response = service.http.post(
            RESOLVE, content=body % result, headers={"content-type": "application/json"}
        )
        assert (response.status_code, response.json()["error"]) == (422, "bad_outcome")


INVALID: dict[str, Callable[[RunningInbox], httpx.Response]] = {
    "no actor": lambda service: resolve(service, "1", {"reason": "x", "outcome": "happened"}),
    "a blank reason": lambda service: resolve(service, "1", {**HAPPENED, "reason": " "}),
    "a NUL": lambda service: resolve(service, "1", {**HAPPENED, "actor": "a\0b"}),
    "a number as outcome": lambda service: resolve(service, "1", {**HAPPENED, "outcome": 1}),
    "a text as call_no": lambda service: resolve(service, "1", {**DID_NOT_HAPPEN, "call_no": "1"}),
    "half a call": lambda service: resolve(service, "1", {**DID_NOT_HAPPEN, "call_no": 1.5}),
    "a list": lambda service: resolve(service, "1", ["x", "y"]),
    "no JSON": lambda service: service.http.post(
        RESOLVE, content=b"{", headers={"content-type": "application/json"}
    ),
    "no body": lambda service: service.http.post(
        RESOLVE, headers={"content-type": "application/json"}
    ),
}


def test_an_answer_needs_an_actor_and_a_reason(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for fault, send in INVALID.items():
        with subtests.test(fault):
            entries = service.items("audit")
            response = send(service)
            assert (response.status_code, response.json()["error"]) == (422, "bad_act")
            assert service.items("audit") == entries


def test_an_answer_needs_post_and_json(service: RunningInbox) -> None:
    wrong = service.http.get(RESOLVE)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert service.http.post(RESOLVE, data=ACTION).status_code == 415


def test_an_answer_needs_a_token(
    sqlite_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", "ann:token-of-ann-0123456789")
    closed = serve(Bank(sqlite_url).inbox, dev=False)
    assert closed.http.get("/admin/effects").status_code == 401
    headers = {"authorization": "Bearer token-of-ann-0123456789"}
    sent = {"event_id": "evt_1", "event_type": "order.placed", "payload": {}}
    assert closed.http.post("/events/ingest", json=sent, headers=headers).status_code == 202

    def effects() -> list[Item]:
        page = closed.http.get("/admin/effects?status=unknown", headers=headers)
        items: list[Item] = page.json()["items"]
        return items

    (effect,) = eventually(effects, "the outcome is unknown")
    pass_deadline(closed, effect)
    path = f"/admin/effects/{effect['id']}/resolve"
    for wrong in ({}, {"authorization": "Bearer another-token-0123456789"}):
        assert closed.http.post(path, json=HAPPENED, headers=wrong).status_code == 401
    assert closed.raw_db.count("onceward.audit") == 0
    response = closed.http.post(path, json=HAPPENED, headers=headers)
    assert response.json()["audit"]["authenticated_as"] == "ann"


# The list.


def test_the_list_shows_what_an_answer_needs(service: RunningInbox) -> None:
    effect = lost_call(service, "listed", reference="order_7")
    assert set(effect) == set(EFFECT.split())
    assert effect["idempotency_key"] == "charge:listed"
    assert (effect["status"], effect["function"], effect["call_no"]) == ("unknown", "charge", 1)
    assert effect["error_message"] == "ConnectionResetError: lost"
    assert effect["created_at"] <= effect["updated_at"] < effect["deadline_at"]
    (job,) = service.items("jobs", event_id="listed")
    assert effect["job_id"] == job["id"]
    assert f"POST /admin/effects/{effect['id']}/resolve" in job["last_error"]


def test_effects_can_be_filtered(service: RunningInbox) -> None:
    effect = lost_call(service, "filtered", reference="order_8")
    assert service.items("effects", reference="order_8") == [effect]
    assert effect in service.items("effects", status="unknown", source="ingest", handler="bill")
    for status in ("pending", "succeeded", "failed"):
        assert effect not in service.items("effects", status=status)
    assert effect not in service.items("effects", handler="mark")
    assert service.items("effects", source="nobody") == []
    assert service.items("effects", event_id="filtered", status="succeeded") == []
    for query in ("status=done", "status=UNKNOWN", "function=charge", "reference="):
        assert service.http.get(f"/admin/effects?{query}").status_code == 422
    page = service.http.get("/admin/effects?limit=1").json()
    assert (page["items"], page["next"]) == ([effect], effect["id"])
