"""Metrics of the retention service."""

from .registry import LONG_SECONDS, counter, gauge, histogram

RETENTION_RUNS = counter("retention_runs_total", "Runs, by how they ended.", "state")
RUN_SECONDS = histogram("retention_run_seconds", "Time of a run.", buckets=LONG_SECONDS)
STEP_SECONDS = histogram(
    "retention_step_seconds", "Time of one step of erasing a batch.", "step", buckets=LONG_SECONDS
)
ERASED = counter(
    "retention_erased_total", "Inferences, parts of them, or objects of none erased.", "scope"
)
OBJECTS_DELETED = counter("retention_objects_deleted_total", "Objects deleted and seen gone.")
BYTES_DELETED = counter(
    "retention_bytes_deleted_total", "Bytes of the objects that were deleted and seen gone."
)
PARTITIONS_DROPPED = counter("retention_partitions_dropped_total", "Partitions dropped whole.")
RETENTION_TROUBLE = counter(
    "retention_trouble_total", "Steps that failed and will be retried, by reason.", "reason"
)
PRUNED = counter("retention_pruned_total", "Our own records removed by age, by kind.", "records")
OVERDUE = gauge(
    "retention_overdue_seconds",
    "How long ago the oldest of all that is still there should have gone; 0: nothing is overdue.",
)
HOLDS = gauge("retention_holds", "Legal holds in force.")
HELD = gauge(
    "retention_held", "What erasures left because of a hold, and take up when it is released."
)
AUDIT_UNLINKED = gauge(
    "retention_audit_unlinked_seconds",
    "Age of the oldest entry of the audit that is not in its chain yet.",
)
RECONCILIATIONS = counter(
    "retention_reconciliations_total",
    "Comparisons of bucket and index, by how they ended.",
    "state",
)
RECONCILED = gauge(
    "retention_reconciliation_found", "What the last comparison of bucket and index found.", "what"
)
LAST_RECONCILIATION = gauge(
    "retention_last_reconciliation_timestamp_seconds", "When the last comparison ended well."
)
EXPORTS = counter("retention_exports_total", "Exports, by how they ended.", "state")
EXPORTED_BYTES = counter("retention_exported_bytes_total", "Bytes of the parts of exports written.")
EXPORTS_UNFINISHED = gauge(
    "retention_exports_unfinished", "Exports whose parts are not all written yet."
)
EXPORTS_WAITING = gauge(
    "retention_exports_waiting", "Unfinished exports that an error holds up; they are tried again."
)
CERTIFICATES = counter("retention_certificates_total", "Certificates of erasures signed.")
UNCERTIFIED = counter(
    "retention_uncertified_total",
    "Erasures that ended without a certificate, by why: `no_key` (there never was one),"
    " `key_missing`, or `unlisted` (part of it was erased without a key).",
    "reason",
)
CERTIFICATE_TROUBLE = counter(
    "retention_certificate_trouble_total", "Certificates that could not be signed yet, and wait."
)
LAST_RUN = gauge(
    "retention_last_run_timestamp_seconds",
    "When the last run ended well; where none ever has: when the service started.",
)
RUN_INTERVAL = gauge("retention_interval_seconds", "Time between two scheduled runs.")
LEADING = gauge("retention_leading", "1 while this service is the one that works.")
MARKED = gauge("retention_marked", "Inferences and inputs marked, and not erased yet.")
ERASURES = gauge("retention_erasures", "Erasures that are not finished, by state.", "state")
OLDEST_ERASURE = gauge(
    "retention_oldest_erasure_seconds", "How long ago the oldest unfinished erasure was asked for."
)
