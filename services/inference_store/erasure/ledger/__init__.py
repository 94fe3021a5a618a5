"""The ledger: decisions about deletion, in the bucket before they take effect in Postgres."""

from .entries import Body, Entry, Note
from .entry_kinds import KINDS, Kind
from .ledger import Ledger, LedgerWatch, MakeBody

__all__ = ["KINDS", "Body", "Entry", "Kind", "Ledger", "LedgerWatch", "MakeBody", "Note"]
