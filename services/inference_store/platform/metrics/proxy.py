"""Metrics of the proxy."""

from .registry import counter, gauge, histogram

CALL_SECONDS = histogram(
    "proxy_call_seconds",
    "Time of a call to a model server, from its head to its answer's end; "
    "`none`: not captured; `unrecognised`: nor known, and it may be an inference.",
    *("protocol", "upstream", "outcome"),
)
CALLS_IN_PROGRESS = gauge("proxy_calls_in_progress", "Calls under way now.", "transport")
CAPTURES = counter(
    "proxy_captures_total",
    "Exchanges by what came of capturing them: `seen`, `sampled_out`, `dropped`, `published`.",
    "outcome",
)
CAPTURES_DROPPED = counter(
    "proxy_captures_dropped_total", "Exchanges that were to be captured and were not.", "reason"
)
CAPTURED_EVENTS = counter("proxy_events_total", "Events acknowledged by Kafka.")
REFUSED_CALLS = counter(
    "proxy_refused_calls_total", "gRPC calls refused because too many were under way."
)
UNSTRIPPED = counter(
    "proxy_unstripped_calls_total",
    "Requests passed on with the metadata that were to be taken out: `large`, `no_room`.",
    "why",
)
INCOMPLETE_CAPTURES = counter(
    "proxy_incomplete_captures_total",
    "Exchanges recorded although a part of them was lost or cannot be read.",
    "reason",
)
CAPTURE_QUEUE = gauge("proxy_captures_queued", "Exchanges not published yet, spool included.")
CAPTURE_BYTES = gauge("proxy_capture_bytes", "Bytes of captures held in memory.")
CAPTURE_BUDGET = gauge("proxy_capture_budget_bytes", "Most bytes of captures held in memory.")
SPOOLED = gauge("proxy_captures_spooled", "Exchanges in the spool, those of dead proxies too.")
SPOOL_BYTES = gauge("proxy_spool_bytes", "Bytes in the spool.")
SPOOL_LIMIT = gauge("proxy_spool_limit_bytes", "Most bytes of the spool; 0: there is none.")
SPOOL_TROUBLE = counter(
    "proxy_spool_trouble_total", "Files that the spool could not write; starts without it."
)
CAPTURE_TROUBLE = counter(
    "proxy_trouble_total", "Waits because a server was unavailable.", "server"
)
CAPTURE_SECONDS = histogram(
    "proxy_capture_seconds", "Time of one stage of capturing an exchange.", "stage"
)
