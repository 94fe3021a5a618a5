"""Connections that a broker has closed, as uvloop's transports report them.

asyncio's transports then drop what is written to them; uvloop's raise RuntimeError, which aiokafka
does not catch (aiokafka issue 1038): it ended the consumer, and with it the ingester.
"""

from typing import Any

from aiokafka import conn
from aiokafka.errors import KafkaConnectionError


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
