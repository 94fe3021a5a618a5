"""The object store."""

from pydantic import SecretStr

from .group import Group, Seconds


class BlobSettings(Group):
    """The object store that holds data, metadata and responses."""

    s3_endpoint: str | None = None
    """URL of the S3 server; unset: AWS."""
    s3_access_key: SecretStr = SecretStr("")
    """Access key id."""
    s3_secret_key: SecretStr = SecretStr("")
    """Secret access key."""
    s3_region: str = "us-east-1"
    """Region of the buckets."""
    s3_bucket: str = "inference-store"
    """Default bucket: storage keys without `s3://` are in it."""
    s3_allowed_buckets: str = ""
    """Other buckets that events may name, separated by commas; all else is refused."""
    s3_timeout_seconds: Seconds = 10.0
    """How long one request to the object store may take."""
    s3_public_endpoint: str | None = None
    """URL of the S3 server as clients reach it, for presigned links; unset: `S3_ENDPOINT`."""

    @property
    def buckets(self) -> frozenset[str]:
        """Every bucket that may be read or deleted from."""
        named = (name.strip() for name in self.s3_allowed_buckets.split(","))
        return frozenset(name for name in named if name) | {self.s3_bucket}
