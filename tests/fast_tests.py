"""For each sabotage of the proof, the fast test that fails under it.

The stages of the proof find the same sabotages through real processes and faults. `make nightly`
sees each test red, except for those of `ELSEWHERE`.
"""

from collections.abc import Mapping
from typing import Final

from prove.sabotage import Sabotage

ELSEWHERE: Final = {Sabotage.WEAK_SYNC, Sabotage.NO_TRANSACTION}
"""They change the server's settings, or the handlers of the proof's own app: no code of ours."""

_SETTLE: Final = "conformance/test_settle.py::"
_QUEUE: Final = "conformance/test_queue_order.py::"
_LIMITS: Final = "conformance/test_queue_limits.py::"
_FROZEN: Final = "conformance/test_frozen_database.py::"
_LEDGER: Final = "conformance/test_older_ledger.py::"
_RETENTION: Final = "conformance/test_retention.py::"

FAST_TESTS: Final[Mapping[Sabotage, str]] = {
    Sabotage.EARLY_RESPONSE: "conformance/test_recorder.py::"
    "test_a_request_right_after_another_starts_a_new_writer",
    Sabotage.WEAK_SYNC: "conformance/test_durability.py::"
    "test_a_server_that_does_not_sync_is_refused",
    Sabotage.NO_FENCE: f"{_SETTLE}test_a_worker_whose_job_another_has_claimed_commits_nothing",
    Sabotage.SETTLE_BY_ID: f"{_SETTLE}test_a_worker_whose_job_another_has_settled_commits_nothing",
    Sabotage.NO_UNIQUE_KEY: "conformance/test_record.py::"
    "test_a_batch_may_mix_new_events_duplicates_and_conflicts",
    Sabotage.NO_TRANSACTION: f"{_SETTLE}test_a_crash_between_done_and_commit_leaves_neither",
    Sabotage.WORKER_CLOCK: "conformance/test_reclaim.py::test_a_live_lease_is_not_reclaimed",
    Sabotage.DELETE_IDS: f"{_RETENTION}test_a_service_does_the_maintenance_when_it_starts",
    Sabotage.ALWAYS_READY: f"{_FROZEN}test_a_store_with_a_stuck_connection_is_not_ready",
    Sabotage.NO_TIME_LIMIT: f"{_FROZEN}test_a_read_ends_while_the_host_is_frozen",
    Sabotage.LOCAL_COMMIT: "conformance/test_synchronous_standby.py::"
    "test_an_unconfirmed_commit_is_an_unknown_outcome",
    Sabotage.MEMORY_OF_IDS: "conformance/test_recorder.py::test_a_lone_request_is_written_at_once",
    Sabotage.STALE_ROUTES: f"{_LEDGER}"
    "test_sources_and_routes_are_registered_again_before_anything_is_recorded",
    Sabotage.SHARED_SESSIONS: "conformance/test_poolers.py::"
    "test_another_mode_is_noticed_after_the_start",
    Sabotage.LEAK_CONNECTIONS: "conformance/test_cancellation.py::"
    "test_a_call_cancelled_at_each_await_leaks_nothing",
    Sabotage.IGNORE_FILE: "conformance/test_sqlite_file.py::"
    "test_nothing_is_acknowledged_after_a_file_is_taken_away",
    Sabotage.NO_KEY_CHECK: f"{_QUEUE}test_only_the_first_job_of_a_key_is_leased",
    Sabotage.NO_CAP: f"{_LIMITS}test_no_more_jobs_are_in_flight_than_the_concurrency_allows",
    Sabotage.NO_RATE: f"{_LIMITS}test_a_rate_spreads_the_jobs_over_time",
    Sabotage.IGNORE_PAUSE: f"{_LIMITS}test_jobs_of_a_paused_handler_wait",
    Sabotage.LOST_WAKE_UPS: f"{_QUEUE}test_the_next_job_of_a_key_follows_when_the_first_is_done",
    Sabotage.SLOW_RECLAIM: "conformance/test_presence.py::test_the_grace_is_seconds",
    Sabotage.NO_SHARES: "unit/test_fairness.py::"
    "test_handlers_get_the_same_time_and_not_the_same_number_of_jobs",
    Sabotage.IGNORE_VERSIONS: "integration/test_stale_events.py::"
    "test_a_late_event_is_ignored_and_its_handler_does_not_start",
    Sabotage.BLIND_CALLS: "conformance/test_effect_policies.py::"
    "test_without_a_policy_the_effect_waits_for_a_person",
    Sabotage.LATE_CALLS: "unit/test_clock.py::test_boottime_goes_on_while_the_machine_is_suspended",
    Sabotage.FRESH_IDS: "conformance/test_forwarding.py::"
    "test_a_status_other_than_2xx_is_retried_under_the_same_id",
    Sabotage.DROP_UNARCHIVED: "conformance/test_archived_retention.py::"
    "test_payloads_are_archived_and_then_dropped",
    Sabotage.EARLY_KEYS: "conformance/test_id_cache.py::"
    "test_a_duplicate_of_another_receivers_event_takes_the_cheapest_statement",
    Sabotage.DROP_NEEDED: "conformance/test_payload_retention.py::"
    "test_payloads_that_a_job_needs_are_kept",
    Sabotage.FORGET_STATES: f"{_RETENTION}test_an_event_keeps_its_state_when_its_jobs_are_purged",
    Sabotage.FORGET_IN_BATCH: "conformance/test_event_batches.py::"
    "test_one_call_gets_all_events_in_order_and_all_jobs_are_done",
    Sabotage.EARLY_ON_FAILED: "conformance/test_giving_up.py::test_a_lost_lease_commits_nothing",
    Sabotage.SKIP_UNREAD: "integration/test_undecodable.py::"
    "test_no_handler_runs_for_what_its_filter_or_key_could_not_read",
    Sabotage.IGNORE_FILTERS: "conformance/test_filters.py::test_only_matching_events_get_a_job",
    Sabotage.NO_FLOORS: f"{_LEDGER}test_a_claim_on_a_new_connection_finds_jobs_below_the_floors",
}
