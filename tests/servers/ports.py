"""Ports of 127.0.0.1 that stay reserved while a server is stopped and started again."""

import fcntl
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

# Below the range of outgoing connections on Linux and macOS (from 32768 and 49152), in which any
# client may take the port of a server that is down for a moment.
_OURS = range(15_000, 32_000)
_TRIES = 200
_reserved: set[int] = set()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on.

    No other process of tests gets it while this one lives, since a server may start much later.
    Raises OSError if there is no free port.
    """
    chance = random.SystemRandom()  # Hypothesis seeds `random` with the same value in every run
    for _ in range(_TRIES):
        port = chance.choice(_OURS)
        if port not in _reserved and _is_unused(port) and _reserve(port):
            _reserved.add(port)
            return port
    raise OSError("no free port was found")


def _is_unused(port: int) -> bool:
    with socket.socket() as candidate:
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Lock the port's byte of a file, until this process ends."""
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@cache
def _reservations() -> IO[bytes]:
    # It stays open: closing any handle of the file would release all locks of the process.
    return (Path(tempfile.gettempdir()) / "inference-store-test-ports").open("ab")
