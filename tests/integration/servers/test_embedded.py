"""Embedded servers that replace missing ones answer as far as the tests need it."""

import io

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.servers.embedded import EmbeddedKafka, EmbeddedS3


def test_the_embedded_broker_carries_a_record() -> None:
    with EmbeddedKafka() as server:
        server.create_topic("a-topic", partitions=3)
        address = {"bootstrap.servers": server.bootstrap_servers}
        producer = Producer(address)
        producer.produce("a-topic", b"carried", partition=2)
        assert producer.flush(180) == 0
        consumer = Consumer({**address, "group.id": "test"})
        try:
            consumer.assign([TopicPartition("a-topic", 2, 0)])
            record = consumer.poll(180)
            assert record is not None
            assert record.value() == b"carried"
        finally:
            consumer.close()


def test_the_embedded_s3_keeps_an_object() -> None:
    with EmbeddedS3() as server:
        server.create_bucket("a-bucket")
        server.client().put_object("a-bucket", "an/object", io.BytesIO(b"kept"), 4)
        with server.client().get_object("a-bucket", "an/object") as answer:
            assert answer.read() == b"kept"
