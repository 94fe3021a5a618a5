"""From a read event to its rows, and the writing of a batch of them."""

from .facts import NOT_IN_EVENTS, facts_of, facts_of_event
from .indexable import Indexable
from .rows import Rows, rows_of
from .seen import deltas
from .write import Written, write, write_deltas

__all__ = [
    "NOT_IN_EVENTS",
    "Indexable",
    "Rows",
    "Written",
    "deltas",
    "facts_of",
    "facts_of_event",
    "rows_of",
    "write",
    "write_deltas",
]
