"""Compares the bucket with this database, and reads the entry that the database needs next."""

from collections.abc import Container
from dataclasses import dataclass

from inference_store.erasure.log.hash_chain import Link
from inference_store.inference.errors import LedgerDiverged

from . import divergence
from .entries import Entries
from .entry import Entry


@dataclass(frozen=True, slots=True)
class Comparison:
    """The head here, and the number of the next entry in the bucket; None: there is none."""

    head: Link
    following: int | None


def compare(entries: Entries, head: Link) -> Comparison:
    """Find out whether the bucket has the head's entry, and whether it goes on after it.

    Blocks. Raises LedgerDiverged, with the remedy; ObjectStoreUnavailable.
    """
    if head.number:
        entry = entries.get(head.number)
        if entry is None:
            raise LedgerDiverged(divergence.describe_older_bucket(entries.location, head.number))
        if entry.link != head:
            raise LedgerDiverged(divergence.describe_other_ledger(entries.location, head.number))
    return Comparison(head, entries.find_after(head.number))


def read_following(entries: Entries, head: Link, number: int, kinds: Container[str]) -> Entry:
    """Read the entry that follows the head; `number`: of the next that the bucket has.

    Blocks. Raises LedgerDiverged if an entry is missing between them, or if the next one does not
    follow the head or is of an unknown kind; ObjectStoreUnavailable.
    """
    entry = entries.get(number) if number == head.number + 1 else None
    if entry is None:
        raise LedgerDiverged(divergence.describe_gap(entries.location, head.number + 1, number))
    if any(head.find_faults(entry)):
        raise LedgerDiverged(divergence.describe_other_ledger(entries.location, number))
    if entry.kind not in kinds:
        raise LedgerDiverged(divergence.describe_unknown_kind(entry))
    return entry
