"""Writing to a transport that the broker has closed raises a Kafka error, on uvloop."""

import asyncio

import pytest
import uvloop
from aiokafka import conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.admin import ApiVersionRequest

from inference_store.platform.kafka.closed_transports import Connection, notice_closed_transports


def test_a_write_after_the_end_is_a_broken_connection() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_write_after_the_end())


async def _write_after_the_end() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    _, writer = await asyncio.open_connection(host, port)
    writer.transport.abort()
    async with asyncio.timeout(60):
        await writer.wait_closed()
    connection = Connection(host, port)
    connection._writer = writer
    with pytest.raises(KafkaConnectionError, match="closed"):
        connection.send(ApiVersionRequest())
    assert not connection.connected()
    server.close()
    await server.wait_closed()


def test_clients_have_such_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conn, "AIOKafkaConnection", Connection.__bases__[0])
    notice_closed_transports()
    notice_closed_transports()
    connection: object = conn.AIOKafkaConnection
    assert connection is Connection
