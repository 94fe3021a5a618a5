"""A capture process that is a thread of the test's: with an S3 and a Kafka of its own."""

import asyncio
import os
import socket
import threading
from collections.abc import Mapping
from io import BufferedReader

from inference_store.proxy.capture.deliveries import Store, Topic
from inference_store.proxy.capture.frames import Reader
from inference_store.proxy.capture.handshake import read_handshake
from inference_store.proxy.capture.process import Start
from inference_store.proxy.capture.recorder import Recorder
from inference_store.proxy.capture.shared_counters import SharedCounters
from inference_store.proxy.protocols import Protocol


def make_start(store: Store, topic: Topic, protocols: Mapping[str, Protocol]) -> Start:
    """Return the function that starts the capture process, here a thread."""

    class Thread:
        def __init__(self, connection: socket.socket, counters: int, lock: int) -> None:
            self._socket = connection.dup()
            self._counters = SharedCounters(os.dup(counters))
            self._lock = None if lock < 0 else os.dup(lock)
            self._code = 1
            self._thread = threading.Thread(target=self._run)
            self._thread.start()

        def _run(self) -> None:
            try:
                asyncio.run(self._record())
                self._code = 0
            finally:
                self._counters.close()
                self._socket.close()

        async def _record(self) -> None:
            with BufferedReader(socket.SocketIO(self._socket, "r"), 4096) as source:
                reader = Reader(source)
                handshake = await asyncio.to_thread(read_handshake, reader)
                await Recorder(
                    handshake,
                    reader,
                    self._counters,
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
