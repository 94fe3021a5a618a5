"""MinIO, built from its Go module."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit

from minio import Minio
from minio.credentials.providers import StaticProvider
from minio.minioadmin import MinioAdmin

from tests.http_requests import answers

from .cache import install
from .ports import free_port
from .process import LeashedProcess
from .server import SHARED_TEMPORARY, Server
from .versions import MINIO_MODULE, MINIO_VERSION, OLDEST_GO, MissingServer, cache_folder

_USER = "inference-store"
_PASSWORD = "inference-store-tests"
_OLDEST_GO_NAME = ".".join(map(str, OLDEST_GO))


class S3:
    real = True
    region = "us-east-1"

    def __init__(self, endpoint: str, access_key: str, secret_key: str) -> None:
        self.endpoint = endpoint
        self.access_key = access_key
        self.secret_key = secret_key

    @property
    def settings(self) -> dict[str, Any]:
        names = ("endpoint", "access_key", "secret_key")
        return {f"s3_{name}": getattr(self, name) for name in names}

    def client(self) -> Minio:
        """Return a client for set-up and checks; the caller need not close it."""
        address = urlsplit(self.endpoint)
        return Minio(
            address.netloc,
            access_key=self.access_key,
            secret_key=self.secret_key,
            secure=address.scheme == "https",
            region=self.region,
        )

    def create_bucket(self, name: str, *, object_lock: bool = False) -> str:
        self.client().make_bucket(name, object_lock=object_lock)
        return name


class MinioServer(Server, S3):
    name = "minio"
    options: tuple[str, ...] = ()
    trusted: SSLContext | None = None
    """Authorities, if it speaks https."""

    def __init__(self, parent: str | None = SHARED_TEMPORARY) -> None:
        self._binary = find_minio()
        Server.__init__(self, parent)
        self.port = free_port()
        S3.__init__(self, f"http://127.0.0.1:{self.port}", _USER, _PASSWORD)

    def environment(self) -> dict[str, str]:
        return {}

    def _launch(self) -> LeashedProcess:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        environment = {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "HOME": str(self.folder),
            **self.environment(),
        }
        address = f"127.0.0.1:{self.port}"
        command = [str(self._binary), "server", str(data), "--address", address, *self.options]
        return self._run(command, environment=environment)

    def _answers(self) -> bool:
        return answers(f"{self.endpoint}/minio/health/cluster", self.trusted)


def find_minio() -> Path:
    """Return the binary; build it first if needed (3 to 5 minutes). Raises MissingServer."""
    folder = cache_folder("minio", MINIO_VERSION)
    if not folder.is_dir():
        _check_go()
    return install(folder, _build) / "minio"


def _check_go() -> None:
    if shutil.which("go") is None:
        raise MissingServer(f"MinIO is not in the cache and Go {_OLDEST_GO_NAME} is not installed")
    output = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, check=False
    ).stdout.strip()
    version = re.search(r"go(\d+)\.(\d+)", output)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_GO:
        raise MissingServer(f"MinIO needs Go {_OLDEST_GO_NAME} or newer; here is: {output}")


def _build(folder: Path) -> None:
    process = subprocess.run(
        ["go", "install", MINIO_MODULE],
        env={**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise MissingServer(f"Go could not build MinIO: {process.stderr[-500:]}")


# Users of MinIO with limited rights.

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
