"""Inferences of three objects each: the objects put in parallel, the rows as an ingester would."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Final

import obstore
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from obstore.store import S3Store
from tests.servers.minio import S3

from benchmarks.ingest.events import Made, made

from .floors import Put

KINDS: Final = ("data", "metadata", "response")
_DATUM = bytes(1024)
_THREADS = 16
_SOME = 2000


def bucket_of(minio: S3, name: str, *, versioned: bool) -> str:
    """A new bucket."""
    minio.create_bucket(name)
    if versioned:
        minio.client().set_bucket_versioning(name, VersioningConfig(ENABLED))
    return name


def events_of(count: int, *, model_id: str, days: int) -> Iterator[Made]:
    """Events of a model, 10 ms apart, so many days ago."""
    for event in made(0, count):
        received_at = event.received_at - timedelta(days=days)
        yield replace(event, model_id=model_id, received_at=received_at)


def put(store: S3Store, events: Iterable[Made]) -> list[Put]:
    """Their objects, each with its version where the bucket keeps them."""
    found: list[Put] = []
    waiting = iter(events)
    with ThreadPoolExecutor(_THREADS) as threads:
        while some := list(islice(waiting, _SOME)):
            found += [
                one for objects in threads.map(lambda e: _put(store, e), some) for one in objects
            ]
    return found


def _put(store: S3Store, event: Made) -> Sequence[Put]:
    blobs = (_DATUM, event.metadata, event.response)
    keys = [event.key(kind) for kind in KINDS]
    said = [obstore.put(store, key, blob) for key, blob in zip(keys, blobs, strict=True)]
    return [Put(key, one["version"]) for key, one in zip(keys, said, strict=True)]
