"""A client of an api in the process of the tests, with the database and the bucket behind it."""

from collections.abc import Callable
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.leader import Leader
from inference_store.retention.run import run_turn
from tests.integration.retention.stored import NoPace
from tests.integration.stored_inferences import NewInference, store
from tests.policy_owners import name_owner
from tests.settings import TOKEN, make_settings
from tests.transactions import Database

MakeApp = Callable[..., FastAPI]
LINES = {"Accept": "application/x-ndjson"}
OWNER = {"Authorization": f"Bearer {TOKEN}"}


class Api(httpx.AsyncClient, Database):
    """A client of an app in this process, and the database and the bucket behind it."""

    def __init__(self, app: FastAPI) -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        super().__init__(transport=transport, base_url="http://127.0.0.1")
        self.app = app
        self.engine: AsyncEngine = app.state.engine
        self.blobs: Blobs = app.state.blobs
        self.bucket = str(app.state.settings.s3_bucket)
        # settings of the retention service that the api does not have
        self.retention: dict[str, Any] = {}

    async def request(self, *args: Any, **more: Any) -> httpx.Response:
        """Return an answer; every 409 and 412 names what has to be different."""
        answer = await super().request(*args, **more)
        assert answer.status_code not in (409, 412) or answer.json()["errors"], answer.text
        return answer

    async def call(
        self, method: str, path: str, body: Any = None, *, status: int | None = None, **more: Any
    ) -> Any:
        """Return the JSON of an answer that has the status, or any of success; a policy names its
        owner by its path, unless the body does."""
        answer = await self.request(method, path, json=name_owner(path, body), **more)
        is_expected = answer.is_success if status is None else answer.status_code == status
        assert is_expected, (method, path, body, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def read(self, path: str, *, status: int = 200, **params: Any) -> Any:
        return await self.call("GET", path, status=status, params=params or None)

    async def ask(self, path: str, body: Any, *, status: int = 200, **more: Any) -> Any:
        return await self.call("POST", path, body, status=status, **more)

    async def find_ids(self, path: str = "/v1/models/model/inferences/query", **body: Any) -> Any:
        return [item["inference_id"] for item in (await self.ask(path, body))["items"]]

    async def store(self, *inferences: NewInference) -> int:
        """Write inferences of one model as the ingester does; return the integer of the model."""
        return await store(self.engine, *inferences)

    def put_blob(self, name: str, content: bytes, content_type: str = "application/json") -> str:
        """Put an object into the bucket; return its place, as an inference refers to it."""
        self.blobs.put(StorageKey(self.bucket, name), content, content_type=content_type)
        return f"{self.bucket}/{name}"

    async def run_retention(self, *, is_due: bool = False, **more: Any) -> None:
        """Run one turn of the retention service; if it is due, with what its schedule begins."""
        settings = self.app.state.settings
        changes = self.retention | more
        await run_turn(make_worker(self.engine, self.blobs, settings, is_due=is_due, **changes))


def make_client(app: FastAPI) -> Api:
    return Api(app)


def make_worker(
    engine: AsyncEngine, blobs: Blobs, settings: ApiSettings, *, is_due: bool = False, **more: Any
) -> Leader:
    """Return a leader with the api's settings and `more`; if it is due, so is its schedule."""
    names = RetentionSettings.model_fields.keys()
    values = {name: value for name, value in settings if name in names} | more
    leader = Leader(make_settings(RetentionSettings, **values), engine, blobs, NoPace())
    if is_due:
        leader.due.set()
    return leader
