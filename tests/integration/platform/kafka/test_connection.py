"""Every kind of login to a secured Kafka, and the errors of wrong ones."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import AuthenticationFailedError

from inference_store.platform.kafka import (
    ClientCredentials,
    client_arguments,
    find_connection_error,
)
from inference_store.platform.settings import KafkaSettings
from tests.servers.certificates import Authority
from tests.servers.fixtures import unique
from tests.servers.issuer import SECRET, Issuer
from tests.servers.secured import SecuredKafka

pytestmark = [pytest.mark.real_kafka, pytest.mark.long]
LOGINS = ("SSL", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def make_kafka_settings(environment: dict[str, str], **changes: Any) -> KafkaSettings:
    return KafkaSettings.model_validate({n.lower(): v for n, v in environment.items()} | changes)


@pytest.mark.parametrize("way", LOGINS)
async def test_sends_and_receives(secured_kafka: SecuredKafka, way: str) -> None:
    topic = await asyncio.to_thread(secured_kafka.create_topic, unique())
    settings = make_kafka_settings(secured_kafka.login(way))
    assert await find_connection_error(client_arguments(settings)) == ""
    async with AIOKafkaProducer(**client_arguments(settings)) as producer:
        await producer.send_and_wait(topic, b"secret")
    consumer = AIOKafkaConsumer(
        topic, **client_arguments(settings), auto_offset_reset="earliest", group_id=None
    )
    async with consumer:
        assert (await asyncio.wait_for(consumer.getone(), 120)).value == b"secret"


@pytest.mark.parametrize(
    ("way", "changes", "message"),
    [
        ("PLAIN", {"kafka_sasl_password": "wrong"}, "Invalid username or password"),
        ("SCRAM-SHA-256", {"kafka_sasl_password": "wrong"}, "credentials"),
        ("OAUTHBEARER", {"kafka_oauth_client_secret": "wrong"}, "/token answers 401"),
        ("OAUTHBEARER", {"kafka_oauth_token_url": "http://127.0.0.1:1/t"}, "does not answer"),
        ("SSL", {"kafka_bootstrap_servers": "localhost:1"}, "localhost:1: .*[Cc]onnect"),
    ],
)
async def test_reports_connection_errors(
    secured_kafka: SecuredKafka, way: str, changes: dict[str, str], message: str
) -> None:
    settings = make_kafka_settings(secured_kafka.login(way), **changes)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(await find_connection_error(client_arguments(settings)))


async def test_a_strange_certificate_is_named(
    secured_kafka: SecuredKafka, stranger: Authority
) -> None:
    settings = make_kafka_settings(secured_kafka.login("PLAIN"), kafka_ca_file=stranger.ca_file)
    assert "certificate verify failed" in await find_connection_error(client_arguments(settings))


async def test_caches_a_token_until_shortly_before_it_expires(secured_kafka: SecuredKafka) -> None:
    with Issuer(seconds=3600) as issuer:
        login = secured_kafka.login("OAUTHBEARER") | {
            "KAFKA_OAUTH_TOKEN_URL": f"{issuer.url}/token"
        }
        provider = ClientCredentials(make_kafka_settings(login))
        tokens = await asyncio.gather(*(provider.token() for _ in range(5)))
        assert len(set(tokens)) == 1
        assert issuer.token_requests == 1
        assert issuer.scopes == ["kafka"]
        issuer.seconds = 4  # shorter than the margin before expiry: never used twice
        provider = ClientCredentials(make_kafka_settings(login))
        await provider.token()
        await provider.token()
        assert issuer.token_requests == 3


async def test_no_secret_is_in_an_error(secured_kafka: SecuredKafka) -> None:
    with Issuer() as issuer:
        login = secured_kafka.login("OAUTHBEARER") | {"KAFKA_OAUTH_TOKEN_URL": f"{issuer.url}/no"}
        login |= {"KAFKA_OAUTH_CLIENT_ID": "somebody else"}
        with pytest.raises(AuthenticationFailedError) as refused:
            await ClientCredentials(make_kafka_settings(login)).token()
    assert SECRET not in str(refused.value)
    assert "401" in str(refused.value)
