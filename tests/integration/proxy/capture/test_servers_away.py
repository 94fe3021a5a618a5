"""S3 or Kafka is stopped and started again: callers notice nothing, nothing is lost."""

import asyncio

import pytest
from minio.commonconfig import GOVERNANCE
from minio.objectlockconfig import DAYS, ObjectLockConfig

from inference_store.platform.settings import ProxySettings
from tests.polling import until
from tests.producer import KINDS
from tests.servers.fixtures import unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer

from . import servers

pytestmark = [pytest.mark.faults, pytest.mark.real_kafka, pytest.mark.real_minio]


@pytest.fixture
def own_settings(own_kafka: KafkaServer, own_minio: MinioServer) -> ProxySettings:
    own_kafka.start_if_ended()
    topics = {
        f"kafka_{name}": own_kafka.create_topic(unique()) for name in ("topic", "reports_topic")
    }
    return servers.make_proxy_settings(
        own_kafka, own_minio, own_minio.create_bucket(unique()), **topics
    )


@pytest.mark.parametrize("away", ["object store", "kafka"])
async def test_captures_wait_for_a_server_that_is_away(
    away: str, own_settings: ProxySettings, own_kafka: KafkaServer, own_minio: MinioServer
) -> None:
    server = own_minio if away == "object store" else own_kafka
    async with servers.start_captures(own_settings) as captures:
        servers.hand_over(captures, 0)
        await servers.wait_until_published(captures, 1)
        await asyncio.to_thread(server.stop)
        # Nothing here can wait for the server: it does not run.
        assert all(servers.hand_over(captures, number) for number in range(1, 51))
        await until(captures.waits[away], lambda why: why is not None)
        await asyncio.to_thread(server.start)
        await servers.wait_until_published(captures, 51)
        await until(captures.waits[away], lambda why: why is None)
    published = await servers.read_events(own_kafka, own_settings.kafka_topic)
    assert {event.sequence for event in published} == set(range(1, 52))
    reports = await servers.read_reports(own_kafka, own_settings.kafka_reports_topic)
    last = max(reports, key=lambda report: report.number)
    assert last.closes
    assert (last.seen, last.published, last.dropped, last.final) == (51, 51, {}, True)


async def test_started_without_kafka_it_publishes_when_kafka_comes(
    own_settings: ProxySettings, own_kafka: KafkaServer
) -> None:
    await asyncio.to_thread(own_kafka.stop)
    async with servers.start_captures(own_settings) as captures:
        assert servers.hand_over(captures, 1)
        await until(captures.waits["kafka"], lambda why: why is not None)
        await asyncio.to_thread(own_kafka.start)
        await servers.wait_until_published(captures, 1)
    assert len(await servers.read_events(own_kafka, own_settings.kafka_topic)) == 1


async def test_a_bucket_that_locks_objects_gets_single_ones(
    own_settings: ProxySettings, own_minio: MinioServer
) -> None:
    bucket = own_minio.create_bucket(unique(), object_lock=True)
    locks = ObjectLockConfig(GOVERNANCE, 1, DAYS)
    own_minio.client().set_object_lock_config(bucket, locks)
    locking = own_settings.model_copy(update={"s3_bucket": bucket})
    async with servers.start_captures(locking) as captures:
        assert all(servers.hand_over(captures, number) for number in range(3))
        await servers.wait_until_published(captures, 3)
    found = [
        each.object_name or "" for each in own_minio.client().list_objects(bucket, recursive=True)
    ]
    assert sorted(name.rpartition("/")[2] for name in found) == sorted(KINDS * 3)
