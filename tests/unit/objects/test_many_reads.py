from concurrent.futures import ThreadPoolExecutor

import pytest
from obstore.exceptions import PermissionDeniedError

from inference_store.inference.errors import (
    AccessDenied,
    BlobForbidden,
    BlobMissing,
    BlobTooLarge,
    BlobUnreadable,
    ObjectStoreUnavailable,
)
from inference_store.inference.events import StorageKey
from inference_store.objects.many_reads import OVER_BUDGET, Fetched, get_many, translate_error

FAULTS = {
    "missing": BlobMissing,
    "forbidden": BlobForbidden,
    "large": BlobTooLarge,
    "away": ObjectStoreUnavailable,
}


def make_key(name: str) -> StorageKey:
    return StorageKey("bucket", name)


def fetch(*names: str | None, threads: int = 4, budget: int = 1000) -> list[Fetched]:
    """Get blobs that hold their names, or raise the fault of the name."""

    def get(storage_key: StorageKey) -> bytes:
        if storage_key.key in FAULTS:
            raise FAULTS[storage_key.key](str(storage_key))
        return storage_key.key.encode()

    keys = [None if name is None else make_key(name) for name in names]
    with ThreadPoolExecutor(4) as executor:
        return get_many(executor, get, keys, threads=threads, budget=budget)


def test_results_are_in_the_order_of_the_keys() -> None:
    names = [str(number) for number in range(50)]
    assert fetch(*names) == [name.encode() for name in names]
    assert fetch() == []


def test_a_missing_or_too_large_blob_does_not_affect_the_others() -> None:
    a, none, missing, large, b, forbidden = fetch("a", None, "missing", "large", "b", "forbidden")
    assert (a, none, b) == (b"a", None, b"b")
    assert isinstance(missing, BlobMissing)
    assert isinstance(large, BlobTooLarge)
    assert isinstance(forbidden, BlobForbidden)
    with pytest.raises(ObjectStoreUnavailable):
        fetch("a", "away", "b")


def test_nothing_is_asked_for_once_the_budget_is_full() -> None:
    assert fetch("four", "five5", "six666", threads=1, budget=5) == [b"four", b"five5", OVER_BUDGET]


def test_classifies_errors_of_the_client() -> None:
    for error, meaning in (
        (FileNotFoundError("404 <Code>NoSuchKey</Code>"), BlobMissing),
        (FileNotFoundError("404 <Code>NoSuchBucket</Code>"), ObjectStoreUnavailable),
        (FileNotFoundError("404 <Code>NoSuchVersion</Code>"), BlobMissing),
        (OSError("400 <Code>KeyTooLongError</Code>"), BlobUnreadable),
        (PermissionDeniedError("403 <Code>InvalidObjectState</Code>"), BlobUnreadable),
        (OSError("503 <Code>SlowDown</Code>"), ObjectStoreUnavailable),
        (OSError("connection refused"), ObjectStoreUnavailable),
        (PermissionDeniedError("403 <Code>AccessDenied</Code>"), AccessDenied),
        (ValueError("could not parse path"), BlobMissing),
    ):
        assert type(translate_error(make_key("a"), error)) is meaning, error
