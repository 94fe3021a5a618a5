"""The metrics of a service that has a second process: `/metrics` shows the sum of both.

The second process sends its samples from time to time. When it ends, its counters stay, and those
of the next process are added.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from .metrics import SHOWN, Service

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
    """Yield a family's samples, with those of the other process added."""
    names = {f"{family.name}{suffix}" for suffix in ("", "_total", "_count", "_sum", "_bucket")}
    remaining = {key: value for key, value in added.items() if key[0] in names}
    for sample in family.samples:
        more = remaining.pop(_key(sample.name, sample.labels), 0.0)
        yield sample._replace(value=sample.value + more) if more else sample
    for (name, labels), value in remaining.items():
        yield Sample(name, dict(labels), value)


def _key(name: str, labels: Mapping[str, str]) -> _Key:
    return name, frozenset(labels.items())
