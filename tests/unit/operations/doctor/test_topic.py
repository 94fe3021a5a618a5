"""On the demo's broker, which tells no settings of topics, the doctor knows a topic from none."""

from collections.abc import Iterator

import pytest

from inference_store.index.database import create_engine
from inference_store.operations.doctor.finding import DoctorSettings, Finding, State, Subject
from inference_store.operations.doctor.kafka import check_topic
from tests.settings import make_settings


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """The address of a broker with the topic `there`, of three partitions."""
    pytest.importorskip("confluent_kafka", reason="the demo's packages are not installed")
    from tests.servers.embedded import EmbeddedKafka  # noqa: PLC0415

    with EmbeddedKafka() as kafka:
        kafka.create_topic("there", partitions=3)
        yield kafka.bootstrap_servers


async def check_one_topic(broker: str, name: str) -> Finding:
    settings = make_settings(DoctorSettings, kafka_bootstrap_servers=broker, kafka_topic=name)
    engine = create_engine("postgresql://nobody/none")
    (finding,) = await check_topic(Subject(settings, engine))
    return finding


async def test_accepts_a_topic_whose_settings_are_not_reported(broker: str) -> None:
    finding = await check_one_topic(broker, "there")
    assert (finding.state, finding.remedy) == (State.OK, "")
    assert finding.seen.startswith("3 partitions, 1 replica; its settings are not reported")


async def test_reports_a_missing_topic_and_does_not_create_it(broker: str) -> None:
    for _ in range(2):  # the first question must not make it
        finding = await check_one_topic(broker, "missing")
        assert (finding.state, finding.seen) == (State.FAILED, "there is no topic 'missing'")
        assert "--create --topic missing" in finding.remedy
