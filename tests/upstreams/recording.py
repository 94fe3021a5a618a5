"""What a client of someone else's was answered, in bytes: kept on the way from the server to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from .asking import Answered, Asked, by_aiohttp
from .compare import HOP_BY_HOP

_LARGEST_BODY = 256 * 2**20


class Recording:
    """A server of its own address, which asks another: the client is to be sent to `address`."""

    address: str

    def __init__(self, server: str) -> None:
        self._server = server
        self.answers: list[Answered] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Ask the server the same, keep what it answers, and pass it on."""
        headers = [(name.decode(), value.decode("latin-1")) for name, value in request.raw_headers]
        named = [pair for pair in headers if pair[0].lower() not in {*HOP_BY_HOP, "content-length"}]
        asked = Asked(request.method, request.raw_path, named, await request.read())
        answered = await by_aiohttp(self._server, asked)
        self.answers.append(answered)
        sent = web.Response(status=answered.status, body=answered.body)
        sent.headers.clear()
        for name, value in answered.headers:
            if name.lower() not in HOP_BY_HOP:
                sent.headers.add(name, value)
        return sent


@asynccontextmanager
async def recorded(server: str) -> AsyncIterator[Recording]:
    """Stand before a server at host:port."""
    recording = Recording(server)
    app = web.Application(client_max_size=_LARGEST_BODY)
    app.router.add_route("*", "/{path:.*}", recording.answer)
    runner = web.AppRunner(app, auto_decompress=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        recording.address = f"127.0.0.1:{runner.addresses[0][1]}"
        yield recording
    finally:
        await runner.cleanup()
