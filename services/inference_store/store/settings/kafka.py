"""Kafka."""

from .group import Group


class KafkaSettings(Group):
    """The topic that inference events arrive on."""

    kafka_bootstrap_servers: str = "localhost:9092"
    """Brokers to begin with, `host:port`, separated by commas."""
    kafka_topic: str = "inference-events"
    """Topic that inference events arrive on."""
    kafka_group: str = "inference-store"
    """Consumer group of the ingesters; offsets that count are in Postgres."""
    kafka_cluster: str = "default"
    """Name of the Kafka cluster in the books; another cluster needs another name."""
