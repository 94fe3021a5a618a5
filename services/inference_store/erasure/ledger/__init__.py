"""What is decided about deletion, in the bucket before it takes effect in Postgres."""

from .entry import Body, Entry, Note
from .kinds import KINDS, Kind
from .ledger import Ledger, Saying
from .watch import LedgerWatch

__all__ = ["KINDS", "Body", "Entry", "Kind", "Ledger", "LedgerWatch", "Note", "Saying"]
