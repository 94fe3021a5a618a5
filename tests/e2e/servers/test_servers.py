"""Every real server starts, answers, keeps its data over a restart, and dies with its parent."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import Postgres, PostgresServer, wheel_binaries
from tests.servers.server import Server
from tests.servers.waiting import wait_until

NEEDS_KAFKA = pytest.mark.real_kafka
NEEDS_MINIO = pytest.mark.real_minio
SERVERS = [
    pytest.param("servers.postgres", "PostgresServer"),
    pytest.param("servers.kafka", "KafkaServer", marks=NEEDS_KAFKA),
    pytest.param("servers.minio", "MinioServer", marks=NEEDS_MINIO),
    pytest.param("upstreams.mlserver", "MLServer", marks=pytest.mark.real_upstreams),
    pytest.param("upstreams.kserve", "KServe", marks=pytest.mark.real_kserve),
    pytest.param("upstreams.triton", "Triton", marks=pytest.mark.real_triton),
]
OWNER = """
import sys
from tests.{module} import {name}
with {name}() as server:
    print(server.folder, *server.pids(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_postgres_keeps_its_data(end: str) -> None:
    with PostgresServer() as server:
        server.execute("CREATE TABLE kept (number int)")
        _end_and_start(server, end)
        server.execute("INSERT INTO kept VALUES (1)")


def test_the_postgres_of_the_wheel_runs_too() -> None:
    with PostgresServer(binaries=wheel_binaries()) as server:
        server.execute("SELECT 1")


@NEEDS_KAFKA
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_kafka_keeps_its_data(end: str) -> None:
    with KafkaServer() as server:
        server.create_topic("kept", partitions=3)
        producer = Producer({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
        producer.produce("kept", b"kept", partition=2)
        assert producer.flush(180) == 0
        _end_and_start(server, end)
        assert _read_first_record(server, "kept", 2) == b"kept"


@NEEDS_MINIO
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_minio_keeps_its_data(end: str) -> None:
    with MinioServer() as server:
        server.create_bucket("kept")
        server.client().put_object("kept", "object", io.BytesIO(b"kept"), 4)
        _end_and_start(server, end)
        answer = server.client().get_object("kept", "object")
        with answer:
            assert answer.read() == b"kept"


@pytest.mark.parametrize(("module", "name"), SERVERS)
def test_a_server_dies_with_its_parent(module: str, name: str) -> None:
    command = [sys.executable, "-c", OWNER.format(module=module, name=name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        folder, *pids = owner.stdout.readline().decode().split()
        # the command is the first; what it started may have ended by itself since
        assert psutil.pid_exists(int(pids[0]))
        owner.send_signal(signal.SIGKILL)
    wait_until(
        lambda: not any(psutil.pid_exists(int(pid)) for pid in pids),
        seconds=180,
        what=f"{module} ends",
    )
    wait_until(lambda: not os.path.exists(folder), seconds=180, what="its data is removed")


def test_the_databases_of_a_test_are_copies(postgres_server: Postgres) -> None:
    postgres_server.create_database("origin")
    copy = postgres_server.create_database("a_copy", template="origin")
    assert copy.endswith("/a_copy")
    postgres_server.drop_database("a_copy")
    postgres_server.drop_database("origin")


def _end_and_start(server: Server, end: str) -> None:
    ways: dict[str, Callable[[], None]] = {"stop": server.stop, "kill": server.kill}
    ways[end]()
    assert server.pids() == []
    server.start()
    assert server.pids()


def _read_first_record(server: KafkaServer, topic: str, partition: int) -> bytes | str | None:
    """Return its value, once there is a record that is no error of a broker that just started."""
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "test", "log_level": 0}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + 180
        while (record := consumer.poll(1)) is None or record.error() is not None:
            assert time.monotonic() < deadline, record and record.error()
        return record.value()
    finally:
        consumer.close()
