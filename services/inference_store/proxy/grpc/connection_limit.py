"""The gRPC port's connections, limited by address.

gRPC's server limits the total of connections, but does not list them. The process's open files do:
a connection is a socket that does not listen, with the port at its own end and a caller at the
other.
"""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, TypeAlias

from inference_store.platform.serving import Connections

Caller: TypeAlias = tuple[str, int]
"""An address and a port."""

_OPEN_FILES: Final = "/dev/fd"
_EVERY_SECONDS: Final = 1.0


async def limit_connections(
    port: int, connections: Connections, accepted: set[Caller] | None = None
) -> None:
    """Close connections over an address's limit on this port, the newest first, until cancelled.

    `accepted`: callers that connected before.
    """
    accepted = accepted or set()
    while True:
        accepted = close_surplus(port, connections, accepted)
        await asyncio.sleep(_EVERY_SECONDS)


def close_surplus(port: int, connections: Connections, earlier: set[Caller]) -> set[Caller]:
    """Close and count connections over the limit of an address, and return the callers that stay.

    `earlier`: those that stayed last time; they have precedence.
    """
    staying: set[Caller] = set()
    by_address: Counter[str] = Counter()
    for caller, number in sorted(_list_callers(port), key=lambda item: item[0] not in earlier):
        if by_address[caller[0]] < connections.most_of_one:
            by_address[caller[0]] += 1
            staying.add(caller)
        elif _close(number, caller, port):
            connections.refuse("address")
    return staying


def _list_callers(port: int) -> Iterator[tuple[Caller, int]]:
    """Yield the callers of the port, each with the number of its open file."""
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError), _duplicate(int(name)) as connection:
            if (caller := _find_caller(connection, port)) is not None:
                yield caller, int(name)


def _close(number: int, caller: Caller, port: int) -> bool:
    """Shut down a caller's connection, for gRPC, too; return False if the caller had already closed
    it."""
    with suppress(OSError), _duplicate(number) as connection:
        if _find_caller(connection, port) == caller:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _duplicate(number: int) -> socket.socket:
    """Return a duplicate of the socket of an open file, which others may close meanwhile. Raises
    OSError if it is not a socket."""
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _find_caller(connection: socket.socket, port: int) -> Caller | None:
    """Return the caller at the other end; None if this is not a connection of the port. Raises
    OSError if the socket listens."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    if connection.getsockname()[1] != port:
        return None
    address, caller_port, *_ = connection.getpeername()
    return address, caller_port
