"""Describes how bucket and Postgres diverge, and what the operator can do about it."""

from .entry import Entry


def describe_older_database(location: str, number: int, entry: Entry) -> str:
    """Describe a bucket that has more entries than this database."""
    return (
        f"The ledger in {location} goes on after entry {number}, the last one that this database"
        f" knows: entry {entry.number} ({entry.kind}) is of {entry.at:%Y-%m-%d %H:%M} UTC. So this"
        " is an older backup: run `inference-store ledger replay`, which gives it the holds,"
        " policies and erasures since."
    )


def describe_older_bucket(location: str, number: int) -> str:
    """Describe a bucket that lacks the last entry that this database knows."""
    return (
        f"{location} has no entry {number} of the ledger, which this database knows. Is it the"
        " bucket and the prefix of before (INFERENCE_STORE_S3_BUCKET,"
        " INFERENCE_STORE_LEDGER_PREFIX)? Bring lost entries back from a copy; if the bucket is a"
        " new one, `inference-store ledger restart-chain`."
    )


def describe_other_ledger(location: str, number: int) -> str:
    """Describe a bucket with the ledger of another store."""
    return (
        f"Entry {number} of the ledger in {location} is not the one that this database knows: it is"
        " the ledger of another store, or a backup of this one went on by itself. Give each"
        " store a prefix of its own (INFERENCE_STORE_LEDGER_PREFIX)."
    )


def describe_gap(location: str, missing: int, present: int) -> str:
    """Describe a bucket in which an entry is missing before another."""
    return (
        f"{location} has entry {present} of the ledger, and not {missing}: entries were removed, or"
        " the ledger was restarted after this backup was made. Bring them back from a copy of the"
        " bucket."
    )


def describe_redacted(entry: Entry) -> str:
    """Describe an entry that has no content any more."""
    return (
        f"Entry {entry.number} ({entry.kind}, {entry.at:%Y-%m-%d} UTC) has forgotten what it said:"
        " this backup is older than INFERENCE_STORE_LEDGER_VALUES_KEEP_SECONDS. Restore a newer"
        " one; or go on without it by `inference-store ledger replay --skip-forgotten`, and set"
        " again what it set."
    )


def describe_unknown_kind(entry: Entry) -> str:
    """Describe an entry that a later version wrote."""
    return (
        f"Entry {entry.number} is of the kind {entry.kind!r}, which this version does not know: run"
        " the version that wrote it, or a later one."
    )


def describe_not_empty(location: str, number: int) -> str:
    """Describe a bucket in which no ledger can be restarted, because one is there."""
    return (
        f"{location} holds entry {number} of a ledger already: a ledger is restarted in an empty"
        " bucket or under a prefix of its own (INFERENCE_STORE_LEDGER_PREFIX)."
    )
