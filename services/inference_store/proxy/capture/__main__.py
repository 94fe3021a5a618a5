"""The capture process: `python -m inference_store.proxy.capture SOCKET PAGE LOCK`, descriptors that
the serving process hands down; LOCK is -1 where there is no spool.

It ends when the socket does, and by no signal but SIGKILL: at the end of the proxy it has the last
word.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from io import BufferedReader

import uvloop

from inference_store.platform import logs

from .frames import Reader
from .hello import Hello, hello_from
from .page import Page
from .recorder import Recorder

BUFFER = 256 * 1024


def main(connection: int, page: int, lock: int) -> None:
    """Record until the socket ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=connection) as received:
        reader = Reader(BufferedReader(socket.SocketIO(received, "r"), BUFFER))
        try:
            hello = hello_from(reader)
        except EOFError:
            return
        logs.configure(hello.settings, service="proxy")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_record(hello, reader, Page(page), None if lock < 0 else lock))
        # All is said: no thread that still waits for a server is waited for.
        sys.stderr.flush()
        os._exit(0)


async def _record(hello: Hello, reader: Reader, page: Page, lock: int | None) -> None:
    recorder = Recorder(hello, reader, page, lock)
    gc.collect()
    gc.freeze()
    await recorder.run()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
