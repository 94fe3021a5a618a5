"""A request is in the foreground until its answer begins, and streams wait for it, not for ever."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_store.api.middleware import Foreground, TrackForeground


async def test_a_stream_waits_for_the_last_request_and_no_longer() -> None:
    foreground = Foreground()
    foreground.enter()
    assert await foreground.wait_until_idle(0, since=0), "it does not wait for ever"
    foreground.enter()
    waiting = asyncio.create_task(foreground.wait_until_idle(300, since=0))
    await asyncio.sleep(0)
    foreground.leave()
    await asyncio.sleep(0)
    assert not waiting.done()
    foreground.leave()
    assert await waiting


async def serve(app: ASGIApp, foreground: Foreground) -> list[Message]:
    """Return the messages of an answer."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        messages.append(message)

    await TrackForeground(app, foreground)({"type": "http"}, receive, send)
    return messages


async def is_idle(foreground: Foreground) -> bool:
    return not await foreground.wait_until_idle(0, since=foreground.read_clock())


async def test_a_request_leaves_when_its_answer_begins() -> None:
    foreground = Foreground()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        assert not await is_idle(foreground)
        await send({"type": "http.response.start", "status": 200})
        assert await is_idle(foreground)
        await send({"type": "http.response.body", "body": b""})

    assert len(await serve(app, foreground)) == 2
    assert await is_idle(foreground)
