"""The arguments of every Kafka client: the brokers, and how to reach them."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from aiokafka import conn
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError, KafkaError

from inference_store.platform.settings import KafkaSettings, trusting

from .tokens import ClientCredentials

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
        arguments |= _login(settings)
    return arguments


def _tls(settings: KafkaSettings) -> ssl.SSLContext:
    context = trusting(settings.kafka_ca_file)
    if settings.kafka_certificate_file is not None:
        password = settings.kafka_key_password.get_secret_value()
        context.present(settings.kafka_certificate_file, settings.kafka_key_file, password)
    return context


def _login(settings: KafkaSettings) -> dict[str, Any]:
    if settings.kafka_sasl_mechanism == "OAUTHBEARER":
        return {"sasl_oauth_token_provider": ClientCredentials(settings)}
    return {
        "sasl_plain_username": settings.kafka_sasl_username,
        "sasl_plain_password": settings.kafka_sasl_password.get_secret_value(),
    }


async def find_connection_error(arguments: Mapping[str, Any]) -> str:
    """Return why the first broker cannot be used; "" if it can.

    aiokafka only logs the reason (a certificate, a password) and raises that it has no broker.
    """
    how = {name: value for name, value in arguments.items() if name != "bootstrap_servers"}
    first = str(arguments["bootstrap_servers"]).split(",", maxsplit=1)[0].strip()
    host, _, port = first.rpartition(":")
    connection = AIOKafkaConnection(host.strip("[]"), int(port), **how)
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            await connection.connect()
    except (OSError, KafkaError, ValueError) as error:
        reason = f"{first}: {error or type(error).__name__}"
        opened = isinstance(error, KafkaError)
    else:
        reason, opened = "", True
    closed = connection.close()
    if opened:  # over TLS closing takes a message each way
        await asyncio.wait([closed], timeout=_CLOSE_SECONDS)
    return reason


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
