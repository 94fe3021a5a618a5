"""The statements sent to Postgres, by SQLAlchemy and by the driver itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine


class SentStatement(NamedTuple):
    """A statement, and the values of its parameters."""

    text: str
    values: tuple[Any, ...]


@contextmanager
def record_statements(engine: AsyncEngine) -> Iterator[list[SentStatement]]:
    """Record the statements sent over connections that are acquired from now on."""
    sent: list[SentStatement] = []

    def log(record: Any) -> None:
        sent.append(SentStatement(record.query, tuple(record.args or ())))

    def log_sqlalchemy(_c: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        sent.append(SentStatement(text, values))

    def begin_logging(connection: Any, *_: object) -> None:
        connection.driver_connection.add_query_logger(log)

    def end_logging(connection: Any, *_: object) -> None:
        if connection is not None:
            connection.driver_connection.remove_query_logger(log)

    event.listen(engine.sync_engine, "checkout", begin_logging, insert=True)
    event.listen(engine.sync_engine, "checkin", end_logging)
    event.listen(engine.sync_engine, "before_cursor_execute", log_sqlalchemy)
    try:
        yield sent
    finally:
        event.remove(engine.sync_engine, "checkout", begin_logging)
        event.remove(engine.sync_engine, "checkin", end_logging)
        event.remove(engine.sync_engine, "before_cursor_execute", log_sqlalchemy)
