"""Finds the holds that protect events that are not stored: dead letters, and parked ones.

Of their response only the metadata is read, and it may be out of reach: what is unknown protects.
"""

from collections.abc import Sequence

from inference_store.inference.errors import StoreError
from inference_store.inference.events import InferenceEvent
from inference_store.inference.metadata import Metadata
from inference_store.query.facts import NOT_IN_EVENTS, build_event_facts
from inference_store.query.filters import typed
from inference_store.query.filters.certain import find_doubts
from inference_store.query.filters.typed import Predicate

from .evaluation import is_held, resolve_filter
from .hold import Hold


def find_event_hold(
    holds: Sequence[Hold],
    event: InferenceEvent | None,
    metadata: Metadata | None,
    *,
    doubted: Sequence[Hold],
) -> Hold | None:
    """Return the first of the holds of its model that protects an event; None if none does, or if
    the event can be neither decoded nor read.

    `doubted`: the holds that also protect it if nobody knows whether they match.
    """
    for hold in holds:
        answer = _holds_event(hold, event, metadata)
        if answer or (answer is None and hold in doubted):
            return hold
    return None


def _holds_event(
    hold: Hold, event: InferenceEvent | None, metadata: Metadata | None
) -> bool | None:
    """Return whether a hold matches an event; None if that is not known."""
    try:
        if event is None or not _is_decidable(resolve_filter(hold.filter), metadata):
            return None
        known_metadata = metadata or Metadata()
        return is_held(
            hold, build_event_facts(event, known_metadata), (*event.flags, *known_metadata.flags)
        )
    except (StoreError, ValueError, KeyError, TypeError):
        return None


def _is_decidable(predicate: Predicate, metadata: Metadata | None) -> bool:
    """Return whether the filter depends only on what is known of an event."""
    doubts = find_doubts(predicate)
    if "predictions" in doubts or ("metadata" in doubts and metadata is None):
        return False
    properties = {
        node.name for node in typed.iterate_nodes(predicate) if isinstance(node, typed.Property)
    }
    return properties.isdisjoint(NOT_IN_EVENTS)
