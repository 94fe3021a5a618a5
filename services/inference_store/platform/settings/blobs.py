"""The object store."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, FilePath, SecretStr

from .group import Seconds, SettingsGroup
from .tls_files import CaFile

LedgerPrefix = Annotated[str, Field(pattern=r"^([A-Za-z0-9_\-]+/)+$", max_length=256)]


class BlobSettings(SettingsGroup):
    """The object store that holds data, metadata and responses."""

    s3_endpoint: str | None = None
    """URL of the S3 server; unset: AWS."""
    s3_ca_file: CaFile | None = None
    """Certificates (PEM) to trust beside the system's, of who signed the S3 server's own."""
    s3_access_key: SecretStr = SecretStr("")
    """Access key id."""
    s3_secret_key: SecretStr = SecretStr("")
    """Secret access key."""
    s3_role_arn: str | None = None
    """Role to take on by web identity, instead of keys; unset: `AWS_ROLE_ARN`."""
    s3_web_identity_token_file: FilePath | None = None
    """File of the token that proves who we are; unset: `AWS_WEB_IDENTITY_TOKEN_FILE`."""
    s3_sts_endpoint: str | None = None
    """URL where the token is exchanged; unset: `AWS_ENDPOINT_URL_STS`, else AWS in the region."""
    s3_region: str = "us-east-1"
    """Region of the buckets."""
    s3_bucket: str = "inference-store"
    """Default bucket: storage keys without `s3://` are in it."""
    s3_allowed_buckets: str = ""
    """Other buckets that events may name, separated by commas; all else is refused."""
    ledger_prefix: LedgerPrefix = "ledger/"
    """What keys of the ledger begin with, in the default bucket; no event may name such a key."""
    s3_encryption: Literal["none", "SSE-S3", "SSE-KMS"] = "none"
    """Server-side encryption asked for with every object that is written."""
    s3_kms_key_id: str | None = None
    """Key of SSE-KMS."""
    s3_timeout_seconds: Seconds = 10.0
    """How long the object store may say nothing to a request; the api waits for at most 4."""
    s3_public_endpoint: str | None = None
    """URL of the S3 server as clients reach it, for presigned links; unset: `S3_ENDPOINT`."""

    @property
    def buckets(self) -> frozenset[str]:
        """Every bucket that may be read or deleted from."""
        names = (name.strip() for name in self.s3_allowed_buckets.split(","))
        return frozenset(name for name in names if name) | {self.s3_bucket}

    def contradictions(self) -> Iterator[str]:
        """Yield the faults of keys and roles, of encryption and of certificates."""
        yield from super().contradictions()
        key, secret = self.s3_access_key.get_secret_value(), self.s3_secret_key.get_secret_value()
        if bool(key) != bool(secret):
            present, missing = ("ACCESS", "SECRET") if key else ("SECRET", "ACCESS")
            yield f"$S3_{present}_KEY is set and $S3_{missing}_KEY is not: set both"
        if key and (self.s3_role_arn or self.s3_web_identity_token_file):
            yield "$S3_ACCESS_KEY and $S3_ROLE_ARN are set: keep keys, or web identity"
        if not (self.s3_sts_endpoint or "https://").startswith("https://"):
            yield "$S3_STS_ENDPOINT must begin with https://: a token goes there"
        if self.s3_encryption == "SSE-KMS" and not self.s3_kms_key_id:
            yield "$S3_ENCRYPTION=SSE-KMS needs $S3_KMS_KEY_ID"
        if self.s3_encryption != "SSE-KMS" and self.s3_kms_key_id:
            yield "$S3_KMS_KEY_ID is set, but only $S3_ENCRYPTION=SSE-KMS uses it"
        if self.s3_ca_file is not None and (self.s3_endpoint or "https://").startswith("http://"):
            yield "$S3_CA_FILE is set, but $S3_ENDPOINT is not https"
