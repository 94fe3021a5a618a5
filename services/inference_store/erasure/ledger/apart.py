"""What an operator is told where the bucket and Postgres do not agree, and what to do."""

from collections.abc import Iterable

from .entry import Entry


def ahead(place: str, number: int, entry: Entry) -> str:
    """The bucket has more than this database."""
    return (
        f"The ledger in {place} goes on after entry {number}, the last one that this database"
        f" knows: entry {entry.number} ({entry.kind}) is of {entry.at:%Y-%m-%d %H:%M} UTC. So this"
        " is an older backup: run `inference-store ledger replay`, which gives it the holds,"
        " policies and erasures since."
    )


def behind(place: str, number: int) -> str:
    """This database has more than the bucket."""
    return (
        f"{place} has no entry {number} of the ledger, which this database knows. Is it the bucket"
        " and the prefix of before (INFERENCE_STORE_S3_BUCKET, INFERENCE_STORE_LEDGER_PREFIX)?"
        " Bring lost entries back from a copy; if the bucket is a new one,"
        " `inference-store ledger begin-anew`."
    )


def foreign(place: str, number: int) -> str:
    """The bucket has another ledger."""
    return (
        f"Entry {number} of the ledger in {place} is not the one that this database knows: it is"
        " the ledger of another store, or a backup of this one went on by itself. Give each"
        " store a prefix of its own (INFERENCE_STORE_LEDGER_PREFIX)."
    )


def gap(place: str, missing: int, found: int) -> str:
    """An entry is missing."""
    return (
        f"{place} has entry {found} of the ledger, and not {missing}: entries were removed, or the"
        " ledger began anew after this backup was made. Bring them back from a copy of the bucket."
    )


def forgotten(entry: Entry) -> str:
    """An entry no longer says what it said."""
    return (
        f"Entry {entry.number} ({entry.kind}, {entry.at:%Y-%m-%d} UTC) has forgotten what it said:"
        " this backup is older than INFERENCE_STORE_LEDGER_VALUES_KEEP_SECONDS. Restore a newer"
        " one; or go on without it by `inference-store ledger replay --skip-forgotten`, and set"
        " again what it set."
    )


def unknown_kind(entry: Entry, known: Iterable[str]) -> str:
    """A later version has written it."""
    return (
        f"Entry {entry.number} is of the kind {entry.kind!r}, which this version does not know"
        f" ({', '.join(sorted(known))}): run the version that wrote it, or a later one."
    )


def not_empty(place: str, number: int) -> str:
    """A ledger cannot begin where one is."""
    return (
        f"{place} holds entry {number} of a ledger already: a ledger begins anew in an empty bucket"
        " or under a prefix of its own (INFERENCE_STORE_LEDGER_PREFIX)."
    )
