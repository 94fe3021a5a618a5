"""Every metric of every service, each with its sentence. Names begin with inference_store_.

A service shows its own and those of `every` service, so that a gauge that one process never sets
does not stand at 0 in another. Labels are bounded: values of our own lists, numbers of Kafka's
partitions, the api's routes and a proxy's upstreams; never a model, a key, an id or anything else a
caller chose.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
)
from prometheus_client.metrics import MetricWrapperBase

Service = Literal["proxy", "ingester", "api", "retention"]
SERVICES: Sequence[Service] = ("proxy", "ingester", "api", "retention")
Owner: TypeAlias = Literal["every", "all but proxy"] | Service
_PREFIX = "inference_store_"
_Named: TypeAlias = tuple[str, str, tuple[str, ...]]
# What `/metrics` of a service shows.
SHOWN = {service: CollectorRegistry(auto_describe=True) for service in SERVICES}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
_EVENTS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
M = TypeVar("M", bound=MetricWrapperBase)

for _registry in SHOWN.values():  # the process's own: memory, CPU, open files
    ProcessCollector(registry=_registry)
    GCCollector(registry=_registry)


# Who sets a metric, by the first word of its name.
_OWNERS: dict[str, Owner] = {
    "build": "every",
    "ready": "every",
    "heartbeat": "every",
    "proxy": "proxy",
    "ingester": "ingester",
    "books": "ingester",
    "dead": "ingester",
    "parked": "ingester",
    "partitions": "ingester",
    "api": "api",
    "retention": "retention",
    "ledger": "all but proxy",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A metric as documents, dashboards and tests know it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    sentence: str
    labels: Sequence[str]
    owner: Owner

    @property
    def samples(self) -> Sequence[str]:
        """The names that a scrape has of it."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


METRICS: list[Entry] = []


def _shown(metric: M, kind: Literal["counter", "gauge", "histogram"], entry: _Named) -> M:
    name, sentence, labels = entry
    owner = _OWNERS[name.split("_", maxsplit=1)[0]]
    METRICS.append(Entry(f"{_PREFIX}{name}", kind, sentence, labels, owner))
    for service in SERVICES:
        if owner in ("every", service) or (owner == "all but proxy" and service != "proxy"):
            SHOWN[service].register(metric)
    return metric


def _counter(name: str, sentence: str, *labels: str) -> Counter:
    made = Counter(_PREFIX + name, sentence, labels, registry=None)
    return _shown(made, "counter", (name, sentence, labels))


def _gauge(name: str, sentence: str, *labels: str) -> Gauge:
    made = Gauge(_PREFIX + name, sentence, labels, registry=None)
    return _shown(made, "gauge", (name, sentence, labels))


def _histogram(
    name: str, sentence: str, *labels: str, buckets: Sequence[float] = _SECONDS
) -> Histogram:
    made = Histogram(_PREFIX + name, sentence, labels, buckets=buckets, registry=None)
    return _shown(made, "histogram", (name, sentence, labels))


BUILD = _gauge("build_info", "1, with the version as a label.", "version")
READY = _gauge("ready", "1 while a part was ready when /health/ready was last asked.", "part")
HEARTBEAT = _gauge("heartbeat_age_seconds", "Time since the service's loop last turned.")
LEDGER_APART = _gauge(
    "ledger_apart", "1 while the ledger in the bucket and Postgres are apart, and nothing is done."
)

CALL_SECONDS = _histogram(
    "proxy_call_seconds",
    "Time of a call to a model server, from its head to its answer's end; `none`: not captured.",
    *("protocol", "upstream", "outcome"),
)
CALLS_IN_PROGRESS = _gauge("proxy_calls_in_progress", "Calls under way now.", "transport")
CAPTURES = _counter(
    "proxy_captures_total",
    "Exchanges by what came of capturing them: `seen`, `sampled_out`, `dropped`, `published`.",
    "outcome",
)
CAPTURES_DROPPED = _counter(
    "proxy_captures_dropped_total", "Exchanges that were to be captured and were not.", "reason"
)
CAPTURED_EVENTS = _counter("proxy_events_total", "Events acknowledged by Kafka.")
REFUSED_CALLS = _counter(
    "proxy_refused_calls_total", "gRPC calls refused because too many were under way."
)
UNSTRIPPED = _counter(
    "proxy_unstripped_calls_total",
    "Requests passed on with the metadata that were to be taken out: `large`, `no_room`.",
    "why",
)
CUT_BODIES = _counter(
    "proxy_cut_bodies_total", "Exchanges recorded without all of their bodies.", "why"
)
CAPTURE_QUEUE = _gauge("proxy_captures_queued", "Exchanges not published yet, spool included.")
CAPTURE_BYTES = _gauge("proxy_capture_bytes", "Bytes of captures held in memory.")
CAPTURE_BUDGET = _gauge("proxy_capture_budget_bytes", "Most bytes of captures held in memory.")
SPOOLED = _gauge("proxy_captures_spooled", "Exchanges in the spool, those of dead proxies too.")
SPOOL_BYTES = _gauge("proxy_spool_bytes", "Bytes in the spool.")
SPOOL_LIMIT = _gauge("proxy_spool_limit_bytes", "Most bytes of the spool; 0: there is none.")
SPOOL_TROUBLE = _counter(
    "proxy_spool_trouble_total", "Files that the spool could not write; starts without it."
)
CAPTURE_TROUBLE = _counter("proxy_trouble_total", "Waits because a server was away.", "server")
CAPTURE_SECONDS = _histogram(
    "proxy_capture_seconds", "Time of one stage of capturing an exchange.", "stage"
)

EVENTS = _counter("ingester_events_total", "Offsets by what became of them.", "outcome")
EVENT_BYTES = _counter("ingester_event_bytes_total", "Bytes of messages read from Kafka.")
DEAD_LETTERS = _counter(
    "ingester_dead_letters_total", "Events set aside, by reason; `blob_missing`: parked.", "reason"
)
LAG = _gauge("ingester_lag_events", "Offsets between the books and the log's end.", "partition")
LAG_SECONDS = _gauge(
    "ingester_lag_seconds",
    "Age of the oldest record that is not in the books yet; 0 without lag.",
    "partition",
)
OLDEST = _gauge(
    "ingester_oldest_unprocessed_seconds",
    "Age of the oldest event of all that waits: in Kafka, in hand or parked.",
)
DELAY_SECONDS = _histogram(
    "ingester_delay_seconds",
    "From the Kafka time of a batch's oldest record to its commit.",
    buckets=_LONG_SECONDS,
)
BATCH_SECONDS = _histogram(
    "ingester_batch_seconds", "Time to read a slice, and to write a batch.", "step"
)
STAGE_SECONDS = _histogram(
    "ingester_stage_seconds", "Time of one stage of reading or writing.", "stage"
)
BATCH_EVENTS = _histogram("ingester_batch_events", "Events of a written batch.", buckets=_EVENTS)
HALTED = _gauge("ingester_halted", "1 while too many dead letters hold the ingester.")
TROUBLE = _counter("ingester_trouble_total", "Waits because a server was away.", "server")
FLAGGED = _counter("ingester_flagged_total", "Inferences indexed with a flag.", "flag")
ASSIGNED = _gauge("ingester_partitions_assigned", "Kafka partitions assigned to this ingester.")
PARKED_TRIES = _counter(
    "ingester_retried_total", "Parked and redriven events tried again, by outcome.", "outcome"
)
REPORTS = _counter(
    "ingester_reports_total",
    "Reports of producers read: `kept`, `old` (a newer one was there) or `broken`.",
    "outcome",
)
BOOKS = _gauge("books_events", "Offsets in the books, over all partitions, by state.", "state")
BOOKS_OPEN = _gauge("books_open_partitions", "Partitions whose books do not close: must be 0.")
PRODUCERS = _gauge(
    "books_producers", "Producers that reported, by state: `running`, `ended`, `dead`.", "state"
)
PRODUCERS_OPEN = _gauge(
    "books_open_producers", "Producers of whom a report does not close: must be 0."
)
DEAD_OPEN = _gauge("dead_letters_open", "Dead letters that nobody has redriven or discarded.")
PARKED = _gauge("parked_events", "Events that wait for an object.")
PARKED_OLDEST = _gauge("parked_oldest_seconds", "How long the oldest parked event has waited.")
PARTITIONS = _gauge("partitions_spans", "Spans of time that the tables are cut into.")
PARTITIONS_AHEAD = _gauge(
    "partitions_ahead_seconds", "For how long from now there are partitions already."
)

REQUESTS = _counter("api_requests_total", "Requests answered.", "method", "route", "status")
REQUEST_SECONDS = _histogram("api_request_seconds", "Time to answer a request.", "route")
IN_PROGRESS = _gauge("api_requests_in_progress", "Requests being answered now.")
QUERY_SECONDS = _histogram(
    "api_query_seconds",
    "Time of a query in Postgres, by what it answers and by its kinds of condition.",
    *("kind", "form"),
)
QUERY_TIMEOUTS = _counter("api_query_timeouts_total", "Queries cut off by the timeout.", "kind")
TURNS = _gauge("api_turns_taken", "Queries and streams that run now.", "kind")
TURNS_WAITING = _gauge("api_turns_waiting", "Queries that wait for their turn now.", "kind")
TURN_SECONDS = _histogram("api_turn_wait_seconds", "Time waited for a turn.", "kind")
TURNS_REFUSED = _counter(
    "api_turns_refused_total",
    "Queries and streams that had no turn in time, by whose limit was reached: `caller` or `all`.",
    *("kind", "limit"),
)
STREAMS = _counter("api_streams_total", "Streams of inferences, by how they ended.", "ended")
STREAMED = _counter("api_streamed_inferences_total", "Inferences sent in streams.")
REPLICA_AWAY = _counter(
    "api_replica_away_total", "Questions that POSTGRES_DSN answered, as the read replica was away."
)
REFUSED = _counter("api_refused_total", "Requests refused by access control or limits.", "reason")
ISSUER_FETCHES = _counter(
    "api_issuer_fetches_total", "Fetches of the OIDC issuer's keys, by outcome.", "outcome"
)

RETENTION_RUNS = _counter("retention_runs_total", "Runs, by how they ended.", "state")
RUN_SECONDS = _histogram("retention_run_seconds", "Time of a run.", buckets=_LONG_SECONDS)
STEP_SECONDS = _histogram(
    "retention_step_seconds", "Time of one step of erasing a batch.", "step", buckets=_LONG_SECONDS
)
ERASED = _counter(
    "retention_erased_total", "Inferences, parts of them, or objects of none erased.", "scope"
)
OBJECTS_DELETED = _counter("retention_objects_deleted_total", "Objects deleted and seen gone.")
BYTES_DELETED = _counter(
    "retention_bytes_deleted_total", "Bytes of the objects that were deleted and seen gone."
)
PARTITIONS_DROPPED = _counter("retention_partitions_dropped_total", "Partitions dropped whole.")
RETENTION_TROUBLE = _counter(
    "retention_trouble_total", "Steps that failed and will be retried, by reason.", "reason"
)
PRUNED = _counter("retention_pruned_total", "Our own records removed by age, by kind.", "records")
OVERDUE = _gauge(
    "retention_overdue_seconds",
    "How long ago the oldest of all that is still there should have gone; 0: nothing is overdue.",
)
HOLDS = _gauge("retention_holds", "Legal holds in force.")
HELD = _gauge(
    "retention_held", "What erasures left because of a hold, and take up when it is released."
)
AUDIT_UNLINKED = _gauge(
    "retention_audit_unlinked_seconds",
    "Age of the oldest entry of the audit that is not in its chain yet.",
)
RECONCILIATIONS = _counter(
    "retention_reconciliations_total",
    "Comparisons of bucket and index, by how they ended.",
    "state",
)
RECONCILED = _gauge(
    "retention_reconciliation_found", "What the last comparison of bucket and index found.", "what"
)
LAST_RECONCILIATION = _gauge(
    "retention_last_reconciliation_timestamp_seconds", "When the last comparison ended well."
)
CERTIFICATES = _counter("retention_certificates_total", "Certificates of erasures signed.")
UNCERTIFIED = _counter(
    "retention_uncertified_total",
    "Erasures that ended without a certificate, by why: `no_key` (there never was one),"
    " `key_missing`, or `unlisted` (part of it was erased without a key).",
    "reason",
)
CERTIFICATE_TROUBLE = _counter(
    "retention_certificate_trouble_total", "Certificates that could not be signed yet, and wait."
)
LAST_RUN = _gauge(
    "retention_last_run_timestamp_seconds",
    "When the last run ended well; where none ever has: when the service started.",
)
RUN_INTERVAL = _gauge("retention_interval_seconds", "Time between two scheduled runs.")
LEADING = _gauge("retention_leading", "1 while this service is the one that works.")
MARKED = _gauge("retention_marked", "Inferences and inputs marked, and not erased yet.")
ERASURES = _gauge("retention_erasures", "Erasures that are not finished, by state.", "state")
OLDEST_ERASURE = _gauge(
    "retention_oldest_erasure_seconds", "How long ago the oldest unfinished erasure was asked for."
)


def from_zero(counter: Counter, values: Iterable[str]) -> None:
    """Show a counter's labels from the start: of one that begins at 5, no increase is seen."""
    for value in values:
        counter.labels(value)
