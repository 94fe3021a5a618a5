"""An api with access control, two models, and keys made for a test."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access.rights import Grant
from inference_store.index import api_keys, registrations
from inference_store.index.registrations import Details
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.api.conftest import MakeApp, client_of
from tests.integration.stored import Made, store
from tests.settings import TOKEN

SECRET, OPEN = "secret-model", "open-model"
"""The one model that a narrow key may not see, and the one that it may."""


class Keys:
    """Makes keys, and asks with them."""

    def __init__(self, engine: AsyncEngine, client: httpx.AsyncClient) -> None:
        self._engine = engine
        self._client = client

    async def make(self, *grants: dict[str, Any], **more: Any) -> str:
        """The text of a new key."""
        made = [Grant.model_validate(grant) for grant in grants]
        async with self._engine.begin() as connection:
            _, secret = await api_keys.create(connection, "a test's", made, by="test", **more)
        return secret.text

    async def ask(
        self,
        key: str | None,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """An answer to whoever has the key."""
        headers = dict(headers or {})
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return await self._client.request(method, path, json=body, headers=headers)


@pytest.fixture
async def guarded(make_app: MakeApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an api that has access control, without a key."""
    async with client_of(make_app(auth="on", api_token=TOKEN)) as client:
        yield client


@pytest.fixture
def a_key(engine: AsyncEngine, guarded: httpx.AsyncClient) -> Keys:
    return Keys(engine, guarded)


@pytest.fixture
async def two_models(engine: AsyncEngine, blobs: Blobs, bucket: str) -> dict[str, int]:
    """Two models in two projects, each with an inference `one` that has its three blobs."""
    found = {}
    for model_id in (SECRET, OPEN):
        data, response, metadata = (
            f"{bucket}/{model_id}-{blob}" for blob in ("data", "response", "metadata")
        )
        places = data, response, metadata
        for place in places:
            key = StorageKey(*place.split("/", 1))
            blobs.put(key, b'{"extended_metadata": []}', content_type="application/json")
        items = [(f"{model_id}-key", "string", f"{model_id}-value")]
        made = Made("one", metadata=items, keys=places, model_id=model_id)
        found[model_id] = await store(engine, made)
        async with engine.begin() as connection:
            details = Details(project_id=f"{model_id}-project")
            await registrations.put(connection, model_id, details)
    return found
