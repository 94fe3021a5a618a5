"""What the load's connections have in common: non-blocking sockets, calls by when they were due."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence

_BUFFER = 1 << 20


class Broken(Exception):
    """The other side closed the connection, or said what this client does not understand."""


class Connection(ABC):
    """One connection; up to `slots` calls at once."""

    slots = 1

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._socket.setblocking(False)
        self._out = b""
        self.fd = self._socket.fileno()

    @property
    def writes(self) -> bool:
        """Return whether more is to be sent once there is room."""
        return bool(self._out)

    @abstractmethod
    def ask(self, due: float) -> None:
        """Send a call that was due then."""

    @abstractmethod
    def answered(self) -> Sequence[tuple[float, bool]]:
        """Read what is there: of each call that is over when it was due, and whether all of the
        answer came and was good. Raises Broken."""

    def flush(self) -> None:
        """Send as much as there is room for."""
        self._send(b"")

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _send(self, more: bytes) -> None:
        out = self._out + more if self._out else more
        try:
            sent = self._socket.send(out)
        except BlockingIOError:
            sent = 0
        self._out = out[sent:] if sent < len(out) else b""

    def _read(self) -> bytes:
        try:
            part = self._socket.recv(_BUFFER)
        except BlockingIOError:
            return b""
        except OSError as exc:
            raise Broken(str(exc)) from exc
        if not part:
            raise Broken("it was closed")
        return part
