"""A connection that a broker has closed, as uvloop's transports report it.

asyncio's transports drop what is written to them then; uvloop's raise RuntimeError, which aiokafka
does not catch (aiokafka issue 1038): the consumer that met it ended, and with it the ingester.
"""

from typing import Any

from aiokafka import conn
from aiokafka.errors import KafkaConnectionError


class Connection(conn.AIOKafkaConnection):  # type: ignore[misc]
    """aiokafka's connection, on which a closed transport is a connection that is broken."""

    def send(self, request: Any, expect_response: bool = True) -> Any:
        """As aiokafka's. Raises KafkaConnectionError if the transport is closed."""
        try:
            return super().send(request, expect_response)
        except RuntimeError as error:
            if not self._writer.transport.is_closing():
                raise
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"The connection is broken: {error}") from error


def notice_closed_transports() -> None:
    """From now on every aiokafka client has such connections. Repeatable."""
    conn.AIOKafkaConnection = Connection
