"""The servers that a session works on: given by name, shared by the run's workers, or its own."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit

from tests.warm.process import running_warm

from .citus import Citus, citus_of
from .citus_nodes import own_citus
from .environment import OWN_CITUS, TEST_CITUS, TEST_KAFKA, TEST_POSTGRES_DSN, TEST_S3
from .kafka import Kafka, KafkaServer, find_kafka
from .memory import memory_folder
from .minio import S3, MinioServer, find_minio
from .missing import demand
from .postgres import Postgres, PostgresServer, find_postgres
from .sharing import Start, ask_for_server


def running_postgres() -> AbstractContextManager[Postgres]:
    """Citus or a Postgres, as INFERENCE_STORE_TEST_* says; else our own."""
    if os.environ.get(TEST_CITUS):
        return shared_or_own("citus")
    dsn = os.environ.get(TEST_POSTGRES_DSN)
    if dsn:
        return nullcontext(Postgres(dsn))
    demand("postgres", find_postgres)
    return shared_or_own("postgres")


# A test's database lives for a second: nothing of it is worth a checkpoint or a whole page, and it
# is gone before it would be vacuumed.
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
    return own_citus(_SHORT_LIVED) if dsn == OWN_CITUS else citus_of(dsn)


def running_kafka() -> AbstractContextManager[Kafka]:
    """A Kafka: the one that INFERENCE_STORE_TEST_KAFKA names, our own, or the embedded broker."""
    address = os.environ.get(TEST_KAFKA)
    if address:
        return nullcontext(Kafka(address))
    if demand("kafka", find_kafka):
        return shared_or_own("kafka")
    from .embedded import EmbeddedKafka  # noqa: PLC0415  (only where the real one is missing)

    return EmbeddedKafka()


@contextmanager
def _own_kafka() -> Iterator[Kafka]:
    with KafkaOfARun() as server:
        yield Kafka(server.bootstrap_servers)


def running_s3() -> AbstractContextManager[S3]:
    """An S3: what INFERENCE_STORE_TEST_S3 (http://key:secret@host:port) names, MinIO, or rclone."""
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
    with MinioOfARun() as server:
        yield S3(server.endpoint, server.access_key, server.secret_key)


class KafkaOfARun(KafkaServer):
    """It runs for minutes: what costs a server CPU in its first minutes is left out."""

    java_options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class MinioOfARun(MinioServer):
    """It has a bucket a test, and memory enough: it need neither scan nor collect garbage often."""

    def environment(self) -> dict[str, str]:
        """See the class."""
        return {"MINIO_SCANNER_SPEED": "slowest", "GOGC": "400"}


STARTS: Mapping[str, Start] = {
    "citus": _citus,
    "postgres": _own_postgres,
    "kafka": _own_kafka,
    "minio": _own_minio,
    "warm": running_warm,
}
"""What workers share: by name, how it is started and what is told to them."""


def shared_or_own(name: str) -> AbstractContextManager[Any]:
    """The address of a server: the run's, or of one that is started for this session."""
    address = ask_for_server(name)
    return STARTS[name]() if address is None else nullcontext(address)
