"""Metrics of the ingester."""

from .registry import EVENT_COUNTS, LONG_SECONDS, counter, gauge, histogram

EVENTS = counter("ingester_events_total", "Offsets by what became of them.", "outcome")
EVENT_BYTES = counter("ingester_event_bytes_total", "Bytes of messages read from Kafka.")
DEAD_LETTERS = counter(
    "ingester_dead_letters_total", "Events set aside, by reason; `blob_missing`: parked.", "reason"
)
LAG = gauge("ingester_lag_events", "Offsets between the books and the log's end.", "partition")
LAG_SECONDS = gauge(
    "ingester_lag_seconds",
    "Age of the oldest record that is not in the books yet; 0 without lag.",
    "partition",
)
OLDEST = gauge(
    "ingester_oldest_unprocessed_seconds",
    "Age of the oldest event of all that waits: in Kafka, in hand or parked.",
)
DELAY_SECONDS = histogram(
    "ingester_delay_seconds",
    "From the Kafka time of a batch's oldest record to its commit.",
    buckets=LONG_SECONDS,
)
BATCH_SECONDS = histogram(
    "ingester_batch_seconds", "Time to read a slice, and to write a batch.", "step"
)
STAGE_SECONDS = histogram(
    "ingester_stage_seconds", "Time of one stage of reading or writing.", "stage"
)
BATCH_EVENTS = histogram(
    "ingester_batch_events", "Events of a written batch.", buckets=EVENT_COUNTS
)
HALTED = gauge("ingester_halted", "1 while too many dead letters hold the ingester.")
TROUBLE = counter("ingester_trouble_total", "Waits because a server was unavailable.", "server")
STALLED = counter(
    "ingester_stalled_sessions_total",
    "Postgres sessions of frozen ingesters that this one ended.",
)
FLAGGED = counter("ingester_flagged_total", "Inferences indexed with a flag.", "flag")
ASSIGNED = gauge("ingester_partitions_assigned", "Kafka partitions assigned to this ingester.")
PARKED_TRIES = counter(
    "ingester_retried_total", "Parked and redriven events tried again, by outcome.", "outcome"
)
REPORTS = counter(
    "ingester_reports_total",
    "Reports of producers read: `kept`, `old` (a newer one was there) or `broken`.",
    "outcome",
)
BOOKS = gauge("books_events", "Offsets in the books, over all partitions, by state.", "state")
BOOKS_OPEN = gauge("books_open_partitions", "Partitions whose books do not close: must be 0.")
PRODUCERS = gauge(
    "books_producers", "Producers that reported, by state: `running`, `ended`, `dead`.", "state"
)
PRODUCERS_OPEN = gauge(
    "books_open_producers", "Producers whose accounts do not close: captures are missing."
)
DEAD_OPEN = gauge("dead_letters_open", "Dead letters that nobody has redriven or discarded.")
PARKED = gauge("parked_events", "Events that wait for an object.")
PARKED_OLDEST = gauge("parked_oldest_seconds", "How long the oldest parked event has waited.")
PARTITIONS = gauge("partitions_spans", "Spans of time that the tables are cut into.")
PARTITIONS_AHEAD = gauge(
    "partitions_ahead_seconds", "For how long from now there are partitions already."
)
