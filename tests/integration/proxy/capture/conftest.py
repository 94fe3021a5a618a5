"""Processes that capture, with their spool in the test's folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.environment import service_environment
from tests.servers.kafka import Kafka
from tests.servers.minio import S3

from .process import Capturing
from .servers import Topic


@pytest.fixture
def capturing(
    kafka_server: Kafka, minio_server: S3, bucket: str, topic: Topic, tmp_path: Path
) -> Iterator[Capturing]:
    """A factory of processes that capture; they are killed in the end."""
    environment = service_environment(
        "",
        kafka_server,
        minio_server,
        bucket,
        KAFKA_TOPIC=topic(3),
        KAFKA_REPORTS_TOPIC=topic(1),
        PROXY_UPSTREAM="http://up",
        PROXY_SPOOL="all",
        PROXY_SPOOL_DIRECTORY=str(tmp_path / "spool"),
        PROXY_REPORT_SECONDS="0.3",
        PROXY_GRACE_SECONDS="120",
        S3_TIMEOUT_SECONDS="20",
        LOG_FORMAT="text",
    )
    processes = Capturing(kafka_server, environment, tmp_path)
    yield processes
    for process in processes.started:
        process.kill()
