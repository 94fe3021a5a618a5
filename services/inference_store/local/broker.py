"""Kafka from a wheel: librdkafka's own test broker, run as a process.

`python -m inference_store.local.broker <file for its address> <topic> <partitions>`

It speaks Kafka's protocol on a port of 127.0.0.1, keeps everything in memory (5 MiB per partition,
then the oldest messages are dropped silently), takes a new port and counts offsets from 0 at each
start. That is enough to try things out, and for nothing more.
"""

import ctypes
import importlib.util
import signal
import sys
from pathlib import Path

from .folder import LocalStackError

_PRODUCER = 0
_BROKERS = 1


def find_library() -> Path:
    """Return librdkafka of the confluent-kafka wheel (Linux: beside the package; macOS: in it).

    Raises LocalStackError if the wheel is missing.
    """
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or not spec.submodule_search_locations:
        raise LocalStackError("The package confluent-kafka is missing: run `make demo`.")
    package = Path(spec.submodule_search_locations[0])
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


def run_broker(address_file: Path, topic: str, partitions: int) -> None:
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
    run_broker(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
