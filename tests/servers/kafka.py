"""Kafka in KRaft mode, one process, from Maven Central's jars."""

import re
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .cache import install
from .ports import free_port
from .process import LeashedProcess
from .server import Server
from .versions import (
    KAFKA_SCALA_VERSION,
    KAFKA_VERSION,
    MAVEN_DEPENDENCY_PLUGIN_VERSION,
    OLDEST_JAVA,
    SLF4J_VERSION,
    MissingServer,
    cache_folder,
)
from .waiting import wait_until

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>inference-store.tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId>
      <artifactId>kafka_{scala}</artifactId><version>{kafka}</version></dependency>
    <dependency><groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId><version>{slf4j}</version></dependency>
  </dependencies>
</project>
"""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:{}:copy-dependencies"


class Kafka:
    real = True

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def create_topic(
        self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        admin = self._admin()
        new = NewTopic(name, partitions, 1, config=dict(settings or {}))
        admin.create_topics([new])[name].result(120)
        wait_until(
            lambda: self._count_leaders(admin, name) == partitions,
            seconds=120,
            what=f"topic {name}",
        )
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the broker no longer knows it."""
        admin = self._admin()
        admin.delete_topics([name])[name].result(120)
        wait_until(
            lambda: self._count_leaders(admin, name) == 0, seconds=120, what=f"{name} deleted"
        )

    def delete_records(self, topic: str, partition: int = 0) -> None:
        """Delete every record of a partition, as a log's own retention would."""
        admin, everything = self._admin(), TopicPartition(topic, partition, OFFSET_END)
        admin.delete_records([everything])[everything].result(120)

    def _admin(self) -> AdminClient:
        # log_level 0: a broker that is not up yet is expected here.
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    @staticmethod
    def _count_leaders(admin: AdminClient, name: str) -> int:
        topic = admin.list_topics(timeout=60).topics.get(name)
        partitions = topic.partitions.values() if topic is not None else ()
        return sum(partition.leader >= 0 for partition in partitions)


class KafkaServer(Server, Kafka):
    """A Kafka of our own. `settings` are added to server.properties."""

    name = "kafka"
    format_arguments: tuple[str, ...] = ()
    java_options: tuple[str, ...] = ()

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._libs = find_kafka()
        Server.__init__(self)
        self.port, self._controller_port = free_port(), free_port()
        Kafka.__init__(self, f"127.0.0.1:{self.port}")
        self._settings = dict(settings or {})

    def properties(self) -> dict[str, str]:
        broker, controller = f"127.0.0.1:{self.port}", f"127.0.0.1:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # After a kill -9 the controller takes the broker back only when its session is over.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "500",
            **self._settings,
        }

    def _launch(self) -> LeashedProcess:
        properties = self.folder / "server.properties"
        if not properties.exists():
            lines = [f"{name}={value}\n" for name, value in self.properties().items()]
            properties.write_text("".join(lines))
            self._format(properties)
        return self._java("-Xmx512m", "kafka.Kafka", str(properties))

    def _format(self, properties: Path) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Kafka's tool would read an id with a leading dash as an option.
        cluster = cluster.replace("-", "A")
        process = self._java(
            "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format", "-t", cluster, "-c",
            str(properties), *self.format_arguments,
        )  # fmt: skip
        if process.wait(180):
            raise RuntimeError(f"Kafka's storage could not be formatted\n{process.last_lines()}")

    def _java(self, option: str, *arguments: str) -> LeashedProcess:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = ["java", option, quiet, *self.java_options, "-cp", f"{self._libs}/*", *arguments]
        return self._run(command)

    def _answers(self) -> bool:
        try:
            return bool(self._admin().list_topics(timeout=10).brokers)
        except KafkaException:
            return False


def find_kafka() -> Path:
    """Return the folder of Kafka's jars; fetch them first if needed. Raises MissingServer."""
    _check_java()
    folder = cache_folder("kafka", KAFKA_VERSION)
    if not folder.is_dir() and shutil.which("mvn") is None:
        raise MissingServer("Kafka's jars are not in the cache and Maven is not installed")
    return install(folder, _fetch) / "libs"


def _check_java() -> None:
    if shutil.which("java") is None:
        raise MissingServer(f"Kafka needs Java {OLDEST_JAVA} or newer, which is not installed")
    process = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    output = process.stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise MissingServer(f"Kafka needs Java {OLDEST_JAVA} or newer; here is: {output.strip()}")


def _fetch(folder: Path) -> None:
    pom = _POM.format(scala=KAFKA_SCALA_VERSION, kafka=KAFKA_VERSION, slf4j=SLF4J_VERSION)
    (folder / "pom.xml").write_text(pom)
    goal = _COPY.format(MAVEN_DEPENDENCY_PLUGIN_VERSION)
    command = ["mvn", "-q", "-B", goal, f"-DoutputDirectory={folder / 'libs'}"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        output = process.stdout + process.stderr
        raise MissingServer(f"Maven could not fetch Kafka: {output[-500:]}")
