"""The api on a real port, for what a client in the same process cannot see."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import uvicorn
from fastapi import FastAPI

from tests.polling import until
from tests.servers.ports import free_port


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are the test's


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, over TCP."""
    config = uvicorn.Config(app, port=free_port(), log_level="critical", lifespan="off")
    server = _Server(config)
    task = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started or task.done()

    await until(started, bool)
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{config.port}", timeout=120
        ) as client:
            yield client
    finally:
        server.should_exit = server.force_exit = True
        await task
