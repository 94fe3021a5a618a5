"""Reads heads by their meaning: names without case, no reason phrases of a server's own, and an
answer of HTTP/1.0 that does not keep the connection as one that closes it."""

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, SupportsIndex

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


class PlainReader(asyncio.StreamReader):
    """A reader of answers; a server writes each head at once."""

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        super().feed_data(plain(bytes(data)))


async def open_connection(
    host: str, port: int, **options: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection, as `asyncio.open_connection` does."""
    loop = asyncio.get_running_loop()
    reader = PlainReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, host, port, **options)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def plain(data: bytes) -> bytes:
    """Return a part of an answer, with its head in one form if it begins with one."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end or not data.startswith(b"HTTP/1."):
        return data
    status, *lines = head.split(b"\r\n")
    fields = [_plain_line(line) for line in lines]
    if status.startswith(b"HTTP/1.0") and not any(b"keep-alive" in field for field in fields):
        fields = [field for field in fields if not field.startswith(b"connection:")]
        fields.append(b"connection: close")
    return b"\r\n".join([_plain_status(status), *fields]) + end + plain(rest)


def _plain_status(line: bytes) -> bytes:
    code = int(line.split()[1])
    phrase = _PHRASES.get(code, "").encode()
    return b"HTTP/1.1 %d %s" % (code, phrase)


def _plain_line(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    return name.lower() + colon + value
