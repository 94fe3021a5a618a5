"""What is sent to Postgres: by SQLAlchemy, and by the driver itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine


class Sent(NamedTuple):
    """A command, and the values of its parameters."""

    text: str
    values: tuple[Any, ...]


@contextmanager
def statements_of(engine: AsyncEngine) -> Iterator[list[Sent]]:
    """What is sent over connections that are taken from now on."""
    sent: list[Sent] = []

    def log(record: Any) -> None:
        sent.append(Sent(record.query, tuple(record.args or ())))

    def by_sqlalchemy(_c: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        sent.append(Sent(text, values))

    def taken(connection: Any, *_: object) -> None:
        connection.driver_connection.add_query_logger(log)

    def returned(connection: Any, *_: object) -> None:
        if connection is not None:
            connection.driver_connection.remove_query_logger(log)

    event.listen(engine.sync_engine, "checkout", taken, insert=True)
    event.listen(engine.sync_engine, "checkin", returned)
    event.listen(engine.sync_engine, "before_cursor_execute", by_sqlalchemy)
    try:
        yield sent
    finally:
        event.remove(engine.sync_engine, "checkout", taken)
        event.remove(engine.sync_engine, "checkin", returned)
        event.remove(engine.sync_engine, "before_cursor_execute", by_sqlalchemy)
