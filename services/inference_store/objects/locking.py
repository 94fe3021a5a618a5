"""An object that nobody can delete for a while: every version of it is locked, if the bucket has
object lock.
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

from .clients import knows_no_versions, minio_client, translate_errors
from .encryption import minio_encryption
from .listing import survivors

# No object lock, or no right to lock: the object is then written without a lock.
_NOT_LOCKED = {
    "InvalidRequest",
    "ObjectLockConfigurationNotFoundError",
    "NotImplemented",
    "AccessDenied",
}
_THREADS = 8
_AT_ONCE = 256


class LockedObject:
    """One key that is written repeatedly; each version stays.

    All methods block and raise ObjectStoreUnavailable.
    """

    def __init__(self, settings: BlobSettings, key: StorageKey) -> None:
        self._client: Minio = minio_client(settings, settings.s3_endpoint)
        self._encryption = minio_encryption(settings)
        self._key = key

    def put(self, data: bytes, *, content_type: str, until: datetime | None) -> bool:
        """Write a version, and return whether it is locked. `until`: the end of the lock; None for
        no lock."""
        with translate_errors():
            if until is not None:
                try:
                    self._put(data, content_type, Retention(COMPLIANCE, until))
                except S3Error as exc:
                    if exc.code not in _NOT_LOCKED:
                        raise
                else:
                    return self.is_locked()  # a server without locks accepts it, too
            self._put(data, content_type, None)
        return False

    def versions(self, *, limit: int) -> Iterator[bytes]:
        """Yield every version, without delete markers; at most `limit` bytes of each. They are read
        a few at a time, and not kept."""
        bucket, name = self._key.bucket, self._key.key
        with translate_errors():
            try:
                listed = survivors(self._client, bucket, [name], True)
            except MinioException as exc:
                if not knows_no_versions(exc):
                    raise
                listed = survivors(self._client, bucket, [name], False)
        ids = [version.id for version in listed if not version.marker]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="versions") as executor:
            for start in range(0, len(ids), _AT_ONCE):
                batch = ids[start : start + _AT_ONCE]
                yield from executor.map(self._read, batch, repeat(limit))

    def is_locked(self) -> bool:
        """Return whether the newest version is locked for everyone."""
        with translate_errors():
            try:
                retention = self._client.get_object_retention(self._key.bucket, self._key.key)
            except (S3Error, ParseError):  # ParseError: rclone answers with the object
                return False
        return retention is not None and retention.mode == COMPLIANCE

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
        with translate_errors():
            answer = self._client.get_object(self._key.bucket, self._key.key, version_id=version)
            try:
                return answer.read(limit)
            finally:
                answer.close()
                answer.release_conn()
