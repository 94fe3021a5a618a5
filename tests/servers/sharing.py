"""One set of servers for a run: the workers of pytest-xdist ask the main process.

The main process starts a server when the first worker needs it, and gives its address to all.
The servers end with the run. Without workers each session starts its own.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Self

SHARED_SERVERS = "INFERENCE_STORE_TEST_SHARED_SERVERS"
"""The variable that names the socket of the main process; only in runs with workers."""

Start = Callable[[], AbstractContextManager[Any]]


class SharedServers:
    """Starts each server at its first request, in the main process.

    `starts` maps a name to a context manager of the server's address, which can be pickled.
    """

    def __init__(self, starts: Mapping[str, Start]) -> None:
        self._starts = starts
        self._locks = {name: threading.Lock() for name in starts}
        self._running: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = Path(tempfile.mkdtemp(prefix="inference-store-servers-"))
        self._stack.callback(folder.rmdir)
        self._listener = Listener(str(folder / "socket"), family="AF_UNIX")
        self._stack.callback(self._listener.close)
        os.environ[SHARED_SERVERS] = str(folder / "socket")
        threading.Thread(target=self._answer_workers, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(SHARED_SERVERS, None)
        self._stack.close()

    def _answer_workers(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # closed: the run is over
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                connection.send((self._start_or_reuse(connection.recv()), ""))
            except EOFError:  # the worker is gone
                return
            except BaseException as failed:
                connection.send((None, f"{failed}" or repr(failed)))

    def _start_or_reuse(self, name: str) -> Any:
        with self._locks[name]:
            if name not in self._running:
                self._running[name] = self._stack.enter_context(self._starts[name]())
            return self._running[name]


def ask_for_server(name: str) -> Any:
    """Return the address of a server of this run; None if nothing is shared.

    Raises RuntimeError with the reason why it could not be started.
    """
    path = os.environ.get(SHARED_SERVERS)
    if path is None:
        return None
    with Client(path, family="AF_UNIX") as connection:
        connection.send(name)
        address, failed = connection.recv()
    if failed:
        raise RuntimeError(f"{name} could not be started: {failed}")
    return address
