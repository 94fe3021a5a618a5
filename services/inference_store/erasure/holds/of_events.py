"""What holds keep of events that are not stored: dead letters, and parked ones.

Of their response the metadata alone are read, and those may be out of reach: what is not known
protects.
"""

from collections.abc import Sequence

from inference_store.inference.errors import StoreError
from inference_store.inference.events import InferenceEvent
from inference_store.inference.metadata import Metadata
from inference_store.query.facts import NOT_IN_EVENTS, build_event_facts
from inference_store.query.filters import typed
from inference_store.query.filters.certain import find_doubts, iterate_nodes
from inference_store.query.filters.typed import Predicate

from .hold import Hold
from .meaning import held, meaning


def keeping(
    found: Sequence[Hold],
    event: InferenceEvent | None,
    metadata: Metadata | None,
    *,
    doubted: Sequence[Hold],
) -> Hold | None:
    """The first of the holds of its model that keeps it. None for what cannot be decoded, or read.

    `doubted`: those that keep it too where it is not known whether they do.
    """
    for one in found:
        answer = _keeps(one, event, metadata)
        if answer or (answer is None and one in doubted):
            return one
    return None


def _keeps(one: Hold, event: InferenceEvent | None, metadata: Metadata | None) -> bool | None:
    """None: it cannot be said."""
    try:
        if event is None or not _can_be_said(meaning(one.filter), metadata):
            return None
        known = metadata or Metadata()
        return held(one, build_event_facts(event, known), (*event.flags, *known.flags))
    except (StoreError, ValueError, KeyError, TypeError):
        return None


def _can_be_said(predicate: Predicate, metadata: Metadata | None) -> bool:
    spoken = find_doubts(predicate)
    if "predictions" in spoken or ("metadata" in spoken and metadata is None):
        return False
    named = {node.name for node in iterate_nodes(predicate) if isinstance(node, typed.Property)}
    return named.isdisjoint(NOT_IN_EVENTS)
