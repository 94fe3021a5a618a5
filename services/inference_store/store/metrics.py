"""Every metric of every service, each with its sentence. Names begin with inference_store_."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry(auto_describe=True)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


def _counter(name: str, sentence: str, *labels: str) -> Counter:
    return Counter(f"inference_store_{name}", sentence, labels, registry=REGISTRY)


def _gauge(name: str, sentence: str, *labels: str) -> Gauge:
    return Gauge(f"inference_store_{name}", sentence, labels, registry=REGISTRY)


def _histogram(name: str, sentence: str, *labels: str) -> Histogram:
    return Histogram(
        f"inference_store_{name}", sentence, labels, buckets=_SECONDS, registry=REGISTRY
    )


EVENTS = _counter("ingester_events_total", "Offsets by what became of them.", "outcome")
EVENT_BYTES = _counter("ingester_event_bytes_total", "Bytes of messages read from Kafka.")
DEAD_LETTERS = _counter("ingester_dead_letters_total", "Events set aside, by reason.", "reason")
LAG = _gauge("ingester_lag_events", "Offsets between the books and the log's end.", "partition")
BATCH_SECONDS = _histogram("ingester_batch_seconds", "Time of one step of a batch.", "step")
HALTED = _gauge("ingester_halted", "1 while too many dead letters hold the ingester.")
TROUBLE = _counter("ingester_trouble_total", "Waits because a server was away.", "server")
FLAGGED = _counter("ingester_flagged_total", "Inferences indexed with a flag.", "flag")
ASSIGNED = _gauge("ingester_partitions_assigned", "Kafka partitions assigned to this ingester.")
PARKED_TRIES = _counter(
    "ingester_retried_total", "Parked and redriven events tried again, by outcome.", "outcome"
)

REQUESTS = _counter("api_requests_total", "Requests answered.", "method", "route", "status")
REQUEST_SECONDS = _histogram("api_request_seconds", "Time to answer a request.", "route")
QUERY_TIMEOUTS = _counter("api_query_timeouts_total", "Queries cut off by the timeout.", "kind")
REPLICA_AWAY = _counter(
    "api_replica_away_total", "Questions that POSTGRES_DSN answered, as the read replica was away."
)

RETENTION_RUNS = _counter("retention_runs_total", "Runs, by how they ended.", "state")
ERASED = _counter("retention_erased_total", "Inferences or inputs erased.", "scope")
OBJECTS_DELETED = _counter("retention_objects_deleted_total", "Objects deleted and seen gone.")
PARTITIONS_DROPPED = _counter("retention_partitions_dropped_total", "Partitions dropped whole.")
RETENTION_TROUBLE = _counter("retention_trouble_total", "Steps that failed and will be retried.")
LAST_RUN = _gauge("retention_last_run_timestamp_seconds", "When the last run ended well.")
