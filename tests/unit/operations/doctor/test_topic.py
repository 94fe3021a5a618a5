"""On the demo's broker, which tells no settings of topics, the doctor knows a topic from none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_store.index.database import create_engine
from inference_store.operations.doctor.finding import DoctorSettings, Finding, State, Subject
from inference_store.operations.doctor.kafka import check_topic
from tests.settings import make_settings


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """Its address; it has the topic `there`, of three partitions."""
    pytest.importorskip("confluent_kafka", reason="the demo's packages are not installed")
    from tests.servers.embedded import EmbeddedKafka  # noqa: PLC0415

    with EmbeddedKafka() as kafka:
        kafka.create_topic("there", partitions=3)
        yield kafka.bootstrap_servers


async def found(broker: str, name: str) -> Finding:
    settings = make_settings(DoctorSettings, kafka_bootstrap_servers=broker, kafka_topic=name)
    engine = create_engine("postgresql://nobody/none")
    (one,) = await check_topic(Subject(settings, engine))
    return one


async def test_a_topic_whose_settings_are_not_told_is_well(broker: str) -> None:
    one = await found(broker, "there")
    assert (one.state, one.remedy) == (State.OK, "")
    assert one.seen.startswith("3 partitions, 1 replica; its settings are not told")


async def test_a_topic_that_is_missing_is_said_to_be_and_is_not_made(broker: str) -> None:
    for _ in range(2):  # the first question must not make it
        one = await found(broker, "missing")
        assert (one.state, one.seen) == (State.FAILED, "there is no topic 'missing'")
        assert "--create --topic missing" in one.remedy
