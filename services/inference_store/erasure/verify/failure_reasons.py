"""The reasons why a step of retention failed, in a few words that a metric can count."""

from typing import Final

from inference_store.platform.metrics import RETENTION_TROUBLE

FAILURES: Final[dict[str, str]] = {
    "postgres": "Postgres is unavailable, or refuses.",
    "object_store": "The object store is unavailable.",
    "ledger": "The ledger in the bucket and Postgres are apart.",
    "hold_unreadable": "The filter of a legal hold cannot be evaluated: what it may keep stays.",
    "policy_unreadable": "The filter of a retention policy cannot be read: its models keep all.",
    "limit_out_of_time": "What is beyond a policy's limits was not found in time.",
    "partition_in_use": "A query holds a partition that is to be dropped.",
    "object_locked": "An object is locked (object lock, a legal hold of S3).",
    "access_denied": "The object store refuses the services' rights.",
    "bucket_not_allowed": "An object lies in a bucket that is not allowed.",
    "still_there": "An object was deleted without a fault, and is listed still.",
    "not_rewritten": "A metadata blob or sidecar with the request could not be written again.",
    "other": "Another fault of the object store; `GET /v1/erasures` says which.",
}
_CODES: Final = {
    "AccessDenied": "access_denied",
    "BucketNotAllowed": "bucket_not_allowed",
    "StillThere": "still_there",
    "NotRewritten": "not_rewritten",
    "TooLarge": "not_rewritten",
    "ObjectLocked": "object_locked",
}
# The messages of object stores if a lock refuses: MinIO, then AWS.
_LOCKED: Final = ("worm protected", "object lock", "retention period", "legal hold")


def count_failure(reason: str, count: int = 1) -> None:
    """Count failures of a reason of the list."""
    RETENTION_TROUBLE.labels(reason if reason in FAILURES else "other").inc(count)


def find_reason(code: str, message: str) -> str:
    """Return the reason for an object store's code and message."""
    if any(words in message.lower() for words in _LOCKED):
        return "object_locked"
    return _CODES.get(code, "other")
