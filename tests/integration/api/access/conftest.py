"""An api with access control, two models, and keys that a test creates."""

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
from tests.integration.api.conftest import MakeApp, make_client
from tests.integration.stored_inferences import NewInference, store
from tests.settings import TOKEN

SECRET, OPEN = "secret-model", "open-model"
"""The model that a narrow key may not see, and the one that it may."""


class Keys:
    """Creates keys and sends requests with them."""

    def __init__(self, engine: AsyncEngine, client: httpx.AsyncClient) -> None:
        self._engine = engine
        self._client = client

    async def make(self, *grants: dict[str, Any], **more: Any) -> str:
        """Create a key with these grants, and return its text."""
        parsed = [Grant.model_validate(grant) for grant in grants]
        async with self._engine.begin() as connection:
            _, secret = await api_keys.create(connection, "a test's", parsed, by="test", **more)
        return secret.text

    async def ask(
        self,
        key: str | None,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request with a key, or without one if it is None, and return the answer."""
        headers = dict(headers or {})
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return await self._client.request(method, path, json=body, headers=headers)


@pytest.fixture
async def guarded(make_app: MakeApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key, of an api that has access control."""
    async with make_client(make_app(auth="on", api_token=TOKEN)) as client:
        yield client


@pytest.fixture
def keys(engine: AsyncEngine, guarded: httpx.AsyncClient) -> Keys:
    return Keys(engine, guarded)


@pytest.fixture
async def two_models(engine: AsyncEngine, blobs: Blobs, bucket: str) -> dict[str, int]:
    """Two models in two projects, each with an inference `one` that has all three blobs.

    The value maps the id of a model to its number.
    """
    numbers = {}
    for model_id in (SECRET, OPEN):
        data, response, metadata = (
            f"{bucket}/{model_id}-{blob}" for blob in ("data", "response", "metadata")
        )
        references = data, response, metadata
        for reference in references:
            key = StorageKey(*reference.split("/", 1))
            blobs.put(key, b'{"extended_metadata": []}', content_type="application/json")
        items = [(f"{model_id}-key", "string", f"{model_id}-value")]
        inference = NewInference("one", metadata=items, keys=references, model_id=model_id)
        numbers[model_id] = await store(engine, inference)
        async with engine.begin() as connection:
            details = Details(project_id=f"{model_id}-project")
            await registrations.put(connection, model_id, details)
    return numbers
