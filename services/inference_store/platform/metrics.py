"""Declares metrics, and registers them with the services that show them. Names begin with
inference_store_.

A service shows its own and those of `every` service, so that a gauge that one process never sets
does not stand at 0 in another. Labels are bounded: values of our own lists, numbers of Kafka's
partitions, the api's routes and a proxy's upstreams; never a model, a key, an id or anything else
that a caller chose. Watched views alone have names and ids, and there are few of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Metric,
    ProcessCollector,
)
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

Service = Literal["proxy", "ingester", "api", "retention"]
SERVICES: Sequence[Service] = ("proxy", "ingester", "api", "retention")
Owner: TypeAlias = Literal["every", "all but proxy"] | Service
_PREFIX = "inference_store_"
_Named: TypeAlias = tuple[str, str, tuple[str, ...]]
# The metrics that `/metrics` of a service shows.
SHOWN = {service: CollectorRegistry(auto_describe=True) for service in SERVICES}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LONG_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
EVENT_COUNTS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
M = TypeVar("M", bound=MetricWrapperBase)

for _registry in SHOWN.values():  # the process's own: memory, CPU, open files
    ProcessCollector(registry=_registry)
    GCCollector(registry=_registry)


# The service that sets a metric, by the first word of its name.
_OWNERS: dict[str, Owner] = {
    "build": "every",
    "ready": "every",
    "heartbeat": "every",
    "connections": "every",
    "proxy": "proxy",
    "ingester": "ingester",
    "books": "ingester",
    "dead": "ingester",
    "parked": "ingester",
    "partitions": "ingester",
    "api": "api",
    "retention": "retention",
    "saved": "retention",
    "ledger": "all but proxy",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of a metric for documents, dashboards and tests."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    sentence: str
    labels: Sequence[str]
    owner: Owner

    @property
    def samples(self) -> Sequence[str]:
        """The names of its samples in a scrape."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


METRICS: list[Entry] = []


def _register(metric: M, kind: Literal["counter", "gauge", "histogram"], entry: _Named) -> M:
    name, sentence, labels = entry
    owner = _OWNERS[name.split("_", maxsplit=1)[0]]
    METRICS.append(Entry(f"{_PREFIX}{name}", kind, sentence, labels, owner))
    for service in SERVICES:
        if owner in ("every", service) or (owner == "all but proxy" and service != "proxy"):
            SHOWN[service].register(metric)
    return metric


def counter(name: str, sentence: str, *labels: str) -> Counter:
    metric = Counter(_PREFIX + name, sentence, labels, registry=None)
    return _register(metric, "counter", (name, sentence, labels))


def gauge(name: str, sentence: str, *labels: str) -> Gauge:
    metric = Gauge(_PREFIX + name, sentence, labels, registry=None)
    return _register(metric, "gauge", (name, sentence, labels))


def histogram(
    name: str, sentence: str, *labels: str, buckets: Sequence[float] = _SECONDS
) -> Histogram:
    metric = Histogram(_PREFIX + name, sentence, labels, buckets=buckets, registry=None)
    return _register(metric, "histogram", (name, sentence, labels))


def from_zero(counter: Counter, values: Iterable[str]) -> None:
    """Show a counter's labels from the start: if one began at 5, its increase would be lost."""
    for value in values:
        counter.labels(value)


BUILD = gauge("build_info", "1, with the version as a label.", "version")
READY = gauge("ready", "1 if the part was ready at the last call of /health/ready.", "part")
HEARTBEAT = gauge("heartbeat_age_seconds", "Time since the last iteration of the service's loop.")
CONNECTIONS = gauge("connections", "Open connections, by port.", "port")
CONNECTIONS_REFUSED = counter(
    "connections_refused_total",
    "Connections refused because the limit for `all` or for one `address` was reached.",
    *("port", "limit"),
)
CONNECTIONS_LATE = counter(
    "connections_late_total",
    "Connections closed because a `head`, a `body`, the next request (`idle`) or the reading of an"
    " answer (`write`) took too long.",
    *("port", "late"),
)
LEDGER_APART = gauge(
    "ledger_apart", "1 while the ledger in the bucket and Postgres disagree, which stops all work."
)


REQUESTS = counter(
    "api_requests_total",
    "Requests answered; 499: the client disconnected.",
    "method",
    "route",
    "status",
)
REQUEST_SECONDS = histogram("api_request_seconds", "Time to answer a request.", "route")
IN_PROGRESS = gauge("api_requests_in_progress", "Requests in progress.")
QUERY_SECONDS = histogram(
    "api_query_seconds",
    "Duration of a query in Postgres, by what it answers and by its conditions.",
    *("kind", "form"),
)
QUERY_TIMEOUTS = counter("api_query_timeouts_total", "Queries that timed out.", "kind")
TURNS = gauge("api_turns_taken", "Queries and streams in progress.", "kind")
TURNS_WAITING = gauge("api_turns_waiting", "Queries waiting for admission.", "kind")
TURN_SECONDS = histogram("api_turn_wait_seconds", "Time spent waiting for admission.", "kind")
TURNS_REFUSED = counter(
    "api_turns_refused_total",
    "Queries and streams not admitted in time, by the limit reached: `caller` or `all`.",
    *("kind", "limit"),
)
STREAMS = counter("api_streams_total", "Streams of inferences, by how they ended.", "ended")
STREAMED = counter("api_streamed_inferences_total", "Inferences sent in streams.")
REPLICA_AWAY = counter(
    "api_replica_away_total",
    "Queries sent to POSTGRES_DSN because the read replica was unavailable.",
)
REFUSED = counter("api_refused_total", "Requests refused by access control or limits.", "reason")
ISSUER_FETCHES = counter(
    "api_issuer_fetches_total", "Fetches of the OIDC issuer's keys, by outcome.", "outcome"
)


EVENTS = counter("ingester_events_total", "Offsets, by outcome.", "outcome")
EVENT_BYTES = counter("ingester_event_bytes_total", "Bytes of messages read from Kafka.")
DEAD_LETTERS = counter(
    "ingester_dead_letters_total",
    "Dead letters by reason; `blob_missing`: parked events.",
    "reason",
)
LAG = gauge(
    "ingester_lag_events",
    "Offsets between the books and the end of the log.",
    *("topic", "partition"),
)
LAG_SECONDS = gauge(
    "ingester_lag_seconds",
    "Age of the oldest record not in the books yet; 0 without lag.",
    *("topic", "partition"),
)
OLDEST = gauge(
    "ingester_oldest_unprocessed_seconds",
    "Age of the oldest unprocessed event: in Kafka, in memory or parked.",
)
DELAY_SECONDS = histogram(
    "ingester_delay_seconds",
    "Time from the Kafka timestamp of a batch's oldest record to its commit.",
    buckets=LONG_SECONDS,
)
BATCH_SECONDS = histogram(
    "ingester_batch_seconds", "Time to read a slice, and to write a batch.", "step"
)
STAGE_SECONDS = histogram(
    "ingester_stage_seconds", "Duration of one stage of reading or writing.", "stage"
)
BATCH_EVENTS = histogram("ingester_batch_events", "Events per written batch.", buckets=EVENT_COUNTS)
HALTED = gauge("ingester_halted", "1 while the ingester is stopped by too many dead letters.")
TROUBLE = counter("ingester_trouble_total", "Waits because a server was unavailable.", "server")
STALLED = counter(
    "ingester_stalled_sessions_total",
    "Postgres sessions of frozen ingesters terminated by this one.",
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
BOOKS_OPEN = gauge("books_open_partitions", "Partitions whose books do not close. Must be 0.")
PRODUCERS = gauge(
    "books_producers", "Reporting producers, by state: `running`, `ended`, `dead`.", "state"
)
PRODUCERS_OPEN = gauge(
    "books_open_producers", "Producers whose books do not close: captures are missing."
)
DEAD_OPEN = gauge("dead_letters_open", "Dead letters not redriven or discarded yet.")
PARKED = gauge("parked_events", "Events waiting for an object.")
PARKED_OLDEST = gauge("parked_oldest_seconds", "Age of the oldest parked event.")
PARTITIONS = gauge("partitions_spans", "Time partitions of the tables.")
PARTITIONS_AHEAD = gauge("partitions_ahead_seconds", "Time from now for which partitions exist.")


CALL_SECONDS = histogram(
    "proxy_call_seconds",
    "Time of a call to a model server, from its head to its answer's end; "
    "`none`: not captured; `unrecognised`: nor known, and it may be an inference.",
    *("protocol", "upstream", "outcome"),
)
CALLS_IN_PROGRESS = gauge("proxy_calls_in_progress", "Calls in progress.", "transport")
CAPTURES = counter(
    "proxy_captures_total",
    "Exchanges by capture outcome: `seen`, `sampled_out`, `dropped`, `published`.",
    "outcome",
)
CAPTURES_DROPPED = counter(
    "proxy_captures_dropped_total", "Exchanges that could not be captured.", "reason"
)
CAPTURED_EVENTS = counter("proxy_events_total", "Events acknowledged by Kafka.")
SEGMENTS = counter("proxy_segments_total", "Segments written to the object store.")
REFUSED_CALLS = counter(
    "proxy_refused_calls_total", "gRPC calls refused because too many were in progress."
)
UNSTRIPPED = counter(
    "proxy_unstripped_calls_total",
    "Requests forwarded without stripping their metadata: `large`, `no_room`.",
    "why",
)
INCOMPLETE_CAPTURES = counter(
    "proxy_incomplete_captures_total",
    "Exchanges recorded with a part that was lost or is unreadable.",
    "reason",
)
CLOUD_EVENTS = counter(
    "proxy_cloud_events_total",
    "CloudEvents by outcome: `joined`, `alone` (captured without its other half), `duplicate`, "
    "`refused`, `no_room`.",
    "outcome",
)
CLOUD_EVENTS_WAITING = gauge(
    "proxy_cloud_events_waiting", "CloudEvents that wait for the other half of their call."
)
CAPTURE_QUEUE = gauge("proxy_captures_queued", "Exchanges not published yet, spool included.")
CAPTURE_BYTES = gauge("proxy_capture_bytes", "Bytes of captures held in memory.")
CAPTURE_BUDGET = gauge(
    "proxy_capture_budget_bytes", "Limit of the bytes of captures held in memory."
)
SPOOLED = gauge(
    "proxy_captures_spooled", "Exchanges in the spool, including those of dead proxies."
)
SPOOL_BYTES = gauge("proxy_spool_bytes", "Bytes in the spool.")
SPOOL_LIMIT = gauge("proxy_spool_limit_bytes", "Limit of the bytes in the spool; 0: no spool.")
SPOOL_TROUBLE = counter(
    "proxy_spool_trouble_total", "Failed writes to the spool, and starts without it."
)
CAPTURE_TROUBLE = counter(
    "proxy_trouble_total", "Waits because a server was unavailable.", "server"
)
CAPTURE_SECONDS = histogram(
    "proxy_capture_seconds", "Duration of one stage of capturing an exchange.", "stage"
)


RETENTION_RUNS = counter("retention_runs_total", "Runs, by final state.", "state")
RUN_SECONDS = histogram("retention_run_seconds", "Duration of a run.", buckets=LONG_SECONDS)
STEP_SECONDS = histogram(
    "retention_step_seconds",
    "Duration of one step of erasing a batch.",
    "step",
    buckets=LONG_SECONDS,
)
ERASED = counter(
    "retention_erased_total",
    "Erased inferences, parts of inferences, and orphaned objects.",
    "scope",
)
OBJECTS_DELETED = counter(
    "retention_objects_deleted_total", "Objects deleted and verified as gone."
)
BYTES_DELETED = counter(
    "retention_bytes_deleted_total", "Bytes of objects deleted and verified as gone."
)
PARTITIONS_DROPPED = counter("retention_partitions_dropped_total", "Partitions dropped.")
RETENTION_TROUBLE = counter(
    "retention_trouble_total", "Steps that failed and will be retried, by reason.", "reason"
)
PRUNED = counter(
    "retention_pruned_total", "The store's own records pruned by age, by kind.", "records"
)
OVERDUE = gauge(
    "retention_overdue_seconds",
    "Time since the oldest overdue record should have been deleted; 0: nothing is overdue.",
)
HOLDS = gauge("retention_holds", "Legal holds in force.")
HELD = gauge("retention_held", "Inferences and inputs that erasures left because of a hold.")
AUDIT_UNLINKED = gauge(
    "retention_audit_unlinked_seconds",
    "Age of the oldest audit entry that is not chained yet.",
)
RECONCILIATIONS = counter(
    "retention_reconciliations_total",
    "Comparisons of bucket and index, by final state.",
    "state",
)
RECONCILED = gauge(
    "retention_reconciliation_found", "Findings of the last comparison of bucket and index.", "what"
)
LAST_RECONCILIATION = gauge(
    "retention_last_reconciliation_timestamp_seconds", "Time of the last successful comparison."
)
EXPORTS = counter("retention_exports_total", "Exports, by final state.", "state")
EXPORTED_BYTES = counter("retention_exported_bytes_total", "Bytes of export parts written.")
EXPORTS_UNFINISHED = gauge(
    "retention_exports_unfinished", "Exports with parts that are not written yet."
)
EXPORTS_WAITING = gauge(
    "retention_exports_waiting", "Unfinished exports blocked by an error; they are retried."
)
REPLAYED = counter("retention_replayed_total", "Replayed inferences that were settled.")
CERTIFICATES = counter("retention_certificates_total", "Certificates of erasures signed.")
UNCERTIFIED = counter(
    "retention_uncertified_total",
    "Erasures that ended without a certificate, by reason: `no_key` (there never was one),"
    " `key_missing`, or `unlisted` (part of it was erased without a key).",
    "reason",
)
CERTIFICATE_TROUBLE = counter(
    "retention_certificate_trouble_total", "Certificates that could not be signed yet."
)
LAST_RUN = gauge(
    "retention_last_run_timestamp_seconds",
    "Time of the last successful run, or of the service's start before the first one.",
)
RUN_INTERVAL = gauge("retention_interval_seconds", "Time between two scheduled runs.")
LEADING = gauge("retention_leading", "1 while this service is the leader.")
MARKED = gauge("retention_marked", "Inferences and inputs marked but not erased yet.")
ERASURES = gauge("retention_erasures", "Unfinished erasures, by state.", "state")
OLDEST_ERASURE = gauge("retention_oldest_erasure_seconds", "Age of the oldest unfinished erasure.")

_OF_A_VIEW = ("view", "model", "name")
SAVED_QUERY = gauge("saved_query", "The number of a watched view; NaN: of no values.", *_OF_A_VIEW)
SAVED_QUERY_AT = gauge(
    "saved_query_timestamp_seconds", "Time at which this number was read.", *_OF_A_VIEW
)
SAVED_QUERY_FAILED = gauge(
    "saved_query_failed",
    "1 while a watched view has no number: its query took too long, or its names are unknown.",
    *_OF_A_VIEW,
)


# The metrics of a service that has a second process: `/metrics` shows the sum of both.
#
# The second process sends its samples from time to time. When it ends, its counters stay, and those
# of the next process are added.

Samples: TypeAlias = Sequence[tuple[str, Mapping[str, str], float]]
"""Samples: name, labels, value."""
_Key: TypeAlias = tuple[str, frozenset[tuple[str, str]]]
# The metrics of a process itself that are useful as a sum.
_SUMMED: Final = ("process_cpu_seconds_total", "process_resident_memory_bytes")


def list_samples(service: Service) -> Samples:
    """Return the samples of this process, the second one."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in SHOWN[service].collect()
        for sample in family.samples
        if sample.name in _SUMMED or _is_own(sample.name, service)
    ]


def _is_own(name: str, service: Service) -> bool:
    return name.startswith(f"inference_store_{service}_") and not name.endswith("_created")


class MultiprocessMetrics(Collector):
    """This process's metrics and those of the other; `read_samples` returns its newest samples."""

    def __init__(self, service: Service, read_samples: Callable[[], Samples]) -> None:
        self._own = SHOWN[service]
        self._read_samples = read_samples
        self._former_counters: dict[_Key, float] = {}

    def add_former(self) -> None:
        """Keep the counters of the other process, which has ended; its gauges are dropped. Call it
        while `read_samples` still answers for it."""
        for name, labels, value in self._read_samples():
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                key = _key(name, labels)
                self._former_counters[key] = self._former_counters.get(key, 0.0) + value

    def collect(self) -> Iterable[Metric]:
        """Return the families of the registry, with the samples of the other process added."""
        added = dict(self._former_counters)
        for name, labels, value in self._read_samples():
            key = _key(name, labels)
            added[key] = added.get(key, 0.0) + value
        for family in self._own.collect():
            family.samples = list(_with(family, added))
            yield family


def _with(family: Metric, added: Mapping[_Key, float]) -> Iterator[Sample]:
    names = {f"{family.name}{suffix}" for suffix in ("", "_total", "_count", "_sum", "_bucket")}
    remaining = {key: value for key, value in added.items() if key[0] in names}
    for sample in family.samples:
        more = remaining.pop(_key(sample.name, sample.labels), 0.0)
        yield sample._replace(value=sample.value + more) if more else sample
    for (name, labels), value in remaining.items():
        yield Sample(name, dict(labels), value)


def _key(name: str, labels: Mapping[str, str]) -> _Key:
    return name, frozenset(labels.items())
