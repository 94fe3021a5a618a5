"""Users of MinIO who may do less than its owner."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from minio.credentials.providers import StaticProvider
from minio.minioadmin import MinioAdmin

from .minio import S3

_SECRET = "a-users-secret"


def statement(effect: str, actions: Sequence[str], *resources: str) -> dict[str, Any]:
    """One statement of a policy; resources without `arn:aws:s3:::`."""
    arns = [f"arn:aws:s3:::{resource}" for resource in resources]
    return {"Effect": effect, "Action": [f"s3:{one}" for one in actions], "Resource": arns}


class MinioUser:
    """A user of a MinIO, whose rights are given and changed."""

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
        self._given = 0

    def may(self, *statements: dict[str, Any]) -> None:
        """From now on this and nothing else."""
        self._admin.policy_add(
            f"{self.access_key}-policy", policy={"Version": "2012-10-17", "Statement": statements}
        )
        if not self._given:
            self._admin.attach_policy([f"{self.access_key}-policy"], user=self.access_key)
        self._given += 1
