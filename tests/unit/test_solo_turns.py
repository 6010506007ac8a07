"""Jobs that must run alone and all others take turns."""

from onceward.work.claiming.scheduler import STUCK_SECONDS, ClaimPlan
from onceward.work.claiming.solo_turns import MAX_TURN_SECONDS, TURN_SECONDS, SoloTurns
from tests.scheduling import (
    POLL_SECONDS,
    START,
    add,
    make_claim,
    make_lease,
    make_scheduler,
    observe,
    one_run,
    plan_of,
    push,
    settle,
    started,
)

SLOW_JOB_SECONDS = 10.0

# The turns.


def waiting_turns() -> SoloTurns:
    turns = SoloTurns()
    turns.note_waiting(is_waiting=True)
    return turns


def attempts(turns: SoloTurns, until: float) -> list[tuple[bool, float]]:
    """Return the kinds of the turns and their lengths, if the process never becomes empty."""
    lengths: list[tuple[bool, float]] = []
    began = now = START
    kind = turns.is_solo(now)
    while now < until:
        now += TURN_SECONDS / 4
        if turns.is_solo(now) is not kind:
            lengths.append((kind, now - began))
            kind, began = not kind, now
    return lengths


def test_there_are_no_turns_while_no_solo_job_waits() -> None:
    turns = SoloTurns()
    assert not turns.is_solo(START)
    turns.note_waiting(is_waiting=True)
    assert turns.is_solo(START), "the first turn begins at once"
    turns.note_waiting(is_waiting=False)
    assert not turns.is_solo(START)


def test_an_attempt_that_fails_is_followed_by_one_that_takes_twice_as_long() -> None:
    lengths = attempts(waiting_turns(), until=START + 30.0)
    assert lengths == [
        (True, 1.0), (False, 1.0), (True, 2.0), (False, 2.0),
        (True, 4.0), (False, 4.0), (True, 8.0), (False, 8.0),
    ]  # fmt: skip


def test_an_attempt_never_takes_longer_than_the_longest_turn() -> None:
    lengths = attempts(waiting_turns(), until=START + 3000.0)
    assert max(length for _, length in lengths) == MAX_TURN_SECONDS
    assert [length for _, length in lengths[-2:]] == [MAX_TURN_SECONDS] * 2


def test_the_turn_of_solo_jobs_lasts_a_second_from_the_first_one_on() -> None:
    turns = waiting_turns()
    assert turns.is_solo(START)
    turns.note_solo_claim(START + 0.9, found=True)
    turns.note_solo_claim(START + 1.5, found=True)
    assert turns.is_solo(START + 1.8)
    assert not turns.is_solo(START + 1.9)
    assert not turns.is_solo(START + 2.8)
    assert turns.is_solo(START + 2.9), "the others had a second too"


def test_after_an_attempt_that_succeeded_late_turns_are_short_again() -> None:
    turns = waiting_turns()
    attempts(turns, until=START + 14.0)
    assert turns.is_solo(START + 15.0), "the attempt of eight seconds"
    turns.note_solo_claim(START + 20.0, found=True)
    assert not turns.is_solo(START + 21.0)
    assert turns.is_solo(START + 22.0)
    assert not turns.is_solo(START + 23.0)


def test_a_solo_job_that_waits_later_does_not_wait_for_the_turn_of_an_earlier_one() -> None:
    turns = waiting_turns()
    attempts(turns, until=START + 30.0)
    turns.note_waiting(is_waiting=False)
    assert not turns.is_solo(START + 31.0)
    turns.note_waiting(is_waiting=True)
    assert turns.is_solo(START + 32.0)
    assert not turns.is_solo(START + 33.0), "the attempt is a first one"


def test_the_others_lose_the_rest_of_their_turn_when_none_of_them_is_left() -> None:
    turns = waiting_turns()
    turns.is_solo(START)
    turns.note_solo_claim(START, found=True)
    assert not turns.is_solo(START + 1.0)
    turns.note_idle()
    assert turns.is_solo(START + 1.1)
    turns.note_idle()
    assert turns.is_solo(START + 1.2), "only their own turn"


def test_a_claim_in_vain_ends_the_turn_and_leaves_the_others_theirs() -> None:
    turns = waiting_turns()
    assert turns.is_solo(START)
    turns.note_solo_claim(START, found=False)
    assert not turns.is_solo(START)
    turns.note_idle()
    assert not turns.is_solo(START + 0.9)
    assert turns.is_solo(START + 1.0)


def test_a_claim_in_vain_counts_until_the_next_attempt() -> None:
    turns = waiting_turns()
    turns.is_solo(START)
    turns.note_solo_claim(START, found=False)
    assert not turns.is_solo(START)
    assert turns.is_solo(START + 1.0)
    assert not turns.is_solo(START + 2.0), "the process did not become empty"
    turns.note_idle()
    assert turns.is_solo(START + 2.0)


# The claims.


def test_a_solo_job_is_claimed_only_when_nothing_else_is_held() -> None:
    scheduler = make_scheduler(workers=4)
    add(scheduler, make_lease(1), solo_waiting=True)
    run = one_run(scheduler)
    assert scheduler.next_claim(START) is None
    settle(scheduler, run)
    assert plan_of(scheduler) == ClaimPlan({"single": 1}, 1, solo=True)


def test_a_solo_job_that_waits_beside_nothing_is_claimed_at_once() -> None:
    scheduler = make_scheduler(workers=4)
    assert add(scheduler, None, solo_waiting=True) is None
    assert plan_of(scheduler).solo


def test_nothing_is_claimed_or_started_while_a_solo_job_is_held() -> None:
    scheduler = make_scheduler(workers=4)
    add(scheduler, None, solo_waiting=True)
    assert add(scheduler, make_lease(1), solo_waiting=True) is None
    assert scheduler.next_claim(START) is None, "it has not started"
    run = one_run(scheduler)
    assert scheduler.next_claim(START) is None
    assert scheduler.next_claim(START + 100.0, freed={"single"}) is None
    settle(scheduler, run)
    assert scheduler.next_claim(START) is not None


def test_a_solo_job_never_shares_a_transaction() -> None:
    scheduler = make_scheduler("shared")
    add(scheduler, None, solo_waiting=True)
    add(scheduler, make_lease(1, "shared"))
    assert not one_run(scheduler).is_batch


def test_solo_jobs_and_others_are_claimed_for_a_second_each() -> None:
    scheduler = make_scheduler()
    kinds = []
    for tick in range(16):
        now = START + tick / 4
        plan = plan_of(scheduler, now)
        kinds.append("S" if plan.solo else "o")
        scheduler.add(plan, make_claim(make_lease(1), solo_waiting=True), now)
        settle(scheduler, one_run(scheduler, now))
    assert "".join(kinds) == "oSSSSooooSSSSooo"


def test_a_solo_job_that_another_worker_took_blocks_nothing() -> None:
    scheduler = make_scheduler(workers=2)
    ordinary = plan_of(scheduler)
    add(scheduler, None, solo_waiting=True)
    assert add(scheduler, None) is None, "a solo claim does not look for other jobs"
    assert plan_of(scheduler) == ordinary


def test_a_solo_job_that_cannot_be_claimed_is_tried_once_in_a_turn() -> None:
    scheduler = make_scheduler(workers=2)
    now, kinds = START, []
    while now < START + 5.0:
        plan = plan_of(scheduler, now)
        kinds.append(plan.solo)
        now += add(scheduler, None, now, solo_waiting=True) or 0.0
        assert len(kinds) < 20, "busy loop"
    assert sum(kinds) == 5


def test_a_solo_job_does_not_wait_for_the_turn_of_others_that_have_no_jobs() -> None:
    scheduler = make_scheduler(workers=2)
    add(scheduler, None, solo_waiting=True)
    add(scheduler, make_lease(1), solo_waiting=True)
    settle(scheduler, one_run(scheduler), seconds=TURN_SECONDS)
    assert not plan_of(scheduler, START + TURN_SECONDS).solo
    assert add(scheduler, None, START + TURN_SECONDS, solo_waiting=True) is None
    assert plan_of(scheduler, START + TURN_SECONDS).solo


def test_the_pause_ends_with_the_turn() -> None:
    scheduler = make_scheduler(workers=2)
    add(scheduler, None, solo_waiting=True)
    add(scheduler, None, solo_waiting=True)
    assert add(scheduler, None, solo_waiting=True) == TURN_SECONDS < POLL_SECONDS
    assert add(scheduler, None, solo_waiting=True, next_due_seconds=0.2) == 0.2


# Beside long jobs.


def test_quick_handlers_go_on_while_a_solo_job_waits_for_slow_ones() -> None:
    scheduler = make_scheduler("slow", "quick", workers=8)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    observe(scheduler, "quick", 0.1)
    add(scheduler, make_lease(2, "slow"), solo_waiting=True)
    slow = started(scheduler)
    wanted = plan_of(scheduler).wanted
    assert (wanted["slow"], wanted["quick"] > 0) == (0, True)
    push(scheduler, make_lease(1, "quick"), solo_waiting=True)
    quick = one_run(scheduler)
    settle(scheduler, *slow, seconds=SLOW_JOB_SECONDS)
    assert scheduler.next_claim(START) is None, "the process is empty soon"
    settle(scheduler, quick)
    assert plan_of(scheduler).solo


def test_quick_handlers_go_on_while_a_solo_job_waits_for_a_paused_handler() -> None:
    scheduler = make_scheduler("slow", "quick", workers=8)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    add(scheduler, make_lease(2, "slow"), solo_waiting=True)
    started(scheduler)
    assert plan_of(scheduler, without={"slow"}).wanted == {"quick": 7}


def test_slow_handlers_go_on_after_an_attempt_of_a_second() -> None:
    scheduler = make_scheduler("slow", "quick", workers=8)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    add(scheduler, make_lease(2, "slow"), solo_waiting=True)
    started(scheduler)
    wanted = [plan_of(scheduler, START + seconds).wanted["slow"] for seconds in (0, 0.9, 1, 1.9, 2)]
    assert wanted == [0, 0, 5, 5, 0]


def test_a_first_long_job_keeps_the_others_waiting_for_a_second() -> None:
    scheduler = make_scheduler("new", "quick", workers=8)
    observe(scheduler, "quick", 0.1)
    add(scheduler, make_lease(1, "new"), solo_waiting=True)
    one_run(scheduler)
    assert scheduler.next_claim(START) is None
    assert scheduler.next_claim(START + 0.9) is None
    assert plan_of(scheduler, START + TURN_SECONDS).wanted["quick"] > 0
    later = START + 2 * TURN_SECONDS + STUCK_SECONDS
    assert plan_of(scheduler, later).wanted["quick"] > 0, "now the job is known to be slow"


def test_an_attempt_goes_on_although_no_quick_job_is_due() -> None:
    scheduler = make_scheduler("slow", "quick", workers=8)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    add(scheduler, make_lease(2, "slow"), solo_waiting=True)
    first, second = started(scheduler)
    for tick in range(4):
        now = START + tick / 4
        assert plan_of(scheduler, now).wanted["slow"] == 0
        add(scheduler, None, now, solo_waiting=True)
    settle(scheduler, first, second, seconds=SLOW_JOB_SECONDS)
    assert plan_of(scheduler, START + 0.9).solo


def test_the_claims_of_an_attempt_include_every_handler() -> None:
    """A claim reports waiting solo jobs of the handlers that it names."""
    scheduler = make_scheduler("slow", "quick", workers=8)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    add(scheduler, make_lease(2, "slow"), solo_waiting=True)
    started(scheduler)
    assert set(plan_of(scheduler).wanted) == {"slow", "quick"}


def test_the_next_job_of_a_slow_key_waits_for_the_solo_job() -> None:
    scheduler = make_scheduler("slow", "quick", workers=8)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    push(scheduler, make_lease(2, "slow"), make_lease(8, "quick"), solo_waiting=True)
    started(scheduler)
    assert scheduler.next_claim(START) is None, "enough quick jobs are held"
    assert plan_of(scheduler, freed={"slow"}).wanted == {"slow": 0, "quick": 0}
    assert plan_of(scheduler, freed={"quick"}).wanted == {"slow": 0, "quick": 1}
