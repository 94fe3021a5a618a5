"""Deleting objects: S3 by itself, by two clients, and as an erasure does it, batch by batch."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import obstore
from minio import Minio
from minio.deleteobjects import DeleteObject
from obstore.store import S3Store

from benchmarks.ingest.events import Made
from inference_store.store.blobs import Blobs
from inference_store.store.events import StorageKey

KINDS = ("data", "metadata", "response")
_PAGE = 1000  # what one request of S3 takes
_THREADS = 4
Erase = Callable[[Sequence[str]], None]


def keys_of(events: Sequence[Made]) -> list[str]:
    """Their objects, those of an event side by side."""
    return [event.key(kind) for event in events for kind in KINDS]  # type: ignore[arg-type]


def by_obstore(store: S3Store) -> Erase:
    """Bulk deletes by the client that is written in Rust."""

    def erase(page: Sequence[str]) -> None:
        obstore.delete(store, list(page))

    return lambda keys: _in_pages(keys, erase)


def by_minio(client: Minio, bucket: str) -> Erase:
    """Bulk deletes by the client that is written in Python."""

    def erase(page: Sequence[str]) -> None:
        faults = list(client.remove_objects(bucket, [DeleteObject(key) for key in page]))
        if faults:
            raise RuntimeError(str(faults[0]))

    return lambda keys: _in_pages(keys, erase)


def as_an_erasure(blobs: Blobs, bucket: str, *, batch: int, verified: bool) -> Erase:
    """The delete step, and with `verified` the listing that sees that all is gone."""

    def erase(keys: Sequence[str]) -> None:
        for start in range(0, len(keys), batch * len(KINDS)):
            some = [StorageKey(bucket, key) for key in keys[start : start + batch * len(KINDS)]]
            left = blobs.delete_objects(some) or (verified and blobs.still_there(some))
            if left:
                raise RuntimeError(str(left))

    return erase


def timed(erase: Erase, keys: Sequence[str]) -> float:
    """Objects per second."""
    started = time.perf_counter()
    erase(keys)
    return len(keys) / (time.perf_counter() - started)


def _in_pages(keys: Sequence[str], erase: Erase) -> None:
    pages = [keys[start : start + _PAGE] for start in range(0, len(keys), _PAGE)]
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(erase, pages))
