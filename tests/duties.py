"""The named statements that only some processes run."""

from onceward.ports import Duty

STATEMENTS = {
    Duty.RECEIVE: """
        accept_conflict add_audit_entry add_first_token add_rejection audit_page await_settlement
        cancel count_rejections deliveries_page effects_page events_page failed_attempts
        handler_pause handlers_page interrupt_calls job_status jobs_page load_conflict
        load_rejection lock_effect pause_handler pause_source ping receive_rejection
        record_duplicates record_new record_redeliveries rejection_counts rejections_page requeue
        requeue_waiting resolve_effect resume_handler resume_source source_pause sources_page
        store_secret trim_rejections unlease waiting_behind
    """,
    Duty.WORK: """
        add_watermark attach_effects claim end_leases fail_inline first_body ignore inline_event
        load_body load_call load_jobs lock_watermark mark_effect marked_effect next_due postpone
        reclaim record_not_applied record_success record_unknown release remove_worker renew
        renew_worker restart_call set_watermark settle_done settle_error settle_inline start_call
        wake_keys watermark withdraw_call
    """,
    None: "delete_secrets",
}
"""The statements of each duty, and of commands. All others run in every serving process."""
