"""From a read event to its rows, and the writing of a batch of them."""

from .indexable import Indexable
from .rows import EXTRAS_COLUMNS, Rows, rows_of
from .seen import deltas
from .write import Written, write, write_deltas

__all__ = [
    "EXTRAS_COLUMNS",
    "Indexable",
    "Rows",
    "Written",
    "deltas",
    "rows_of",
    "write",
    "write_deltas",
]
