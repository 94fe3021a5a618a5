"""The facts of an inference that is not stored yet, as its rows will have them."""

from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from inference_store.index.writing import EXTRAS_COLUMNS, Indexable
from inference_store.inference.events import SIDES, CaptureSide, InferenceEvent, flags_of
from inference_store.inference.metadata import Metadata

from .filters.evaluate import Facts, milliseconds
from .properties import LATENCIES, PROPERTIES

NOT_IN_EVENTS: Final = frozenset(
    {"project_id", "indexed_at", "top_label", "top_score", "prediction_count", "problem"}
    | {"revision", "data_deleted_at"}
)
"""Properties that only the index or the response has: they are unknown for an event alone."""

_EXTRAS: Final = tuple(name for name in EXTRAS_COLUMNS if name in PROPERTIES)
_extras_of = attrgetter(*_EXTRAS)


def build_facts(item: Indexable, *, indexed_at: datetime) -> Facts:
    """Return the facts that filters are evaluated on, including keys and labels beyond a model's
    caps, which no index has."""
    items = item.predictions.items
    first = next((item for item in items or () if item.rank == 1), None)
    single: dict[str, Any] = {
        "project_id": item.registration.project_id,
        "indexed_at": indexed_at,
        "top_label": None if first is None else first.label,
        "top_score": None if first is None else first.score,
        "prediction_count": None if items is None else len(items),
        "problem": item.metadata.problem or item.predictions.problem,
        "revision": 1,
    }
    properties = {**_read_event(item.event), **_select_known(single)}
    predictions = None if items is None else [item._asdict() for item in items]
    return Facts(properties, item.metadata, predictions)


def build_event_facts(event: InferenceEvent, metadata: Metadata) -> Facts:
    """Return the facts of an event whose response has not been read. See `NOT_IN_EVENTS`."""
    return Facts(_read_event(event), metadata, None)


def _read_event(event: InferenceEvent) -> dict[str, tuple[Any, ...]]:
    single: dict[str, Any] = {
        "model_id": event.model_id,
        "inference_id": event.inference_id,
        "uid": str(event.uid),
        "received_at": event.received_at,
        "forwarded_at": event.forwarded_at,
        "responded_at": event.responded_at,
        "published_at": event.published_at,
        **dict(zip(_EXTRAS, _extras_of(event.extras), strict=True)),
        **{f"{side}_problem": _find_problem(event, side) for side in SIDES},
    }
    properties = _select_known(single)
    properties["inference_ids"] = tuple({event.inference_id, *event.aliases})
    for name, (start, end) in LATENCIES.items():
        properties[name] = milliseconds(getattr(event, start), getattr(event, end))
    return properties


def _find_problem(event: InferenceEvent, side: CaptureSide) -> str | None:
    return next((kind for flag, kind in flags_of(side).items() if flag in event.flags), None)


def _select_known(single: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: (value,) for name, value in single.items() if value is not None}
