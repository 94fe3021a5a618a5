"""Ports of 127.0.0.1 that stay ours while a server is stopped and started again."""

import fcntl
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

# Below the range that Linux and macOS give to outgoing connections (from 32768 and 49152): a port
# of that range may be taken by any client while its server is down for a moment.
_OURS = range(15_000, 32_000)
_TRIES = 200
_given: set[int] = set()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on, and that no other process of tests is
    given while this one lives: a server may start long after it. Raises OSError if none was
    found."""
    chance = random.SystemRandom()  # Hypothesis seeds the other, alike in every run
    for _ in range(_TRIES):
        port = chance.choice(_OURS)
        if port not in _given and _is_unused(port) and _reserve(port):
            _given.add(port)
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
    # It stays open: to close any handle of the file would give all locks of the process back.
    return (Path(tempfile.gettempdir()) / "inference-store-test-ports").open("ab")
