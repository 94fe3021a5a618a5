"""Both clients behind one face, so that one test holds for both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import MISSING, dataclass, field, fields
from inspect import isawaitable
from typing import Any, Final

import httpx
import pytest

from inference_store_client import AsyncStore, Retries, Store
from inference_store_client.values.inference import InferenceFields

Handler = Callable[[httpx.Request], Any]
QUICK: Final = Retries(first_wait_seconds=0.0)
"""Tries again at once."""


@dataclass(frozen=True, slots=True)
class Client:
    """One of the two: how a store is made, and how what it answers is waited for."""

    name: str

    def make_store(self, url: str | None, key: str | None = None, **options: Any) -> Any:
        make = Store if self.name == "sync" else AsyncStore
        return make(url, key, **{"retries": QUICK, **options})

    @asynccontextmanager
    async def open_store(
        self, url: str, key: str | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        store = self.make_store(url, key, **options)
        try:
            yield store
        finally:
            await self.ask(store.close)

    def make_answered(self, handler: Handler, key: str | None = None, **options: Any) -> Any:
        """Make a store whose requests a function answers."""
        transport = httpx.MockTransport(handler)
        http: Any = (httpx.Client if self.name == "sync" else httpx.AsyncClient)(
            transport=transport
        )
        return self.make_store("https://store.example", key, http_client=http, **options)

    async def ask(self, call: Callable[[], Any]) -> Any:
        """Return what a call answers; the loop goes on meanwhile."""
        if self.name == "sync":
            return await asyncio.to_thread(call)
        answer = call()
        return await answer if isawaitable(answer) else answer

    async def list(self, call: Callable[[], Any]) -> list[Any]:
        if self.name == "sync":
            return await asyncio.to_thread(lambda: [*call()])
        return [item async for item in call()]


@pytest.fixture(params=[Client("sync"), Client("async")], ids=lambda client: client.name)
def both(request: pytest.FixtureRequest) -> Client:
    """The client that blocks, and the one of an event loop."""
    chosen: Client = request.param
    return chosen


@dataclass(slots=True)
class Recorded:
    """Answers requests from a list, one after the other, and keeps them."""

    answers: list[httpx.Response | BaseException]
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return copy_response(answer)


def copy_response(response: httpx.Response) -> httpx.Response:
    """Return a response of its own: one belongs to the client that has read it."""
    content, headers = response.content, response.headers
    return httpx.Response(response.status_code, content=content, headers=headers)


def make_item(number: int, **changes: Any) -> dict[str, Any]:
    """Make an inference as the API shows it."""
    known: Mapping[str, Any] = {
        "uid": f"019ac3f2-7c00-8123-9abc-{number:012x}",
        "model_id": "hallway/detector",
        "inference_id": f"frame-{number}",
        "aliases": [],
        "received_at": "2026-11-01T00:00:00.000000Z",
        "flags": [],
        "revision": 1,
        "ok": True,
    }
    return {**dict.fromkeys(_FIELDS), **known, **changes}


def make_page(*items: dict[str, Any], next: str | None = None) -> httpx.Response:
    """Make a page of inferences as the API answers it."""
    body: dict[str, Any] = {"items": items, "next": next, "searched_back_to": None, "warnings": []}
    return httpx.Response(200, json=body)


class CutStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The content of an answer whose connection breaks after it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self._content
        raise httpx.ReadError("cut")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


_FIELDS: Final = [each.name for each in fields(InferenceFields) if each.default is MISSING]


def make_problem(status: int, name: str = "some-problem", **headers: str) -> httpx.Response:
    body = {
        "type": f"/docs/errors#{name}",
        "title": "A title",
        "status": status,
        "detail": "A detail.",
        "errors": [{"path": "filter", "message": "unknown key", "known": ["frame_number"]}],
    }
    return httpx.Response(status, json=body, headers=headers)
