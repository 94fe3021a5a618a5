"""Free ports of 127.0.0.1."""

import socket
from contextlib import ExitStack

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that no program listens on now."""
    with ExitStack() as stack:
        # All bound at once, or the system could give one port twice.
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in held:
            bound.bind((HOST, 0))
        return [bound.getsockname()[1] for bound in held]


def is_free(port: int) -> bool:
    """Return whether a server could listen on `port` now."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError:
            return False
        return True


def free_from(first: int, *, without: frozenset[int] = frozenset()) -> int:
    """Return the next free port from `first` on; any free one if the next hundred are in use."""
    near = (port for port in range(first, min(first + 100, 65536)) if port not in without)
    return next((port for port in near if is_free(port)), None) or free_ports(1)[0]
