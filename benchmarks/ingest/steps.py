"""Where the ingester's own CPU goes: each pure step over the same events, in µs an event."""

import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from types import SimpleNamespace
from typing import Any, TypeVar

from inference_store.index.registrations import Registration
from inference_store.index.writing import Indexable, build_deltas, rows_of
from inference_store.inference.events import Buckets, decode
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import read_predictions, task_type_of

from .events import MODEL, make_events

_EVENTS = 3000
_PASSES = 5
T = TypeVar("T")


class _Names:
    """A dictionary that knows every name."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, _: int, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))


def measure() -> dict[str, float]:
    """Microseconds of CPU an event, by step: medians of some passes after one to warm up.

    The collector runs once in a pass, and costs the step that it meets some 6 µs an event.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # as the ingester does
    _pass()
    passes = [_pass() for _ in range(_PASSES)]
    return {step: median(figures[step] for figures in passes) for step in passes[0]}


def _pass() -> dict[str, float]:
    spent: dict[str, float] = {}

    def timed(step: str, work: Callable[[], T]) -> T:
        started = time.process_time()
        result = work()
        spent[step] = (time.process_time() - started) / _EVENTS * 1e6
        return result

    now = datetime.now(UTC)
    messages = [event.message(inline=True) for event in make_events(0, _EVENTS)]
    buckets, kind = Buckets("bench", frozenset()), task_type_of("Object Detection")
    names: Any = SimpleNamespace(keys=_Names(), labels=_Names())
    registration = Registration(
        model=1,
        model_id=MODEL,
        project_id=None,
        name=None,
        task_type=None,
        class_labels=(),
        output_mapping=None,
        registered_by="event",
        revision=1,
        registered_at=now,
        updated_at=now,
    )
    events = timed(
        "decode the event", lambda: [decode(m, record_time=now, buckets=buckets) for m in messages]
    )
    metadata = timed(
        "read metadata",
        lambda: [read_metadata(e.inline_metadata, response=e.inline_response) for e in events],
    )
    predictions = timed(
        "read predictions",
        lambda: [read_predictions(e.inline_response, task_type=kind) for e in events],
    )
    items = [
        Indexable(event=e, registration=registration, metadata=m, predictions=p)
        for e, m, p in zip(events, metadata, predictions, strict=True)
    ]
    timed("make rows", lambda: [rows_of(item, names, indexed_at=now) for item in items])
    timed("count keys seen", lambda: build_deltas(items, names))
    return spent
