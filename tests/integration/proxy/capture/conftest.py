"""Settings of a proxy that captures, for a process."""

from pathlib import Path

import pytest

from tests.servers.environment import service_environment
from tests.servers.kafka import Kafka
from tests.servers.minio import S3

from .servers import Topic


@pytest.fixture
def environment(
    kafka_server: Kafka, minio_server: S3, bucket: str, topic: Topic, tmp_path: Path
) -> dict[str, str]:
    """Return the environment of a proxy with its spool on."""
    return service_environment(
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
        PROXY_RETRY_SECONDS="0.1",
        PROXY_GRACE_SECONDS="120",
        S3_TIMEOUT_SECONDS="20",
        LOG_FORMAT="text",
    )
