"""Deleting objects, every version of them, and seeing that they are gone."""

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
from inference_store.platform.stages import stage

from .clients import away, knows_no_versions
from .keys import is_addressable, is_plain
from .listed import PAGE, Version
from .listing import survivors

_VERSIONING_SECONDS = 60.0
THREADS = 4  # bulk deletes in flight: more gain nothing on one server
_LEAST = 250  # in a request, where there are so many
# By bucket that keeps versions: those that were listed of some keys.
Listed: TypeAlias = Mapping[str, Sequence[Version]]


@dataclass(frozen=True, slots=True)
class DeleteFault:
    """An object that could not be deleted; `held`: a lock or legal hold of S3 keeps it."""

    key: StorageKey
    code: str
    message: str

    @property
    def held(self) -> bool:
        """Governance, compliance and legal hold answer alike: InvalidRequest, "WORM"."""
        return "WORM" in self.message or "object lock" in self.message


class Deleted(list[DeleteFault]):
    """What went wrong with a deletion, and what went: versions, markers too, and their bytes,
    where the bucket keeps versions."""

    versions = 0
    bytes = 0


class Deletion:
    """Deletes in bulk. Every call blocks and raises BlobsAway when S3 cannot be asked."""

    def __init__(self, client: Minio) -> None:
        self._client = client
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs-delete")
        # of their own: they list beside deletes
        self._lister = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs-list")
        self._versioned: dict[str, tuple[float, bool]] = {}

    def list_versions(self, keys: Iterable[StorageKey]) -> Listed:
        """All versions and markers of the keys that lie in buckets which keep versions."""
        return {
            bucket: self._survivors(bucket, names, versions=True, expected=True)
            for bucket, names in _by_bucket(keys).items()
            if self._keeps_versions(bucket)
        }

    def delete(self, keys: Iterable[StorageKey], listed: Listed | None = None) -> Deleted:
        """Delete all versions and markers. Deleting what is not there is no fault.

        `listed`: the versions of the keys, from `list_versions`; None: they are listed now.
        """
        wanted, deleted = list(keys), Deleted()
        listed = self.list_versions(wanted) if listed is None else listed
        for bucket, names in _by_bucket(wanted).items():
            versions = listed.get(bucket)
            plain = [Version(name) for name in names]
            faults = self._delete(bucket, plain if versions is None else versions)
            deleted += faults
            left = {fault.key.key for fault in faults}
            gone = [version for version in versions or () if version.key not in left]
            deleted.versions += len(gone)
            deleted.bytes += sum(version.size for version in gone)
        return deleted

    def still_there(self, keys: Iterable[StorageKey]) -> list[StorageKey]:
        """Those of `keys` of which a version or a delete marker is still listed.

        Whether the bucket keeps versions is asked anew: where it began to after it was asked last,
        a delete without a version's id has written a marker, and the data stayed.
        """
        found: list[StorageKey] = []
        for bucket, names in _by_bucket(keys).items():
            self._versioned.pop(bucket, None)
            left = self._survivors(bucket, names, versions=self._keeps_versions(bucket))
            found += [
                StorageKey(bucket, name) for name in sorted({version.key for version in left})
            ]
        return found

    def delete_older(self, key: StorageKey) -> list[DeleteFault]:
        """Delete all versions but the latest, and see that they are gone."""
        if not self._keeps_versions(key.bucket):
            return []
        faults = self._delete(key.bucket, self._older(key))
        left = not faults and self._older(key)
        return [DeleteFault(key, "NotGone", "an older version is still listed")] if left else faults

    def delete_hidden(self, key: StorageKey) -> list[DeleteFault]:
        """Delete what lies beneath the delete marker of an object that a read did not find.

        The marker stays: without it a crash could bring an older version back to light. An
        object that is listed as present all the same is a fault, and is left.
        """
        faults = self.delete_older(key)
        listed = self._survivors(key.bucket, [key.key], versions=self._keeps_versions(key.bucket))
        if faults or all(version.marker or not version.latest for version in listed):
            return faults
        return [DeleteFault(key, "NotRewritten", "it was not found, and is listed")]

    def _older(self, key: StorageKey) -> list[Version]:
        found = self._survivors(key.bucket, [key.key], versions=True)
        return [version for version in found if not version.latest]

    def close(self) -> None:
        """End the threads."""
        for executor in (self._executor, self._lister):
            executor.shutdown(wait=True, cancel_futures=True)

    def _survivors(
        self, bucket: str, names: Sequence[str], *, versions: bool, expected: bool = False
    ) -> list[Version]:
        timed = stage(STEP_SECONDS, "list") if expected else nullcontext()
        with away(), timed:
            return survivors(
                self._client, bucket, names, versions, executor=self._lister, expected=expected
            )

    def _delete(self, bucket: str, doomed: Sequence[Version]) -> list[DeleteFault]:
        plain = [version for version in doomed if is_plain(version.key)]
        odd = [version for version in doomed if not is_plain(version.key)]
        size = _page_size(len(plain))
        pieces = [plain[at : at + size] for at in range(0, len(plain), size)]
        running = [self._executor.submit(self._delete_page, bucket, piece) for piece in pieces]
        faults = [fault for done in running for fault in done.result()]
        return faults + [fault for one in odd for fault in self._delete_one(bucket, one)]

    def _delete_page(self, bucket: str, page: Sequence[Version]) -> list[DeleteFault]:
        with away():
            # a generator: nothing is deleted until it is read to its end
            errors = list(
                self._client.remove_objects(bucket, [DeleteObject(v.key, v.id) for v in page])
            )
        return [
            DeleteFault(StorageKey(bucket, error.name or ""), error.code, error.message or "")
            for error in errors
            if error.code != "NoSuchKey"
        ]

    def _delete_one(self, bucket: str, version: Version) -> list[DeleteFault]:
        key = StorageKey(bucket, version.key)
        if not is_addressable(key.key):
            return [DeleteFault(key, "InvalidKey", "no client can address `.` and `..`")]
        with away():
            try:
                self._client.remove_object(bucket, version.key, version_id=version.id)
            except S3Error as exc:
                if exc.response.status >= 500 or exc.code == "NoSuchBucket":
                    raise
                return [DeleteFault(key, exc.code or "", exc.message or "")]
        return []

    def _keeps_versions(self, bucket: str) -> bool:
        """Whether versioning is or was on: then old versions may lie there."""
        asked_at, answer = self._versioned.get(bucket, (0.0, False))
        if asked_at and time.monotonic() - asked_at < _VERSIONING_SECONDS:
            return answer
        answer = self._ask_versioning(bucket)
        self._versioned[bucket] = (time.monotonic(), answer)
        return answer

    def _ask_versioning(self, bucket: str) -> bool:
        with away():
            try:
                return self._client.get_bucket_versioning(bucket).status not in {None, "", OFF}
            except MinioException as exc:
                if knows_no_versions(exc):
                    return False
                raise


def _page_size(count: int) -> int:
    """Of equal requests, as many as are in flight at once or several times that: none waits alone
    for the last one."""
    requests = THREADS * math.ceil(count / (THREADS * PAGE))
    return max(_LEAST, math.ceil(count / max(1, requests)))


def _by_bucket(keys: Iterable[StorageKey]) -> dict[str, list[str]]:
    """The different keys of each bucket, in S3's order (code points are UTF-8's byte order)."""
    names: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        names[key.bucket].add(key.key)
    return {bucket: sorted(found) for bucket, found in names.items()}
