"""A TCP proxy that cuts connections after a number of bytes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_LOOPBACK = "127.0.0.1"
_PIECE = 4096


async def _nothing() -> None:
    """Do nothing at a cut."""


@dataclass(slots=True)
class CuttingProxy:
    """Passes bytes between a client and the server at `target`.

    `budgets`: how many bytes of answers each connection passes; None: all. The odd cuts close the
    connection, the even ones reset it.
    """

    target: str
    budgets: Iterator[int | None]
    at_cut: Callable[[], Awaitable[None]] = _nothing
    port: int = 0
    cuts: int = 0
    passed: int = 0
    """Bytes of answers."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The address that clients use."""
        return f"http://{_LOOPBACK}:{self.port}"

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            with suppress(OSError):
                await self._connect(reader, writer)
        finally:
            await _close(writer)
            self.tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.target)
        answers, requests = await asyncio.open_connection(parts.hostname, parts.port)
        passing = asyncio.create_task(_pass_all(reader, requests))
        try:
            await self._pass_answers(answers, writer)
        finally:
            passing.cancel()
            await _close(requests)

    async def _pass_answers(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        budget = next(self.budgets)
        while piece := await answers.read(_PIECE):
            if budget is not None and len(piece) >= budget:
                await self._cut(piece[:budget], writer)
                return
            budget = None if budget is None else budget - len(piece)
            self.passed += len(piece)
            writer.write(piece)
            await writer.drain()

    async def _cut(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        self.cuts += 1
        writer.write(piece)
        await writer.drain()
        await self.at_cut()
        if self.cuts % 2 == 0:
            writer.transport.abort()


async def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


async def _pass_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


@asynccontextmanager
async def cutting_proxy(target: str, budgets: Iterator[int | None]) -> AsyncIterator[CuttingProxy]:
    """A proxy for as long as the context lasts."""
    proxy = CuttingProxy(target, budgets)
    server = await asyncio.start_server(proxy.connect, _LOOPBACK, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in [*proxy.tasks]:
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)
