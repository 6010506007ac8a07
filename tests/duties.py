"""The named statements that only some processes run."""

from onceward.ports import Duty

STATEMENTS = {
    Duty.RECEIVE: """
        accept_conflict add_audit_entry add_first_token add_rejection archives_page audit_page
        await_settlement missing_payload
        cancel count_rejections deliveries_page effects_page events_page failed_attempts
        forget_watermark watermarks_page
        add_routed_job dismiss event_to_route events_in_review handler_to_route job_of_handler
        leave_review routes_of_handlers
        handler_pause handlers_page interrupt_calls job_status jobs_page load_conflict
        load_rejection lock_effect pause_handler pause_source newest_migration receive_rejection
        record_duplicates record_new record_redeliveries rejection_counts rejections_page requeue
        requeue_waiting resolve_effect resume_handler resume_source source_pause sources_page
        store_secret trim_rejections unlease waiting_behind
    """,
    Duty.WORK: """
        add_watermark attach_effects claim end_leases fail_inline first_body ignore inline_event
        load_body load_call load_jobs lock_watermark mark_effect marked_effect next_due postpone
        reclaim record_not_applied record_success record_unknown release remove_worker renew
        renew_worker restart_call set_watermark settle_done settle_error settle_failed
        settle_inline start_call touch_effect wake_keys wanting_handlers watermark withdraw_call
    """,
    None: """
        attempts_range clock deliveries_range delete_secrets effects_range events_range jobs_range
        count_payloads old_events unfinished_jobs payloads_range
        purge_attempts purge_deliveries purge_effects purge_events purge_jobs
        purge_payloads purge_rejections rejections_range unneeded_payloads
        add_archive archive_page archive_position find_event_id has_unarchived
        is_other_event is_same_event restore_event restore_payload restored_weeks
        set_archive_verified start_restore
    """,
}
"""The statements of each duty, and of commands and the owner. All others run in every process."""
