"""One set of servers for a run: workers of pytest-xdist ask the process that started them.

The first worker that needs a server has it started; all of them get its address. They end with
the run. Without workers nothing is shared, and each session starts its own.
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
"""The variable that names the socket at which workers ask; only in runs with workers."""

Start = Callable[[], AbstractContextManager[Any]]


class SharedServers:
    """Starts each server when it is first asked for, in the process that started the workers.

    `starts` maps a name to a context manager of something that can be pickled: its address.
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
                connection.send((self._address_of(connection.recv()), ""))
            except EOFError:  # the worker is gone
                return
            except BaseException as failed:
                connection.send((None, f"{failed}" or repr(failed)))

    def _address_of(self, name: str) -> Any:
        with self._locks[name]:
            if name not in self._running:
                self._running[name] = self._stack.enter_context(self._starts[name]())
            return self._running[name]


def ask_for_server(name: str) -> Any:
    """The address of a server of this run; None where nothing is shared.

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
