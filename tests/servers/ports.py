"""Ports of 127.0.0.1 that stay ours while a server is stopped and started again."""

import random
import socket

# Below the range that Linux and macOS give to outgoing connections (from 32768 and 49152): a port
# of that range may be taken by any client while its server is down for a moment.
_OURS = range(15_000, 32_000)
_TRIES = 200


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on. Raises OSError if none was found."""
    chance = random.SystemRandom()  # Hypothesis seeds the other, alike in every run
    for _ in range(_TRIES):
        port = chance.choice(_OURS)
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port was found")
