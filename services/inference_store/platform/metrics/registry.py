"""Declares metrics, and registers them with the services that show them. Names begin with
inference_store_.

A service shows its own and those of `every` service, so that a gauge that one process never sets
does not stand at 0 in another. Labels are bounded: values of our own lists, numbers of Kafka's
partitions, the api's routes and a proxy's upstreams; never a model, a key, an id or anything else
that a caller chose.
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
