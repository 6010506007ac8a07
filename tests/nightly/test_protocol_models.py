"""The models of the protocols hold, and each of their rules is needed."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path

import msgspec
import pytest
from _pytest.mark import ParameterSet
from click.testing import CliRunner

from prove.models import effect_calls, inline, reclaim, versions
from prove.models.__main__ import main
from prove.models.catalogue import PROTOCOLS, Configuration, ModelledProtocol
from prove.models.check import Holding, check_models, exceed, hold, name_of, remove
from prove.models.effect_calls import Limit, Policy
from prove.models.effect_state import NEVER, JobStatus, State, Status
from prove.models.search import Model, search
from prove.verdict import Verdict

PAGE = Path(__file__).parents[2] / "docs" / "proof.md"

HARM = {
    "the effect is applied twice": """
        intent-first withdraw-own-intent start-over-closed start-is-atomic pending-waits
        unknown-waits send-in-time deadline-from-before clock-runs exception-is-unknown
        refusal-from-latest refusal-keeps-doubt reconcile-is-atomic deadline-in-window
        window-from-first cancel-keeps-deadline cancel-keeps-number answer-after-deadline
        answer-names-call
        """,
    "a call starts for a job that is over": "intent-is-fenced reconcile-is-fenced",
    "a stored success is taken back": "unknown-over-pending refusal-over-open",
    "a known success is not stored": "outcome-unfenced outcome-by-itself success-from-any-call",
    "a job is done, and the outcome of its call is unknown": """
        done-needs-outcome done-needs-outcome-of-others
        """,
    "a cancelled job is done": "cancel-revokes",
    "the event is processed twice": "commit-if-not-done",
    "a cancelled event is processed": "commit-if-not-cancelled",
    "two requests run the handler at once": "one-at-a-time",
    "no connection is free, because a waiting request holds one": "wait-without-connection",
    "a request waits without end": "wait-in-bounds",
    "the handler of a done event runs again": "read-under-lock",
    "the sender got 200, and the event is not processed": """
        done-means-done waiters-read respond-after-commit unknown-is-503
        """,
    "a done event is failed again": "failure-keeps-status",
    "an older event overwrites a newer one": "watermark-is-atomic watermark-stays ties-by-event-id",
    "an event ends stale, and no newer one was applied": "watermark-in-transaction stale-if-less",
    "an outside call is made for a stale event": "checked-at-start",
    "the call of an older event is applied last": "key-waits-for-calls failed-head-holds",
    "a worker that holds its lock loses its jobs": "reclaim-under-lock",
    "a worker that lives loses its jobs": """
        grace mark-is-cleared number-is-withdrawn session-is-not-lent
        """,
    "a job is counted out, and its worker lives": "count-only-the-dead",
    "the poison job kills without limit": "started-are-marked start-in-order",
    "an innocent job is charged with an attempt": "solo-is-alone charge-only-solo",
    "on_failed commits twice for one failure": "commit-together end-is-fenced",
    "a job fails without on_failed, and does not say so": "left-queued",
    "a job kills without limit": "second-death-fails",
    "a job that an operator queued fails without its handler": """
        mark-is-stored mark-needs-attempts
        """,
}
"""The rules that prevent a harm. A trace that does another one shows a fault of the model."""


@cache
def held(configuration: Configuration) -> Holding:
    return hold(configuration)


def configurations() -> list[ParameterSet]:
    return [
        pytest.param(configuration, id=f"{name}: {configuration}")
        for name, protocol in PROTOCOLS.items()
        for configuration in protocol.short
    ]


def shown(kind: str) -> list[ParameterSet]:
    return [
        pytest.param(entry, configuration, id=f"{name}: {name_of(entry)}")
        for name, protocol in PROTOCOLS.items()
        for entry, configuration in getattr(protocol, kind).items()
    ]


@pytest.mark.parametrize("configuration", configurations())
def test_a_model_holds_with_all_its_rules(configuration: Configuration) -> None:
    found = held(configuration).search
    assert found.is_complete, str(found)


@pytest.mark.parametrize(("rule", "configuration"), shown("rules"))
def test_a_model_does_not_hold_without_one_of_its_rules(
    rule: StrEnum, configuration: Configuration
) -> None:
    found = remove(rule, configuration).search
    assert found.violation, f"the rule is not needed: {rule}"
    assert name_of(rule) in HARM[found.violation].split(), f"not what the rule prevents: {found}"


@pytest.mark.parametrize(("rule", "configuration"), shown("rules"))
def test_the_model_that_shows_a_rule_holds_with_it(
    rule: StrEnum, configuration: Configuration
) -> None:
    assert held(configuration).is_green, rule


@pytest.mark.parametrize(("limit", "configuration"), shown("limits"))
def test_a_model_does_not_hold_beyond_its_limits(
    limit: StrEnum, configuration: Configuration
) -> None:
    assert exceed(limit, configuration).search.violation, f"no limit: {limit}"


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("effect_calls", effect_calls.Rule),
        ("inline", inline.Rule),
        ("versions", versions.Rule),
        ("reclaim", reclaim.Rule),
    ],
)
def test_every_rule_is_shown(name: str, rules: type[StrEnum]) -> None:
    assert set(rules) == set(PROTOCOLS[name].rules)


def test_every_limit_is_shown() -> None:
    limits = {*effect_calls.Limit, *versions.Limit, *reclaim.Limit}
    assert limits == {limit for protocol in PROTOCOLS.values() for limit in protocol.limits}


# A model in which nothing happens would hold as well.


class Looking:
    """A model whose violation is any state that the test looks for."""

    def __init__(self, model: Model[State], is_wanted: Callable[[State], bool]) -> None:
        self._is_wanted = is_wanted
        self.initial, self.steps = model.initial, model.steps

    def violation(self, state: State) -> str:
        return "reached" if self._is_wanted(state) else ""


def all_done(state: State, call_no: int) -> bool:
    is_done = all(job.status is JobStatus.DONE for job in state.jobs)
    return is_done and (state.row.status, state.row.call_no) == (Status.SUCCEEDED, call_no)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("call_no", [1, 2])
def test_a_call_succeeds_at_once_or_when_it_is_repeated(policy: Policy, call_no: int) -> None:
    model = effect_calls.Configuration(policy).model()
    assert search(Looking(model, lambda state: all_done(state, call_no))).violation


def test_two_jobs_share_the_result_of_one_call() -> None:
    model = effect_calls.Configuration(Policy.PERSON, jobs=2, max_time=0, max_calls=1).model()
    assert search(Looking(model, lambda state: all_done(state, 1))).violation


@pytest.mark.parametrize("policy", list(Policy))
def test_failed_means_that_nothing_was_applied(policy: Policy) -> None:
    model = effect_calls.Configuration(policy, max_calls=2).model()

    def is_wrong(state: State) -> bool:
        return state.row.status is Status.FAILED and state.applied_at != NEVER

    assert search(Looking(model, is_wrong)).is_complete


# What only the other side can close.


@pytest.mark.parametrize("limit", [Limit.FROZEN_BEFORE_SEND, Limit.APPLIED_LATE])
def test_a_key_that_is_honoured_for_ever_closes_what_no_rule_covers(limit: Limit) -> None:
    honoured = effect_calls.Configuration(Policy.RETRY_SAFE, window=9, max_time=2, max_calls=2)
    assert search(honoured.model([], [limit])).is_complete
    forgotten = effect_calls.Configuration(Policy.RETRY_SAFE, window=2, max_time=2, max_calls=2)
    assert search(forgotten.model([], [limit])).violation == "the effect is applied twice"


# The search.


class Counter:
    """A model that counts by one or two, and must not reach seven."""

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[tuple[str, int]]:
        for step in (1, 2):
            if state + step < 10:
                yield f"add {step}", state + step

    def violation(self, state: int) -> str:
        return "seven" if state == 7 else ""


def test_the_search_finds_the_shortest_trace() -> None:
    found = search(Counter())
    assert (found.violation, len(found.trace)) == ("seven", 4)
    assert str(found) == "add 1; add 2; add 2; add 2: seven"


def test_the_search_ends_when_every_state_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "violation", lambda self, state: "")
    found = search(Counter())
    assert (found.is_complete, found.states) == (True, 10)
    assert str(found) == "holds in all 10 states"


def test_the_search_says_that_it_was_given_up() -> None:
    found = search(Counter(), max_states=3)
    assert not found.is_complete
    assert str(found).startswith("given up after")


# The report.


def test_a_rule_that_is_not_needed_is_a_finding() -> None:
    alone = inline.Configuration(1)
    protocol = ModelledProtocol("", {inline.Rule.ONE_AT_A_TIME: alone}, (alone,), ())
    result = check_models(is_long=False, protocols={"inline": protocol})
    assert not result.is_green
    (finding,) = result.protocols["inline"].findings()
    assert finding.startswith("no harm shows the rule one-at-a-time: holds in all")
    verdict = Verdict(
        seed=1,
        form="short",
        sabotage="",
        stage="models",
        seconds=0.1,
        results=[],
        requirements=[],
        models=result,
    )
    assert not verdict.is_green
    assert [finding] == verdict.as_json()["models"]["inline"]["findings"]


def test_a_search_that_was_given_up_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prove.models.check.search", lambda model: search(model, max_states=3))
    alone = inline.Configuration(1)
    result = check_models(is_long=False, protocols={"i": ModelledProtocol("", {}, (alone,), ())})
    assert not result.is_green


def test_the_command_prints_the_trace_without_a_rule() -> None:
    printed = CliRunner().invoke(main, ["effect_calls", "--without", "INTENT_IS_FENCED"])
    assert printed.exit_code == 0
    assert [line.strip() for line in printed.output.splitlines()[-4:]] == [
        "1. W1 claims the job",
        "2. an operator cancels the job",
        "3. W1 commits its intent",
        "a call starts for a job that is over",
    ]


def test_the_command_prints_json() -> None:
    printed = CliRunner().invoke(main, ["inline", "--without", "unknown-is-503", "--json"])
    assert msgspec.json.decode(printed.output)["search"]["trace"][-1] == "A responds processed"
    printed = CliRunner().invoke(main, ["reclaim", "--json"])
    assert msgspec.json.decode(printed.output)["reclaim"]["findings"] == []


def test_the_command_names_the_rules_if_one_is_misspelled() -> None:
    printed = CliRunner().invoke(main, ["inline", "--without", "x"])
    assert printed.exit_code == 2
    assert "one-at-a-time" in printed.output


# The page.


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_the_page_has_the_rules_and_states_of_a_model(name: str) -> None:
    protocol = PROTOCOLS[name]
    states = sum(held(configuration).search.states for configuration in protocol.short)
    row = f"| `{name}` | {len(protocol.rules)} | {len(protocol.limits)} | {states:,} |"
    assert row in PAGE.read_text()


def test_the_page_shows_a_trace_as_the_command_prints_it() -> None:
    printed = CliRunner().invoke(main, ["effect_calls", "--without", "pending-waits"])
    assert printed.output in PAGE.read_text()
