"""Converts a read event to its rows, and writes a batch of them."""

from .indexable import Indexable
from .key_deltas import build_deltas
from .rows import EXTRAS_COLUMNS, Rows, rows_of
from .write import WriteResult, write, write_deltas

__all__ = [
    "EXTRAS_COLUMNS",
    "Indexable",
    "Rows",
    "WriteResult",
    "build_deltas",
    "rows_of",
    "write",
    "write_deltas",
]
