"""The fixtures of every test: servers, a migrated database, an engine, a topic, a bucket.

The servers of a session are shared; `own_postgres`, `own_kafka` and `own_minio` are a module's
own, for tests that stop, kill and restart them.
"""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import pytest

from . import running
from .citus import Citus
from .environment import service_environment as environment_of
from .kafka import Kafka, KafkaServer, find_kafka
from .machine import memory_folder
from .minio import S3, MinioServer, find_minio
from .missing import demand
from .postgres import Postgres, PostgresServer, find_postgres

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from inference_store.platform.settings import PostgresSettings


def unique(prefix: str = "test") -> str:
    """Return a name that no other test of any run has."""
    return f"{prefix}-{uuid.uuid4()}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A Postgres: the one that INFERENCE_STORE_TEST_POSTGRES_DSN names, or our own.

    INFERENCE_STORE_TEST_CITUS_DSN comes first: a coordinator of Citus with its workers.
    """
    with running.running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[Kafka]:
    """A Kafka: the one that INFERENCE_STORE_TEST_KAFKA names, our own, or the embedded broker."""
    with running.running_kafka() as server:
        yield server


@pytest.fixture(scope="session")
def minio_server() -> Iterator[S3]:
    """An S3: what INFERENCE_STORE_TEST_S3 (http://key:secret@host:port) names, MinIO, or rclone."""
    with running.running_s3() as server:
        yield server


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A Postgres that the module's tests may stop, kill and restart."""
    demand("postgres", find_postgres)
    with PostgresServer(parent=memory_folder()) as server:
        yield server


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaServer]:
    """A Kafka that the module's tests may stop, kill and restart; mark them `real_kafka`."""
    demand("kafka", find_kafka)
    with running.ShortLivedKafka() as server:
        yield server


@pytest.fixture(scope="module")
def own_minio() -> Iterator[MinioServer]:
    """A MinIO that the module's tests may stop, kill and restart; mark them `real_minio`."""
    demand("minio", find_minio)
    with running.ShortLivedMinio() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres_server: Postgres) -> Iterator[str]:
    """The name of a database that Alembic has brought to the newest schema; nobody connects.

    On Citus its tables are distributed.
    """
    if isinstance(postgres_server, Citus):
        yield postgres_server.template
        return
    name = unique("template")
    migrate(postgres_server.create_database(name))
    yield name
    postgres_server.drop_database(name)


def migrate(database: "str | PostgresSettings") -> None:
    from inference_store.index.migration import upgrade  # noqa: PLC0415

    # In its own thread: migrations may run a loop, and this thread may have one already.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(upgrade, database).result()


@pytest.fixture
def database(postgres_server: Postgres, migrated_template: str) -> Iterator[str]:
    """The address of a fresh migrated database, dropped after the test."""
    name = unique()
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture
async def engine(database: str) -> "AsyncIterator[AsyncEngine]":
    from inference_store.index.database import create_engine  # noqa: PLC0415

    database_engine = create_engine(database)
    yield database_engine
    await database_engine.dispose()


MakeTopic = Callable[..., str]


@pytest.fixture
def topic(kafka_server: Kafka) -> MakeTopic:
    """A factory: `topic(partitions=3)` makes a topic and returns its name."""

    def create(partitions: int = 1) -> str:
        return kafka_server.create_topic(unique(), partitions=partitions)

    return create


@pytest.fixture
def bucket(minio_server: S3) -> str:
    return minio_server.create_bucket(unique())


class MakeEnvironment(Protocol):
    """The function that the fixture `service_environment` returns."""

    def __call__(self, **changes: str) -> dict[str, str]: ...


@pytest.fixture
def service_environment(
    database: str, kafka_server: Kafka, minio_server: S3, bucket: str
) -> MakeEnvironment:
    """A factory of the environment for a real service process on this test's servers.

    `service_environment(KAFKA_TOPIC=topic(3), AUTH="on")`: names without INFERENCE_STORE_.
    """

    group = unique("group")  # in a common group, tests would wait for the ingesters of others

    def make(**changes: str) -> dict[str, str]:
        return environment_of(
            database, kafka_server, minio_server, bucket, **{"KAFKA_GROUP": group, **changes}
        )

    return make
