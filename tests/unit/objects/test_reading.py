from concurrent.futures import ThreadPoolExecutor

import pytest
from obstore.exceptions import PermissionDeniedError

from inference_store.inference.errors import (
    AccessDenied,
    BlobForbidden,
    BlobMissing,
    BlobsAway,
    BlobTooLarge,
    BlobUnreadable,
)
from inference_store.inference.events import StorageKey
from inference_store.objects.reading import OVER_BUDGET, Fetched, get_many, translated


def key(name: str) -> StorageKey:
    return StorageKey("bucket", name)


def fetch(keys: list[StorageKey | None], *, threads: int = 4, budget: int = 1000) -> list[Fetched]:
    def get(found: StorageKey) -> bytes:
        if found.key == "missing":
            raise BlobMissing(str(found))
        if found.key == "forbidden":
            raise BlobForbidden(str(found))
        if found.key == "large":
            raise BlobTooLarge(str(found))
        if found.key == "away":
            raise BlobsAway("no route")
        return found.key.encode()

    with ThreadPoolExecutor(4) as executor:
        return get_many(executor, get, keys, threads=threads, budget=budget)


def test_results_are_in_the_order_of_the_keys() -> None:
    names = [str(number) for number in range(50)]
    assert fetch([key(name) for name in names]) == [name.encode() for name in names]


def test_one_missing_or_too_large_blob_does_not_spoil_the_others() -> None:
    found = fetch([key("a"), None, key("missing"), key("large"), key("b"), key("forbidden")])
    assert found[:2] == [b"a", None]
    assert isinstance(found[2], BlobMissing)
    assert isinstance(found[3], BlobTooLarge)
    assert found[4] == b"b"
    assert isinstance(found[5], BlobForbidden)


def test_nothing_is_asked_for_once_the_budget_is_full() -> None:
    keys: list[StorageKey | None] = [key("four"), key("five5"), key("six666")]
    assert fetch(keys, threads=1, budget=5) == [b"four", b"five5", OVER_BUDGET]


def test_a_store_that_is_away_is_no_missing_blob() -> None:
    with pytest.raises(BlobsAway):
        fetch([key("a"), key("away"), key("b")])


def test_no_keys_no_results() -> None:
    assert fetch([]) == []


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (FileNotFoundError("404 <Code>NoSuchKey</Code>"), BlobMissing),
        (FileNotFoundError("404 <Code>NoSuchBucket</Code>"), BlobsAway),
        (FileNotFoundError("404 <Code>NoSuchVersion</Code>"), BlobMissing),
        (OSError("400 <Code>KeyTooLongError</Code>"), BlobUnreadable),
        (PermissionDeniedError("403 <Code>InvalidObjectState</Code>"), BlobUnreadable),
        (OSError("503 <Code>SlowDown</Code>"), BlobsAway),
        (OSError("connection refused"), BlobsAway),
        (PermissionDeniedError("403 <Code>AccessDenied</Code>"), AccessDenied),
        (ValueError("could not parse path"), BlobMissing),
    ],
)
def test_what_an_error_of_the_client_means(error: Exception, meaning: type[Exception]) -> None:
    assert type(translated(key("a"), error)) is meaning
