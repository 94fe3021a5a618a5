"""The samples of each metric once the thing happens: `test_metrics.py` makes all of it happen."""

from typing import Final

Samples = dict[str, float]
MOVES: Final[dict[str, tuple[str, ...]]] = {
    "connections": ("admin",),
    # They must be zero: tests/unit/platform/serving/test_limits.py has some that are refused.
    **dict.fromkeys(("connections_refused_total", "connections_late_total"), ()),
    "proxy_call_seconds": ("v2", "unrecognised", "one", "ok", "failed"),
    "proxy_calls_in_progress": ("rest",),
    "proxy_captures_total": ("seen", "sampled_out", "dropped", "published"),
    "proxy_captures_dropped_total": ("no_budget",),
    # It must be zero: tests/integration/proxy/test_grpc_limits.py has calls that are refused.
    "proxy_refused_calls_total": (),
    # None comes: tests/integration/proxy/test_cloud_events.py has all kinds of them.
    **dict.fromkeys(("proxy_cloud_events_total", "proxy_cloud_events_waiting"), ()),
    "proxy_unstripped_calls_total": ("no_room",),
    "proxy_incomplete_captures_total": ("request_over_cap",),
    "proxy_trouble_total": ("object store",),
    "proxy_capture_seconds": ("prepare",),
    "ready": ("postgres", "kafka", "object store"),
    "ingester_events_total": ("stored", "duplicate", "dead", "parked"),
    "ingester_dead_letters_total": ("not_json", "blob_missing"),
    "ingester_batch_seconds": ("read", "write"),
    "ingester_stage_seconds": (
        *("decode", "look_up", "fetch", "parse", "prepare"),
        *("transaction", "sort_out", "insert", "set_aside", "books"),
    ),
    "ingester_trouble_total": ("postgres",),
    # It must be zero: tests/e2e/faults/test_rebalances.py freezes an ingester amid a COPY.
    "ingester_stalled_sessions_total": (),
    "ingester_flagged_total": ("metadata_unreadable",),
    "ingester_retried_total": ("stored",),
    "ingester_reports_total": ("kept", "broken"),
    "books_producers": ("running",),
    # It must be zero: .../index/accounting/test_producer_accounts.py has one that is open.
    "books_open_producers": (),
    "books_events": ("stored", "duplicate", "dead"),
    # It must be zero: tests/integration/operations/test_figures.py breaks the books by hand.
    "books_open_partitions": (),
    # Zero but on an older backup: tests/integration/erasure/ledger/test_services.py restores one.
    "ledger_apart": (),
    "api_requests_total": ("GET", "POST", "/v1/models/{model_id}/inferences/query"),
    "api_query_seconds": ("page", "count", "metadata+prediction", "everything"),
    "api_turns_taken": ("query",),
    "api_turns_waiting": ("query",),
    "api_turn_wait_seconds": ("query", "stream"),
    "api_turns_refused_total": ("query", "caller"),
    "api_streams_total": ("complete",),
    "api_refused_total": ("unauthorized",),
    "api_issuer_fetches_total": ("failed",),
    "retention_runs_total": ("done",),
    "retention_step_seconds": ("claim", "delete", "verify", "forget"),
    "retention_erased_total": ("inference",),
    "retention_trouble_total": ("postgres", "object_locked"),
    "retention_pruned_total": ("audit",),
    # Nothing is held here: tests/integration/retention/test_scheduled_runs.py holds something.
    **dict.fromkeys(("retention_holds", "retention_held"), ()),
    # Zero within a second: tests/integration/retention/test_scheduled_runs.py holds the chain up.
    "retention_audit_unlinked_seconds": (),
    # No erasure ends here: those of tests/integration/retention/test_certificates.py do.
    "retention_certificates_total": (),
    "retention_certificate_trouble_total": (),
    "retention_uncertified_total": (),
    "retention_reconciliations_total": ("done",),
    # What is found may be nothing: tests/integration/operations/reconcile compares what is apart.
    "retention_reconciliation_found": (),
    "retention_exports_total": ("done",),
    # It must be zero: tests/integration/retention/test_exports.py has one that waits.
    **dict.fromkeys(("retention_exports_waiting", "retention_exports_unfinished"), ()),
    # Nothing is replayed here: tests/e2e/capture/test_replays.py replays something.
    "retention_replayed_total": (),
    "retention_erasures": ("failed",),
    # It must be zero: tests/integration/retention/test_watched_views.py has one that fails.
    "saved_query_failed": (),
}
"""The labels that samples above zero have at some moment of the story; none of them: that it is
shown. What is not listed is above zero."""


def has_moved(name: str, samples: Samples) -> bool:
    """Tell whether the samples of a metric were what they must be."""
    if MOVES.get(name) == ():
        return samples != {}
    moved = [labels for labels, value in samples.items() if value > 0]
    wanted = [f'"{label}"' for label in MOVES.get(name, ())]
    return bool(moved) and all(any(label in labels for labels in moved) for label in wanted)
