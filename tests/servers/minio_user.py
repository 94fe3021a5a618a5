"""Users of MinIO with limited rights."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from minio.credentials.providers import StaticProvider
from minio.minioadmin import MinioAdmin

from .minio import S3

_SECRET = "a-users-secret"


def statement(effect: str, actions: Sequence[str], *resources: str) -> dict[str, Any]:
    """Return a statement of a policy; resources are given without `arn:aws:s3:::`."""
    arns = [f"arn:aws:s3:::{resource}" for resource in resources]
    return {"Effect": effect, "Action": [f"s3:{action}" for action in actions], "Resource": arns}


class MinioUser:
    """A user of a MinIO, whose rights can be changed."""

    def __init__(self, s3: S3, name: str) -> None:
        self.access_key = name
        self.secret_key = _SECRET
        address = urlsplit(s3.endpoint)
        self._admin = MinioAdmin(
            endpoint=address.netloc,
            credentials=StaticProvider(s3.access_key, s3.secret_key),
            secure=address.scheme == "https",
        )
        self._admin.user_add(name, _SECRET)
        self._policies = 0

    def may(self, *statements: dict[str, Any]) -> None:
        """Set the user's rights to exactly these statements."""
        self._admin.policy_add(
            f"{self.access_key}-policy", policy={"Version": "2012-10-17", "Statement": statements}
        )
        if not self._policies:
            self._admin.attach_policy([f"{self.access_key}-policy"], user=self.access_key)
        self._policies += 1
