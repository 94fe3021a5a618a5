"""The metrics of a service that has a second process: what `/metrics` shows is the sum of both.

The second process tells its samples from time to time; where it ends, what it had counted stays,
and the next one's is added.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from .metrics import SHOWN, Service

Told: TypeAlias = Sequence[tuple[str, Mapping[str, str], float]]
"""Samples: name, labels, value."""
_Key: TypeAlias = tuple[str, frozenset[tuple[str, str]]]
# Of a process itself: those that make sense as a sum.
_SUMMED: Final = ("process_cpu_seconds_total", "process_resident_memory_bytes")


def samples_of(service: Service) -> Told:
    """What this process, the second one, has to tell."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in SHOWN[service].collect()
        for sample in family.samples
        if sample.name in _SUMMED or _is_own(sample.name, service)
    ]


def _is_own(name: str, service: Service) -> bool:
    return name.startswith(f"inference_store_{service}_") and not name.endswith("_created")


class MetricsOfTwo(Collector):
    """This process's metrics, and those of the other; `told`: the newest that it has told."""

    def __init__(self, service: Service, told: Callable[[], Told]) -> None:
        self._own = SHOWN[service]
        self._told = told
        self._of_former: dict[_Key, float] = {}

    def begin_anew(self) -> None:
        """The other process has ended: what it counted stays, what it measured does not. Call it
        while `told` still answers for it."""
        for name, labels, value in self._told():
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                key = _key(name, labels)
                self._of_former[key] = self._of_former.get(key, 0.0) + value

    def collect(self) -> Iterable[Metric]:
        """Families as the registry has them, each sample with what was told of it."""
        added = dict(self._of_former)
        for name, labels, value in self._told():
            key = _key(name, labels)
            added[key] = added.get(key, 0.0) + value
        for family in self._own.collect():
            family.samples = list(_with(family, added))
            yield family


def _with(family: Metric, added: Mapping[_Key, float]) -> Iterator[Sample]:
    """A family's samples, those of the other process beside or in them."""
    names = {f"{family.name}{suffix}" for suffix in ("", "_total", "_count", "_sum", "_bucket")}
    left = {key: value for key, value in added.items() if key[0] in names}
    for sample in family.samples:
        more = left.pop(_key(sample.name, sample.labels), 0.0)
        yield sample._replace(value=sample.value + more) if more else sample
    for (name, labels), value in left.items():
        yield Sample(name, dict(labels), value)


def _key(name: str, labels: Mapping[str, str]) -> _Key:
    return name, frozenset(labels.items())
