"""What is known of an inference that is not stored yet: as its rows will have it."""

from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from inference_store.store.filters.facts import Facts, milliseconds

from .indexable import Indexable

_EXTRAS: Final = (
    *("model_version", "task_type", "protocol", "action", "ok", "http_status", "grpc_code"),
    *("error", "trace_id", "data_hash", "data_size", "data_content_type", "width", "height"),
    *("batch_index", "batch_size"),
)
_extras_of = attrgetter(*_EXTRAS)


def facts_of(item: Indexable, *, indexed_at: datetime) -> Facts:
    """The facts that filters are evaluated against. Keys and labels beyond a model's caps, which
    no index has, are among them."""
    event, items = item.event, item.predictions.items
    first = next((each for each in items or () if each.rank == 1), None)
    single: dict[str, Any] = {
        "model_id": event.model_id,
        "project_id": item.registration.project_id,
        "inference_id": event.inference_id,
        "uid": str(event.uid),
        "received_at": event.received_at,
        "forwarded_at": event.forwarded_at,
        "responded_at": event.responded_at,
        "published_at": event.published_at,
        "indexed_at": indexed_at,
        **dict(zip(_EXTRAS, _extras_of(event.extras), strict=True)),
        "top_label": None if first is None else first.label,
        "top_score": None if first is None else first.score,
        "prediction_count": None if items is None else len(items),
        "problem": item.metadata.problem or item.predictions.problem,
        "revision": 1,
    }
    properties: dict[str, tuple[Any, ...]] = {
        name: (value,) for name, value in single.items() if value is not None
    }
    properties["inference_ids"] = tuple({event.inference_id, *event.aliases})
    properties["pre_ms"] = milliseconds(event.received_at, event.forwarded_at)
    properties["model_ms"] = milliseconds(event.forwarded_at, event.responded_at)
    properties["post_ms"] = milliseconds(event.responded_at, event.published_at)
    predictions = None if items is None else [each._asdict() for each in items]
    return Facts(properties, item.metadata, predictions)
