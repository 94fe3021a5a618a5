"""Inferences of three objects each; the objects are put in parallel."""

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

from benchmarks.ingest.events import Event, make_events

from .floors import StoredObject

KINDS: Final = ("data", "metadata", "response")
_DATUM = bytes(1024)
_THREADS = 16
_SOME = 2000


def create_bucket(minio: S3, name: str, *, versioned: bool) -> str:
    """Create a bucket; return its name."""
    minio.create_bucket(name)
    if versioned:
        minio.client().set_bucket_versioning(name, VersioningConfig(ENABLED))
    return name


def make_model_events(count: int, *, model_id: str, days: int) -> Iterator[Event]:
    """Make events of a model, 10 ms apart, so many days ago."""
    for event in make_events(0, count):
        received_at = event.received_at - timedelta(days=days)
        yield replace(event, model_id=model_id, received_at=received_at)


def put_objects(store: S3Store, events: Iterable[Event]) -> list[StoredObject]:
    """Put their objects, each with its version where the bucket keeps them."""
    stored: list[StoredObject] = []
    waiting = iter(events)
    with ThreadPoolExecutor(_THREADS) as threads:
        while some := list(islice(waiting, _SOME)):
            stored += [
                stored_object
                for objects in threads.map(lambda e: _put_objects_of(store, e), some)
                for stored_object in objects
            ]
    return stored


def _put_objects_of(store: S3Store, event: Event) -> Sequence[StoredObject]:
    blobs = (_DATUM, event.metadata, event.response)
    keys = [event.key(kind) for kind in KINDS]
    answers = [obstore.put(store, key, blob) for key, blob in zip(keys, blobs, strict=True)]
    return [StoredObject(key, answer["version"]) for key, answer in zip(keys, answers, strict=True)]
