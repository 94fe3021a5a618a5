"""Free ports of 127.0.0.1."""

import socket
from contextlib import ExitStack

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on now."""
    with ExitStack() as stack:
        # All held at once, or the system could give one port twice.
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in held]


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except OSError:
            return False
        return True


def free_from(first: int, *, without: frozenset[int] = frozenset()) -> int:
    """The next port from `first` on that is free; any free one where the next hundred are taken."""
    near = (port for port in range(first, min(first + 100, 65536)) if port not in without)
    return next((port for port in near if is_free(port)), None) or free_ports(1)[0]
