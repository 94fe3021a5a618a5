"""The servers of a session: named by variables, shared by the run's workers, or its own."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit

from tests.warm.process import running_warm

from .citus import Citus, find_cluster, own_citus
from .environment import OWN_CITUS, TEST_CITUS, TEST_KAFKA, TEST_POSTGRES_DSN, TEST_S3
from .kafka import Kafka, KafkaServer, find_kafka
from .machine import memory_folder
from .minio import S3, MinioServer, find_minio
from .missing import demand
from .postgres import Postgres, PostgresServer, find_postgres
from .sharing import Start, ask_for_server


def running_postgres() -> AbstractContextManager[Postgres]:
    """Return Citus or a Postgres, as INFERENCE_STORE_TEST_* says, or our own."""
    if os.environ.get(TEST_CITUS):
        return shared_or_own("citus")
    dsn = os.environ.get(TEST_POSTGRES_DSN)
    if dsn:
        return nullcontext(Postgres(dsn))
    demand("postgres", find_postgres)
    return shared_or_own("postgres")


# A test's database lives for a second, so it needs no checkpoints, full pages or vacuum.
_SHORT_LIVED = {
    "full_page_writes": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "1GB",
    "autovacuum": "off",
}


@contextmanager
def _own_postgres() -> Iterator[Postgres]:
    with PostgresServer(_SHORT_LIVED, parent=memory_folder()) as server:
        yield Postgres(server.dsn)


def _citus() -> AbstractContextManager[Citus]:
    dsn = os.environ[TEST_CITUS]
    return own_citus(_SHORT_LIVED) if dsn == OWN_CITUS else find_cluster(dsn)


def running_kafka() -> AbstractContextManager[Kafka]:
    """Return a Kafka: that of INFERENCE_STORE_TEST_KAFKA, our own, or the embedded broker."""
    address = os.environ.get(TEST_KAFKA)
    if address:
        return nullcontext(Kafka(address))
    if demand("kafka", find_kafka):
        return shared_or_own("kafka")
    from .embedded import EmbeddedKafka  # noqa: PLC0415  (only where the real one is missing)

    return EmbeddedKafka()


@contextmanager
def _own_kafka() -> Iterator[Kafka]:
    # It is never killed, so nobody waits for the end of its session, and a machine that stalls for
    # seconds does not take its partitions away.
    with ShortLivedKafka({"broker.session.timeout.ms": "60000"}) as server:
        yield Kafka(server.bootstrap_servers)


def running_s3() -> AbstractContextManager[S3]:
    """Return an S3: that of INFERENCE_STORE_TEST_S3 (a URL with the keys), MinIO, or rclone."""
    url = os.environ.get(TEST_S3)
    if url:
        address = urlsplit(url)
        endpoint = f"{address.scheme}://{address.hostname}:{address.port or 80}"
        return nullcontext(S3(endpoint, address.username or "", address.password or ""))
    if demand("minio", find_minio):
        return shared_or_own("minio")
    from .embedded import EmbeddedS3  # noqa: PLC0415  (only where the real one is missing)

    return EmbeddedS3()


@contextmanager
def _own_minio() -> Iterator[S3]:
    with ShortLivedMinio() as server:
        yield S3(server.endpoint, server.access_key, server.secret_key)


class ShortLivedKafka(KafkaServer):
    """It runs for minutes only, so options that cost CPU in the first minutes are off."""

    java_options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class ShortLivedMinio(MinioServer):
    """It has a bucket for each test and enough memory, so it scans and collects garbage rarely."""

    def environment(self) -> dict[str, str]:
        return {"MINIO_SCANNER_SPEED": "slowest", "GOGC": "400"}


STARTS: Mapping[str, Start] = {
    "citus": _citus,
    "postgres": _own_postgres,
    "kafka": _own_kafka,
    "minio": _own_minio,
    "warm": running_warm,
}
"""The servers that workers share, by name, with the function that starts each."""


def shared_or_own(name: str) -> AbstractContextManager[Any]:
    """Return the address of a server: that of the run, or of one started for this session."""
    address = ask_for_server(name)
    return STARTS[name]() if address is None else nullcontext(address)
