"""A capture process that is a thread of the test's: with an S3 and a Kafka of its own."""

import asyncio
import os
import socket
import threading
from collections.abc import Mapping
from io import BufferedReader

from inference_store.proxy.capture.deliveries import Store, Topic
from inference_store.proxy.capture.frames import Reader
from inference_store.proxy.capture.hello import hello_from
from inference_store.proxy.capture.page import Page
from inference_store.proxy.capture.process import Start
from inference_store.proxy.capture.recorder import Recorder
from inference_store.proxy.protocols import Protocol


def recording(store: Store, topic: Topic, protocols: Mapping[str, Protocol]) -> Start:
    """What starts it."""

    class Thread:
        def __init__(self, connection: socket.socket, page: int, lock: int) -> None:
            self._socket = connection.dup()
            self._page = Page(os.dup(page))
            self._lock = None if lock < 0 else os.dup(lock)
            self._code = 1
            self._thread = threading.Thread(target=self._run)
            self._thread.start()

        def _run(self) -> None:
            try:
                asyncio.run(self._record())
                self._code = 0
            finally:
                self._page.close()
                self._socket.close()

        async def _record(self) -> None:
            with BufferedReader(socket.SocketIO(self._socket, "r"), 4096) as source:
                reader = Reader(source)
                hello = await asyncio.to_thread(hello_from, reader)
                await Recorder(
                    hello,
                    reader,
                    self._page,
                    self._lock,
                    protocols=protocols,
                    store=store,
                    topic=topic,
                ).run()

        def wait(self) -> int:
            self._thread.join()
            return self._code

        def kill(self) -> None:
            raise AssertionError("it does not end")

    return Thread
