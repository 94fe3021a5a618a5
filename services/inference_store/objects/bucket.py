"""Inspects a bucket as an operator would: its existence, versioning, lock and clock."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from itertools import repeat
from xml.etree.ElementTree import ParseError

import urllib3
from minio import Minio
from minio.commonconfig import COMPLIANCE
from minio.error import InvalidResponseError, MinioException, S3Error
from minio.helpers import check_bucket_name
from minio.objectlockconfig import YEARS
from minio.retention import Retention

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.platform.settings import BlobSettings

from .clients import (
    UNAVAILABLE,
    http_pool,
    knows_no_versions,
    minio_client,
    minio_encryption,
    translate_errors,
    without_secrets,
)
from .listing import survivors

_NOT_KEPT = {"ObjectLockConfigurationNotFoundError", "NoSuchObjectLockConfiguration"}
_UNKNOWN = {"NotImplemented", "MethodNotAllowed"}
_DENIED = "AccessDenied"
NOT_S3 = "NotS3"
"""Our own code for an answer that is not S3's."""
NO_NAME = "InvalidBucketName"
"""S3's code of a name that no bucket can have; the client does not send a request for one."""


class BucketError(Exception):
    """The object store answers, but not as it should; `code` is S3's, or NOT_S3."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class BucketState:
    """`versioning`: Enabled, Suspended, Off, or "" unknown. `locked_days`: a new object's lock.

    `missing_rights`: rights without which some of this could not be inspected.
    """

    versioning: str
    locked_days: int
    missing_rights: Sequence[str]


def inspect_bucket(settings: BlobSettings, bucket: str) -> BucketState:
    """Return the state of a bucket; blocks. Raises BucketError and ObjectStoreUnavailable."""
    try:
        check_bucket_name(bucket)
    except ValueError as error:
        raise BucketError(NO_NAME, str(error)) from None
    client = minio_client(settings, settings.s3_endpoint)
    try:
        # A list, not a check of existence: only its answer gives the reason.
        next(iter(client.list_objects(bucket)), None)
        missing: list[str] = []
        days = _find_locked_days(client, bucket, missing)
        return BucketState(_find_versioning(client, bucket, missing), days, missing)
    except S3Error as error:
        raise BucketError(error.code or "", without_secrets(str(error.message))) from None
    except InvalidResponseError as error:
        raise BucketError(NOT_S3, without_secrets(str(error))) from None
    except UNAVAILABLE as error:
        raise ObjectStoreUnavailable(without_secrets(str(error))) from None


def _find_versioning(client: Minio, bucket: str, missing: list[str]) -> str:
    try:
        return str(client.get_bucket_versioning(bucket).status or "Off")
    except S3Error as error:
        if error.code in _UNKNOWN:
            return "Off"
        if error.code == _DENIED:
            missing.append("s3:GetBucketVersioning")
            return ""
        raise


def _find_locked_days(client: Minio, bucket: str, missing: list[str]) -> int:
    try:
        lock = client.get_object_lock_config(bucket)
    except S3Error as error:
        if error.code == _DENIED:
            missing.append("s3:GetBucketObjectLockConfiguration")
        elif error.code not in _NOT_KEPT | _UNKNOWN:
            raise
        return 0
    return (lock.duration or 0) * (365 if lock.duration_unit == YEARS else 1)


def locks_objects(settings: BlobSettings) -> bool:
    """Return whether the default bucket locks every new object; not, if that may not be asked.
    Blocks. Raises ObjectStoreUnavailable."""
    with translate_errors():
        client = minio_client(settings, settings.s3_endpoint)
        return _find_locked_days(client, settings.s3_bucket, []) > 0


def server_time(settings: BlobSettings) -> datetime | None:
    """Return the time of the object store's clock; None if it does not report it.

    Raises ObjectStoreUnavailable.
    """
    pool = http_pool(settings)
    try:
        answer = pool.request("HEAD", settings.s3_endpoint or "https://s3.amazonaws.com")
        date = answer.headers.get("Date")
        return None if date is None else parsedate_to_datetime(date)
    except (urllib3.exceptions.HTTPError, OSError, ValueError, OverflowError) as error:
        raise ObjectStoreUnavailable(without_secrets(str(error))) from None
    finally:
        pool.clear()


# An object that nobody can delete for a while: every version of it is locked, if the bucket has
# object lock.

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
