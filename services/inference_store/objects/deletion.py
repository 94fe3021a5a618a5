"""Deletes all versions of objects, and verifies that they are gone."""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from minio import Minio
from minio.deleteobjects import DeleteObject
from minio.error import MinioException, S3Error
from minio.versioningconfig import OFF

from inference_store.inference.events import StorageKey
from inference_store.platform.metrics import STEP_SECONDS
from inference_store.platform.traces import stage

from .clients import knows_no_versions, translate_errors
from .listing import IMPOSSIBLE, PAGE, ObjectVersion, is_addressable, is_plain, survivors

_VERSIONING_SECONDS = 60.0
THREADS = 4  # bulk deletes in flight: more do not help on one server
_LEAST = 250  # keys in a request, if there are that many
# The listed versions of some keys, by bucket that keeps versions.
Listed: TypeAlias = Mapping[str, Sequence[ObjectVersion]]


@dataclass(frozen=True, slots=True)
class DeleteFault:
    """An object that could not be deleted; `held`: a lock or legal hold of S3 keeps it."""

    key: StorageKey
    code: str
    message: str

    @property
    def held(self) -> bool:
        """True if a lock keeps the object: governance, compliance and legal hold give the same
        answer, InvalidRequest, "WORM"."""
        return "WORM" in self.message or "object lock" in self.message


class Deleted(list[DeleteFault]):
    """The faults of a deletion, and the number and bytes of the versions deleted, including
    markers, if the bucket keeps versions."""

    versions = 0
    bytes = 0


class Deletion:
    """Deletes in bulk. Every call blocks and raises ObjectStoreUnavailable if S3 is unavailable."""

    def __init__(self, client: Minio) -> None:
        self._client = client
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs-delete")
        # separate threads: they list while others delete
        self._lister = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs-list")
        self._versioned: dict[str, tuple[float, bool]] = {}

    def list_versions(self, keys: Iterable[StorageKey]) -> Listed:
        """Return all versions and markers of the keys in buckets that keep versions."""
        return {
            bucket: self._survivors(bucket, names, versions=True, expected=True)
            for bucket, names in _by_bucket(keys).items()
            if self._keeps_versions(bucket)
        }

    def delete(self, keys: Iterable[StorageKey], listed: Listed | None = None) -> Deleted:
        """Delete all versions and markers. A missing object is not a fault.

        `listed`: the versions of the keys, from `list_versions`; None: list them now.
        """
        all_keys, deleted = list(keys), Deleted()
        listed = self.list_versions(all_keys) if listed is None else listed
        for bucket, names in _by_bucket(all_keys).items():
            versions = listed.get(bucket)
            plain = [ObjectVersion(name) for name in names]
            faults = self._delete(bucket, plain if versions is None else versions)
            deleted += faults
            failed = {fault.key.key for fault in faults}
            removed = [version for version in versions or () if version.key not in failed]
            deleted.versions += len(removed)
            deleted.bytes += sum(version.size for version in removed)
        return deleted

    def still_there(self, keys: Iterable[StorageKey]) -> list[StorageKey]:
        """Return the keys that still have a listed version or delete marker.

        Whether the bucket keeps versions is checked again: if it began to since the last check, a
        delete without a version's id has written a marker, and the data stayed.
        """
        remaining: list[StorageKey] = []
        for bucket, names in _by_bucket(keys).items():
            self._versioned.pop(bucket, None)
            versions = self._survivors(bucket, names, versions=self._keeps_versions(bucket))
            remaining += [
                StorageKey(bucket, name) for name in sorted({version.key for version in versions})
            ]
        return remaining

    def ask_again(self) -> None:
        """Check again whether buckets keep versions."""
        self._versioned.clear()

    def delete_older(self, key: StorageKey) -> list[DeleteFault]:
        """Delete all versions but the latest, and verify that they are gone."""
        if not self._keeps_versions(key.bucket):
            return []
        faults = self._delete(key.bucket, self._list_older(key))
        remaining = not faults and self._list_older(key)
        return (
            [DeleteFault(key, "NotGone", "an older version is still listed")]
            if remaining
            else faults
        )

    def delete_hidden(self, key: StorageKey) -> list[DeleteFault]:
        """Delete the versions below the delete marker of an object that a read did not find.

        The marker stays: without it a crash could uncover an older version. An object that is
        still listed as present is a fault, and is left alone.
        """
        faults = self.delete_older(key)
        listed = self._survivors(key.bucket, [key.key], versions=self._keeps_versions(key.bucket))
        if faults or all(version.marker or not version.latest for version in listed):
            return faults
        return [DeleteFault(key, "NotRewritten", "it was not found, and is listed")]

    def _list_older(self, key: StorageKey) -> list[ObjectVersion]:
        versions = self._survivors(key.bucket, [key.key], versions=True)
        return [version for version in versions if not version.latest]

    def close(self) -> None:
        """End the threads."""
        for executor in (self._executor, self._lister):
            executor.shutdown(wait=True, cancel_futures=True)

    def _survivors(
        self, bucket: str, names: Sequence[str], *, versions: bool, expected: bool = False
    ) -> list[ObjectVersion]:
        timed = stage(STEP_SECONDS, "list") if expected else nullcontext()
        with translate_errors(), timed:
            return survivors(
                self._client, bucket, names, versions, executor=self._lister, expected=expected
            )

    def _delete(self, bucket: str, doomed: Sequence[ObjectVersion]) -> list[DeleteFault]:
        plain = [version for version in doomed if is_plain(version.key)]
        odd = [version for version in doomed if not is_plain(version.key)]
        size = _page_size(len(plain))
        pieces = [plain[at : at + size] for at in range(0, len(plain), size)]
        running = [self._executor.submit(self._delete_page, bucket, piece) for piece in pieces]
        faults = [fault for done in running for fault in done.result()]
        return faults + [fault for version in odd for fault in self._delete_one(bucket, version)]

    def _delete_page(self, bucket: str, page: Sequence[ObjectVersion]) -> list[DeleteFault]:
        with translate_errors():
            # a generator: nothing is deleted until it is read to its end
            errors = list(
                self._client.remove_objects(bucket, [DeleteObject(v.key, v.id) for v in page])
            )
        return [
            DeleteFault(StorageKey(bucket, error.name or ""), error.code, error.message or "")
            for error in errors
            if error.code != "NoSuchKey" and error.code not in IMPOSSIBLE
        ]

    def _delete_one(self, bucket: str, version: ObjectVersion) -> list[DeleteFault]:
        key = StorageKey(bucket, version.key)
        if not is_addressable(key.key):
            return [DeleteFault(key, "InvalidKey", "no client can address `.` and `..`")]
        with translate_errors():
            try:
                self._client.remove_object(bucket, version.key, version_id=version.id)
            except S3Error as exc:
                if exc.response.status >= 500 or exc.code == "NoSuchBucket":
                    raise
                return [DeleteFault(key, exc.code or "", exc.message or "")]
        return []

    def _keeps_versions(self, bucket: str) -> bool:
        """Return whether versioning is or was on, so that old versions may exist."""
        checked_at, answer = self._versioned.get(bucket, (0.0, False))
        if checked_at and time.monotonic() - checked_at < _VERSIONING_SECONDS:
            return answer
        with translate_errors():
            try:
                status = self._client.get_bucket_versioning(bucket).status
            except MinioException as exc:
                if not knows_no_versions(exc):
                    raise
                status = OFF
        answer = status not in {None, "", OFF}
        self._versioned[bucket] = (time.monotonic(), answer)
        return answer


def _page_size(count: int) -> int:
    """Return the keys per request for equal requests, a multiple of those in flight at once, so
    that no thread idles at the end."""
    requests = THREADS * math.ceil(count / (THREADS * PAGE))
    return max(_LEAST, math.ceil(count / max(1, requests)))


def _by_bucket(keys: Iterable[StorageKey]) -> dict[str, list[str]]:
    """Return the distinct keys of each bucket, in S3's order (code points are in UTF-8's byte
    order)."""
    names: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        names[key.bucket].add(key.key)
    return {bucket: sorted(keys_of_bucket) for bucket, keys_of_bucket in names.items()}
