"""The capture process: `python -m inference_store.proxy.capture SOCKET PAGE LOCK`, descriptors that
the serving process hands down; LOCK is -1 if there is no spool.

It ends when the socket does, and only SIGKILL stops it earlier: it sends the final report after the
proxy has stopped.
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
from .handshake import Handshake, read_handshake
from .process import set_niceness
from .recorder import Recorder
from .shared_counters import SharedCounters

BUFFER = 256 * 1024
_NICER = 10
"""Than the serving process: beside it on a busy processor this one gets a tenth."""


def main(connection: int, counters: int, lock: int) -> None:
    """Record until the socket ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=connection) as received:
        reader = Reader(BufferedReader(socket.SocketIO(received, "r"), BUFFER))
        try:
            handshake = read_handshake(reader)
        except EOFError:
            return
        logs.configure(handshake.settings, service="proxy")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                _record(handshake, reader, SharedCounters(counters), None if lock < 0 else lock)
            )
        # The final report is sent: do not wait for threads that still wait for a server.
        sys.stderr.flush()
        os._exit(0)


async def _record(
    handshake: Handshake, reader: Reader, counters: SharedCounters, lock: int | None
) -> None:
    recorder = Recorder(handshake, reader, counters, lock)
    gc.collect()
    gc.freeze()
    await recorder.run(_give_way)


def _give_way() -> None:
    """Leave the CPU to the serving process from now on, not while we start: that takes a second of
    CPU."""
    set_niceness(os.getpid(), min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
