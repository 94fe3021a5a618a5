"""Every way into a secured Kafka; what is wrong is said by name."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import AuthenticationFailedError

from inference_store.platform.kafka import ClientCredentials, client_arguments, why_away
from inference_store.platform.settings import KafkaSettings
from tests.servers.certificates import Authority
from tests.servers.fixtures import unique
from tests.servers.issuer import SECRET, Issuer
from tests.servers.secured import SecuredKafka

pytestmark = pytest.mark.real_kafka
WAYS = ("SSL", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def settings_of(given: dict[str, str], **changes: Any) -> KafkaSettings:
    return KafkaSettings.model_validate({n.lower(): v for n, v in given.items()} | changes)


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_sent_comes_back(secured_kafka: SecuredKafka, way: str) -> None:
    topic = await asyncio.to_thread(secured_kafka.create_topic, unique())
    settings = settings_of(secured_kafka.login(way))
    assert await why_away(client_arguments(settings)) == ""
    async with AIOKafkaProducer(**client_arguments(settings)) as producer:
        await producer.send_and_wait(topic, b"secret")
    consumer = AIOKafkaConsumer(
        topic, **client_arguments(settings), auto_offset_reset="earliest", group_id=None
    )
    async with consumer:
        assert (await asyncio.wait_for(consumer.getone(), 120)).value == b"secret"


@pytest.mark.parametrize(
    ("way", "changes", "said"),
    [
        ("PLAIN", {"kafka_sasl_password": "wrong"}, "Invalid username or password"),
        ("SCRAM-SHA-256", {"kafka_sasl_password": "wrong"}, "credentials"),
        ("OAUTHBEARER", {"kafka_oauth_client_secret": "wrong"}, "/token answers 401"),
        ("OAUTHBEARER", {"kafka_oauth_token_url": "http://127.0.0.1:1/t"}, "does not answer"),
        ("SSL", {"kafka_bootstrap_servers": "localhost:1"}, "localhost:1: .*[Cc]onnect"),
    ],
)
async def test_what_is_wrong_is_said(
    secured_kafka: SecuredKafka, way: str, changes: dict[str, str], said: str
) -> None:
    settings = settings_of(secured_kafka.login(way), **changes)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(await why_away(client_arguments(settings)))


async def test_a_strange_certificate_is_named(
    secured_kafka: SecuredKafka, stranger: Authority
) -> None:
    settings = settings_of(secured_kafka.login("PLAIN"), kafka_ca_file=stranger.ca_file)
    assert "certificate verify failed" in await why_away(client_arguments(settings))


async def test_a_token_is_kept_until_shortly_before_its_end(secured_kafka: SecuredKafka) -> None:
    with Issuer(seconds=3600) as issuer:
        login = secured_kafka.login("OAUTHBEARER") | {
            "KAFKA_OAUTH_TOKEN_URL": f"{issuer.url}/token"
        }
        provider = ClientCredentials(settings_of(login))
        tokens = await asyncio.gather(*(provider.token() for _ in range(5)))
        assert len(set(tokens)) == 1
        assert issuer.asked == 1
        assert issuer.scopes == ["kafka"]
        issuer.seconds = 4  # shorter than it is asked for early: never used twice
        provider = ClientCredentials(settings_of(login))
        await provider.token()
        await provider.token()
        assert issuer.asked == 3


async def test_no_secret_is_in_an_error(secured_kafka: SecuredKafka) -> None:
    with Issuer() as issuer:
        login = secured_kafka.login("OAUTHBEARER") | {"KAFKA_OAUTH_TOKEN_URL": f"{issuer.url}/no"}
        login |= {"KAFKA_OAUTH_CLIENT_ID": "somebody else"}
        with pytest.raises(AuthenticationFailedError) as refused:
            await ClientCredentials(settings_of(login)).token()
    assert SECRET not in str(refused.value)
    assert "401" in str(refused.value)
