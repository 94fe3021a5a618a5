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


def make_key(name: str) -> StorageKey:
    return StorageKey("bucket", name)


def fetch(keys: list[StorageKey | None], *, threads: int = 4, budget: int = 1000) -> list[Fetched]:
    def get(storage_key: StorageKey) -> bytes:
        if storage_key.key == "missing":
            raise BlobMissing(str(storage_key))
        if storage_key.key == "forbidden":
            raise BlobForbidden(str(storage_key))
        if storage_key.key == "large":
            raise BlobTooLarge(str(storage_key))
        if storage_key.key == "away":
            raise ObjectStoreUnavailable("no route")
        return storage_key.key.encode()

    with ThreadPoolExecutor(4) as executor:
        return get_many(executor, get, keys, threads=threads, budget=budget)


def test_results_are_in_the_order_of_the_keys() -> None:
    names = [str(number) for number in range(50)]
    assert fetch([make_key(name) for name in names]) == [name.encode() for name in names]


def test_a_missing_or_too_large_blob_does_not_affect_the_others() -> None:
    blobs = fetch(
        [
            make_key("a"),
            None,
            make_key("missing"),
            make_key("large"),
            make_key("b"),
            make_key("forbidden"),
        ]
    )
    assert blobs[:2] == [b"a", None]
    assert isinstance(blobs[2], BlobMissing)
    assert isinstance(blobs[3], BlobTooLarge)
    assert blobs[4] == b"b"
    assert isinstance(blobs[5], BlobForbidden)


def test_nothing_is_asked_for_once_the_budget_is_full() -> None:
    keys: list[StorageKey | None] = [make_key("four"), make_key("five5"), make_key("six666")]
    assert fetch(keys, threads=1, budget=5) == [b"four", b"five5", OVER_BUDGET]


def test_a_store_that_is_away_is_no_missing_blob() -> None:
    with pytest.raises(ObjectStoreUnavailable):
        fetch([make_key("a"), make_key("away"), make_key("b")])


def test_no_keys_no_results() -> None:
    assert fetch([]) == []


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
