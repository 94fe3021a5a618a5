"""The values of each metric once the thing happens: `test_metrics.py` makes all of it happen."""

from collections.abc import Callable

Samples = dict[str, float]


def is_above_zero(samples: Samples) -> bool:
    return sum(samples.values()) > 0


def require_labels(*labels: str) -> Callable[[Samples], bool]:
    """Return a check that each label value is on some sample that moved."""

    def check(samples: Samples) -> bool:
        moved = [name for name, value in samples.items() if value > 0]
        return all(any(f'"{label}"' in name for name in moved) for label in labels)

    return check


# What each metric must show at some moment of the story below, whatever service shows it.
MOVES: dict[str, Callable[[Samples], bool]] = {
    "build_info": is_above_zero,
    "connections": require_labels("admin"),
    # They must be zero: tests/unit/platform/serving/test_limits.py has some that are refused.
    "connections_refused_total": lambda samples: samples != {},
    "connections_late_total": lambda samples: samples != {},
    "proxy_call_seconds": require_labels("v2", "unrecognised", "one", "ok", "failed"),
    "proxy_calls_in_progress": require_labels("rest"),
    "proxy_captures_total": require_labels("seen", "sampled_out", "dropped", "published"),
    "proxy_captures_dropped_total": require_labels("no_budget"),
    "proxy_events_total": is_above_zero,
    # It must be zero: tests/integration/proxy/test_grpc_limits.py has calls that are refused.
    "proxy_refused_calls_total": lambda samples: samples != {},
    "proxy_unstripped_calls_total": require_labels("no_room"),
    "proxy_incomplete_captures_total": require_labels("request_over_cap"),
    "proxy_captures_queued": is_above_zero,
    "proxy_capture_bytes": is_above_zero,
    "proxy_capture_budget_bytes": is_above_zero,
    "proxy_captures_spooled": is_above_zero,
    "proxy_spool_bytes": is_above_zero,
    "proxy_spool_limit_bytes": is_above_zero,
    "proxy_spool_trouble_total": is_above_zero,
    "proxy_trouble_total": require_labels("object store"),
    "proxy_capture_seconds": require_labels("prepare"),
    "ready": require_labels("postgres", "kafka", "object store"),
    "heartbeat_age_seconds": is_above_zero,
    "ingester_events_total": require_labels("stored", "duplicate", "dead", "parked"),
    "ingester_event_bytes_total": is_above_zero,
    "ingester_dead_letters_total": require_labels("not_json", "blob_missing"),
    "ingester_lag_events": is_above_zero,
    "ingester_lag_seconds": is_above_zero,
    "ingester_oldest_unprocessed_seconds": is_above_zero,
    "ingester_delay_seconds": is_above_zero,
    "ingester_batch_seconds": require_labels("read", "write"),
    "ingester_stage_seconds": require_labels(
        *("decode", "look_up", "fetch", "parse", "prepare"),
        *("transaction", "sort_out", "insert", "set_aside", "books"),
    ),
    "ingester_batch_events": is_above_zero,
    "ingester_halted": is_above_zero,
    "ingester_trouble_total": require_labels("postgres"),
    # It must be zero: tests/e2e/faults/test_rebalances.py freezes an ingester amid a COPY.
    "ingester_stalled_sessions_total": lambda samples: samples != {},
    "ingester_flagged_total": require_labels("metadata_unreadable"),
    "ingester_partitions_assigned": is_above_zero,
    "ingester_retried_total": require_labels("stored"),
    "ingester_reports_total": require_labels("kept", "broken"),
    "books_producers": require_labels("running"),
    # It must be zero: .../index/accounting/test_producer_accounts.py has one that is open.
    "books_open_producers": lambda samples: samples != {},
    "books_events": require_labels("stored", "duplicate", "dead"),
    # It must be zero: tests/integration/operations/test_figures.py breaks the books by hand.
    "books_open_partitions": lambda samples: samples != {},
    # Zero but on an older backup: tests/integration/erasure/ledger/test_services.py restores one.
    "ledger_apart": lambda samples: samples != {},
    "dead_letters_open": is_above_zero,
    "parked_events": is_above_zero,
    "parked_oldest_seconds": is_above_zero,
    "partitions_spans": is_above_zero,
    "partitions_ahead_seconds": is_above_zero,
    "api_requests_total": require_labels("GET", "POST", "/v1/models/{model_id}/inferences/query"),
    "api_request_seconds": is_above_zero,
    "api_requests_in_progress": is_above_zero,
    "api_query_seconds": require_labels("page", "count", "metadata+prediction", "everything"),
    "api_query_timeouts_total": is_above_zero,
    "api_turns_taken": require_labels("query"),
    "api_turns_waiting": require_labels("query"),
    "api_turn_wait_seconds": require_labels("query", "stream"),
    "api_turns_refused_total": require_labels("query", "caller"),
    "api_streams_total": require_labels("complete"),
    "api_streamed_inferences_total": is_above_zero,
    "api_replica_away_total": is_above_zero,
    "api_refused_total": require_labels("unauthorized"),
    "api_issuer_fetches_total": require_labels("failed"),
    "retention_runs_total": require_labels("done"),
    "retention_run_seconds": is_above_zero,
    "retention_step_seconds": require_labels("claim", "delete", "verify", "forget"),
    "retention_erased_total": require_labels("inference"),
    "retention_objects_deleted_total": is_above_zero,
    "retention_bytes_deleted_total": is_above_zero,
    "retention_partitions_dropped_total": is_above_zero,
    "retention_trouble_total": require_labels("postgres", "object_locked"),
    "retention_last_run_timestamp_seconds": is_above_zero,
    "retention_interval_seconds": is_above_zero,
    "retention_leading": is_above_zero,
    "retention_pruned_total": require_labels("audit"),
    "retention_overdue_seconds": is_above_zero,
    # Nothing is held here: tests/integration/retention/test_scheduled_runs.py holds something.
    "retention_holds": lambda samples: samples != {},
    "retention_held": lambda samples: samples != {},
    # Zero within a second: tests/integration/retention/test_scheduled_runs.py holds the chain up.
    "retention_audit_unlinked_seconds": lambda samples: samples != {},
    # No erasure ends here: those of tests/integration/retention/test_certificates.py do.
    "retention_certificates_total": lambda samples: samples != {},
    "retention_certificate_trouble_total": lambda samples: samples != {},
    "retention_uncertified_total": lambda samples: samples != {},
    "retention_reconciliations_total": require_labels("done"),
    # What is found may be nothing: tests/integration/operations/reconcile compares what is apart.
    "retention_reconciliation_found": lambda samples: samples != {},
    "retention_last_reconciliation_timestamp_seconds": is_above_zero,
    "retention_exports_total": require_labels("done"),
    "retention_exported_bytes_total": is_above_zero,
    # It must be zero: tests/integration/retention/test_exports.py has one that waits.
    "retention_exports_waiting": lambda samples: samples != {},
    "retention_exports_unfinished": lambda samples: samples != {},
    "retention_marked": is_above_zero,
    "retention_erasures": require_labels("failed"),
    "retention_oldest_erasure_seconds": is_above_zero,
}
