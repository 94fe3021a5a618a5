"""The process: load the models, serve both transports until asked to end."""

import asyncio
import signal
import sys

from .grpc import serve_grpc
from .rest import serve_rest
from .serving import Serving

_STOP_SECONDS = 5.0


async def main(rest_port: int, grpc_port: int) -> None:
    """Serve until SIGTERM or SIGINT; the calls that run then are answered."""
    ended = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, ended.set)
    serving = Serving()
    server = await serve_grpc(serving, grpc_port)
    # Last: it answers "ready" for both.
    runner = await serve_rest(serving, rest_port)
    await ended.wait()
    await server.stop(_STOP_SECONDS)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
