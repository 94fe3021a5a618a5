"""An object that nobody can take away for a while: every version of it is locked, where the bucket
has object lock.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from io import BytesIO
from itertools import repeat
from xml.etree.ElementTree import ParseError

from minio import Minio
from minio.commonconfig import COMPLIANCE
from minio.error import MinioException, S3Error
from minio.retention import Retention

from inference_store.inference.events import StorageKey
from inference_store.platform.settings import BlobSettings

from .clients import away, knows_no_versions, minio_client
from .encryption import minio_encryption
from .listing import survivors

# No object lock, or not the right to lock: what is then written is not locked.
_NOT_LOCKED = {
    "InvalidRequest",
    "ObjectLockConfigurationNotFoundError",
    "NotImplemented",
    "AccessDenied",
}
_THREADS = 8
_AT_ONCE = 256


class LockedObject:
    """One key, written again and again; each version stays. All of it blocks; raises BlobsAway."""

    def __init__(self, settings: BlobSettings, key: StorageKey) -> None:
        self._client: Minio = minio_client(settings, settings.s3_endpoint)
        self._encryption = minio_encryption(settings)
        self._key = key

    def put(self, data: bytes, *, content_type: str, until: datetime | None) -> bool:
        """Write a version; whether it is locked. `until`: how long; None: not at all."""
        with away():
            if until is not None:
                try:
                    self._put(data, content_type, Retention(COMPLIANCE, until))
                except S3Error as exc:
                    if exc.code not in _NOT_LOCKED:
                        raise
                else:
                    return self.is_locked()  # a server that knows no locks has taken it as well
            self._put(data, content_type, None)
        return False

    def versions(self, *, limit: int) -> Iterator[bytes]:
        """Every version that there is, delete markers aside; at most `limit` bytes of each. They
        are read some at a time, and none is kept."""
        bucket, name = self._key.bucket, self._key.key
        with away():
            try:
                found = survivors(self._client, bucket, [name], True)
            except MinioException as exc:
                if not knows_no_versions(exc):
                    raise
                found = survivors(self._client, bucket, [name], False)
        ids = [version.id for version in found if not version.marker]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="versions") as executor:
            for start in range(0, len(ids), _AT_ONCE):
                some = ids[start : start + _AT_ONCE]
                yield from executor.map(self._read, some, repeat(limit))

    def is_locked(self) -> bool:
        """Whether the newest version is kept from everyone, and may still be for a while."""
        with away():
            try:
                kept = self._client.get_object_retention(self._key.bucket, self._key.key)
            except (S3Error, ParseError):  # that of rclone answers with the object
                return False
        return kept is not None and kept.mode == COMPLIANCE

    def _put(self, data: bytes, content_type: str, retention: Retention | None) -> None:
        self._client.put_object(
            self._key.bucket,
            self._key.key,
            BytesIO(data),
            len(data),
            content_type,
            sse=self._encryption,
            retention=retention,
        )

    def _read(self, version: str | None, limit: int) -> bytes:
        with away():
            answer = self._client.get_object(self._key.bucket, self._key.key, version_id=version)
            try:
                return answer.read(limit)
            finally:
                answer.close()
                answer.release_conn()
