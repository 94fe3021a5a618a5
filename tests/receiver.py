"""A receiver of webhooks: a server of its own that records what it is sent, and answers as told."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Message:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def data(self) -> Any:
        return orjson.loads(self.body)["data"]


async def accept(_: web.Request) -> web.StreamResponse:
    """Acknowledge."""
    return web.Response(status=204)


def answer_with(status: int, **headers: str) -> Answer:
    """Return an answer with a status."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers=headers)

    return answer


@dataclass
class Receiver:
    """What was sent here. `answer`: how the next requests are answered."""

    origin: str = ""
    answer: Answer = accept
    messages: list[Message] = field(default_factory=list)
    # set with each message
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self, request: web.Request) -> web.StreamResponse:
        message = Message(request.raw_path, dict(request.headers), await request.read())
        self.messages.append(message)
        self.arrived.set()
        return await self.answer(request)


@asynccontextmanager
async def start_receiver(
    port: int = 0, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """Serve on loopback."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.receive)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    receiver.origin = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
