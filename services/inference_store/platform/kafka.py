"""Connections to Kafka, the same for every client of ours, and what a broker says of itself."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition, conn
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from .settings import KafkaSettings, trusting

_ASK_SECONDS = 10
_CLOSE_SECONDS = 2


def client_arguments(settings: KafkaSettings) -> dict[str, Any]:
    """Return the arguments of any aiokafka client. Raises ssl.SSLError, OSError for unusable files.

    They are created again for each client: they hold the token of OAUTHBEARER.
    """
    notice_closed_transports()
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.kafka_bootstrap_servers,
        "security_protocol": settings.kafka_security_protocol,
    }
    if settings.kafka_security_protocol in {"SSL", "SASL_SSL"}:
        arguments["ssl_context"] = _tls(settings)
    if settings.kafka_sasl_mechanism is not None:
        arguments["sasl_mechanism"] = settings.kafka_sasl_mechanism
    if settings.kafka_sasl_mechanism == "OAUTHBEARER":
        arguments["sasl_oauth_token_provider"] = ClientCredentials(settings)
    elif settings.kafka_sasl_mechanism is not None:
        arguments["sasl_plain_username"] = settings.kafka_sasl_username
        arguments["sasl_plain_password"] = settings.kafka_sasl_password.get_secret_value()
    return arguments


def _tls(settings: KafkaSettings) -> ssl.SSLContext:
    context = trusting(settings.kafka_ca_file)
    if settings.kafka_certificate_file is not None:
        password = settings.kafka_key_password.get_secret_value()
        context.present(settings.kafka_certificate_file, settings.kafka_key_file, password)
    return context


async def find_connection_error(arguments: Mapping[str, Any]) -> str:
    """Return why the first broker cannot be used; "" if it can.

    aiokafka only logs the reason (a certificate, a password) and raises that it has no broker.
    """
    host, port, how = _split_first_broker(arguments)
    connection = AIOKafkaConnection(host, port, **how)
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            await connection.connect()
    except (OSError, KafkaError, ValueError) as error:
        reason = f"{host}:{port}: {error or type(error).__name__}"
        opened = isinstance(error, KafkaError)
    else:
        reason, opened = "", True
    closed = connection.close()
    if opened:  # over TLS closing takes a message each way
        await asyncio.wait([closed], timeout=_CLOSE_SECONDS)
    return reason


def _split_first_broker(arguments: Mapping[str, Any]) -> tuple[str, int, dict[str, Any]]:
    """Return the first broker's host and port, and the arguments of a connection to it."""
    how = dict(arguments)
    host, _, port = how.pop("bootstrap_servers").partition(",")[0].strip().rpartition(":")
    return host.strip("[]"), int(port), how


# Connections that a broker has closed, as uvloop's transports report them.
#
# asyncio's transports then drop what is written to them; uvloop's raise RuntimeError, which
# aiokafka does not catch (aiokafka issue 1038): it ended the consumer, and with it the ingester.


class Connection(conn.AIOKafkaConnection):  # type: ignore[misc]
    """aiokafka's connection, which treats a closed transport as a broken connection."""

    def send(self, request: Any, expect_response: bool = True) -> Any:
        """Send as aiokafka does. Raises KafkaConnectionError if the transport is closed."""
        try:
            return super().send(request, expect_response)
        except RuntimeError as error:
            if not self._writer.transport.is_closing():
                raise
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"The connection is broken: {error}") from error


def notice_closed_transports() -> None:
    """Let every aiokafka client use such connections from now on. Repeatable."""
    conn.AIOKafkaConnection = Connection


_TIMEOUT = aiohttp.ClientTimeout(total=10)
_MOST_BYTES = 64 * 1024
# A token is requested again when a fifth of its life is left, at least these many seconds.
_EARLY_SHARE, _EARLY_SECONDS = 0.2, 5.0
_DEFAULT_SECONDS = 60.0


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]
    """Provides a token for every connection; requests one, and caches it until shortly before its
    end."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._url = settings.kafka_oauth_token_url
        secret = settings.kafka_oauth_client_secret.get_secret_value()
        # form-encoded before Basic, as the RFC has it
        client = (quote(text, safe="") for text in (settings.kafka_oauth_client_id, secret))
        self._headers = {"Authorization": aiohttp.encode_basic_auth(*client)}
        self._form = {"grant_type": "client_credentials"}
        if settings.kafka_oauth_scope:
            self._form["scope"] = settings.kafka_oauth_scope
        self._tls = trusting(settings.kafka_ca_file, beside_system=True)
        self._lock = asyncio.Lock()
        self._token = ""
        self._until = 0.0

    async def token(self) -> str:
        """Return the token. Raises AuthenticationFailedError, which never contains the secret."""
        async with self._lock:
            if not self._token or time.monotonic() >= self._until:
                await self._request()
            return self._token

    async def _request(self) -> None:
        requested_at = time.monotonic()
        try:
            status, body = await self._post()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AuthenticationFailedError(
                f"the token endpoint {self._url} does not answer: {error or type(error).__name__}"
            ) from error
        try:
            answer = orjson.loads(body)
            self._token = str(answer["access_token"])
            seconds = float(answer.get("expires_in", _DEFAULT_SECONDS))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            text = body[:200].decode("utf-8", "replace") if status != 200 else "no access_token"
            raise AuthenticationFailedError(
                f"the token endpoint {self._url} answers {status}: {text}"
            ) from None
        self._until = requested_at + seconds - max(seconds * _EARLY_SHARE, _EARLY_SECONDS)

    async def _post(self) -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as http,
            http.post(
                self._url,
                data=self._form,
                headers=self._headers,
                ssl=self._tls,
                allow_redirects=False,
            ) as answer,
        ):
            body = await answer.content.read(_MOST_BYTES + 1)
            while len(body) <= _MOST_BYTES and (more := await answer.content.read(_MOST_BYTES)):
                body += more
            if len(body) > _MOST_BYTES:
                raise aiohttp.ClientError(f"its answer is over {_MOST_BYTES} bytes")
            return answer.status, body


KAFKA_ERRORS = (KafkaError, OSError, ssl.SSLError, ValueError)
_TIMEOUT_MILLISECONDS = 8000
_FETCH = 1
_READS = 8
_READ_MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's state at the brokers.

    `settings`: the topic's own and the brokers' defaults; None if the brokers do not report them.
    """

    partitions: int
    replicas: int
    # partitions without a leader, and those with fewer replicas in sync than they have
    leaderless: int
    lagging: int
    settings: Mapping[str, str] | None


async def version(settings: KafkaSettings) -> tuple[int, str]:
    """Return the brokers' major version, and its description. Raises KafkaError, OSError.

    Brokers do not report their version, only which requests they accept.
    """
    host, port, how = _split_first_broker(client_arguments(settings))
    connection = await create_conn(host, port, **how)
    try:
        # aiokafka has no other place for it
        lowest, highest = (connection._versions or {}).get(_FETCH, (0, 0))
    finally:
        connection.close()
    if lowest >= 4:
        return 4, "4 or newer"
    return (3, "3") if highest >= 12 else (2, "older than 3")


async def topic(settings: KafkaSettings) -> TopicSettings | None:
    """Return the topic of the settings; None if it does not exist. Raises KafkaError, OSError."""
    admin = AIOKafkaAdminClient(
        **client_arguments(settings), request_timeout_ms=_TIMEOUT_MILLISECONDS
    )
    try:
        await start_client(admin, settings)
        partitions = await _read_partitions(admin, settings.kafka_topic)
        if partitions is None:
            return None
        return TopicSettings(
            partitions=len(partitions),
            replicas=min(len(partition["replicas"]) for partition in partitions),
            leaderless=sum(partition["leader"] < 0 for partition in partitions),
            lagging=sum(len(part["isr"]) < len(part["replicas"]) for part in partitions),
            settings=await _read_settings(admin, settings.kafka_topic),
        )
    finally:
        await admin.close()


async def _read_partitions(admin: AIOKafkaAdminClient, name: str) -> list[Any] | None:
    """Return a topic's partitions; None if it does not exist. aiokafka's own request would create
    it."""
    request = MetadataRequest([name], allow_auto_topic_creation=False)
    answer = await admin._client.send(admin._client.get_random_node(), request)
    (topic_metadata,) = answer.to_object()["topics"]
    error = for_code(topic_metadata["error_code"])
    if error is UnknownTopicOrPartitionError:
        return None
    if error is not NoError:
        raise error(f"the broker says of the topic {name!r}: {error.message}")
    return list(topic_metadata["partitions"]) or None


async def _read_settings(admin: AIOKafkaAdminClient, name: str) -> dict[str, str] | None:
    """Return a topic's settings; None if the brokers do not know the request."""
    try:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    except IncompatibleBrokerVersion:
        return None
    # error code, message, type, name, entries; of an entry: name, value
    code, message, _, _, entries = answer.resources[0]
    if (error := for_code(code)) is not NoError:
        raise error(f"the broker does not describe the topic {name!r}: {message or error.message}")
    return {entry[0]: entry[1] or "" for entry in entries}


async def ends(settings: KafkaSettings) -> dict[int, tuple[int, int]]:
    """Return the first and the last offset of each partition. Raises KafkaError, OSError."""
    async with _consumer(settings, settings.kafka_topic) as consumer:
        numbers = sorted(consumer.partitions_for_topic(settings.kafka_topic) or ())
        partitions = [TopicPartition(settings.kafka_topic, number) for number in numbers]
        first = await consumer.beginning_offsets(partitions)
        last = await consumer.end_offsets(partitions)
    return {partition.partition: (first[partition], last[partition]) for partition in partitions}


async def has_unread(
    settings: KafkaSettings, read: Mapping[int, int], ends: Mapping[int, int]
) -> bool:
    """Return whether there is an unread record before one of `ends`. `read`: the next offset
    to read, by partition. Raises KafkaError, OSError.

    The first unread record of each partition is requested: markers are nothing to read.
    """
    async with _consumer(settings) as consumer:
        # not the partitions that the client knows: it knows none of a topic without a subscription
        partitions = [TopicPartition(settings.kafka_topic, number) for number in sorted(ends)]
        consumer.assign(partitions)
        first = await consumer.beginning_offsets(partitions)
        last = await consumer.end_offsets(partitions)
        for partition in partitions:
            start = max(first[partition], read.get(partition.partition, first[partition]))
            end = min(last[partition], ends[partition.partition])
            if start < end:
                consumer.seek(partition, start)
                if await _is_before(consumer, partition, end):
                    return True
    return False


async def list_topics(settings: KafkaSettings) -> set[str]:
    """Return the topics that are there and visible to us. Raises KafkaError, OSError."""
    async with _consumer(settings) as consumer:
        return set(await consumer.topics())


@asynccontextmanager
async def _consumer(settings: KafkaSettings, *topics: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        *topics,
        **client_arguments(settings),
        request_timeout_ms=_TIMEOUT_MILLISECONDS,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        await start_client(consumer, settings)
        yield consumer
    finally:
        await consumer.stop()


async def _is_before(consumer: Any, partition: TopicPartition, end: int) -> bool:
    """Return whether the next record of a partition is before an offset: there may be only markers.

    Raises KafkaTimeoutError if no record arrives.
    """
    for _ in range(_READS):
        answer = await consumer.getmany(partition, timeout_ms=_READ_MILLISECONDS, max_records=1)
        for record in answer.get(partition, ()):
            return int(record.offset) < end
        if await consumer.position(partition) >= end:
            return False
    raise KafkaTimeoutError(f"partition {partition.partition} has unread events, and gives none")


async def start_client(client: Any, settings: KafkaSettings) -> None:
    """Start a client. Raises KafkaConnectionError, which says why the first broker is away."""
    try:
        await client.start()
    except KafkaConnectionError as error:
        why = await find_connection_error(client_arguments(settings))
        raise KafkaConnectionError(why or str(error)) from error
