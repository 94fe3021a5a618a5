"""A server alone, without a proxy: it answers as the model server of `make bench-proxy` does.

`python -m benchmarks.proxy_servers.bare SERVER PORT`.
"""

import asyncio
import sys

import uvloop

from benchmarks.proxy.upstream import Answers
from inference_store.platform.serving import Connections, Limits

from .servers import SERVERS


async def serve(name: str, port: int) -> None:
    """Serve until the process is killed."""
    server = SERVERS[name](
        Answers(),
        host="127.0.0.1",
        port=port,
        grace_seconds=1,
        connections=Connections("proxy", 1000, 1000),
        limits=Limits(),
    )
    await server.serve()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1], int(sys.argv[2])))
