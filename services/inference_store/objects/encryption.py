"""Encryption by the object store itself, requested with every object that is written."""

from typing import TYPE_CHECKING

from minio.sse import Sse, SseKMS, SseS3

from inference_store.platform.settings import BlobSettings

if TYPE_CHECKING:  # typed dictionaries that obstore has for type checkers alone
    from obstore.store import S3Config


class _Kms(SseKMS):
    """A key that stays with the server: unlike a client's key, it may be named over http."""

    def tls_required(self) -> bool:
        return False


def obstore_encryption(settings: BlobSettings) -> "S3Config":
    """Return obstore's configuration of encryption, which it sends with every put."""
    if settings.s3_encryption == "SSE-S3":
        return {"server_side_encryption": "AES256"}
    if settings.s3_encryption == "SSE-KMS" and settings.s3_kms_key_id:
        return {"server_side_encryption": "aws:kms", "sse_kms_key_id": settings.s3_kms_key_id}
    return {}


def minio_encryption(settings: BlobSettings) -> Sse | None:
    """Return minio's argument for encryption of every put."""
    if settings.s3_encryption == "SSE-S3":
        return SseS3()
    if settings.s3_encryption == "SSE-KMS" and settings.s3_kms_key_id:
        return _Kms(settings.s3_kms_key_id, {})
    return None
