"""An api with access control, two models, and keys that a test creates."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from inference_store.access.rights import Grant
from inference_store.index import api_keys, registrations
from inference_store.index.registrations import Details
from tests.integration.api.api_client import Api
from tests.integration.api.conftest import MakeApp, make_client
from tests.integration.stored_inferences import NewInference
from tests.settings import TOKEN
from tests.transactions import transact

SECRET, OPEN = "secret-model", "open-model"
"""The model that a narrow key may not see, and the one that it may."""


class Keys:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._shared: dict[str, str] = {}

    async def make(self, *grants: dict[str, Any], **more: Any) -> str:
        parsed = [Grant.model_validate(grant) for grant in grants]
        _, secret = await transact(
            self._api.engine, api_keys.create, "a test's", parsed, by="test", **more
        )
        return secret.text

    async def share(self, *grants: dict[str, Any]) -> str:
        """Return the key with these grants that an earlier call made, or a new one."""
        name = repr(grants)
        if name not in self._shared:
            self._shared[name] = await self.make(*grants)
        return self._shared[name]

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
        return await self._api.request(method, path, json=body, headers=headers)

    async def call(
        self, key: str, method: str, path: str, body: Any = None, *, status: int | None = None
    ) -> Any:
        """Return the JSON of an answer that has the status, or any of success."""
        headers = {"Authorization": f"Bearer {key}"}
        return await self._api.call(method, path, body, status=status, headers=headers)


@pytest.fixture
async def guarded(make_app: MakeApp) -> AsyncIterator[Api]:
    """A client without a key, of an api that has access control."""
    async with make_client(make_app(auth="on", api_token=TOKEN)) as client:
        yield client


@pytest.fixture
def keys(guarded: Api) -> Keys:
    return Keys(guarded)


@pytest.fixture
async def two_models(guarded: Api) -> dict[str, int]:
    """Two models in two projects, each with an inference `one` that has all three blobs.

    The value maps the id of a model to its number.
    """
    numbers = {}
    for model_id in (SECRET, OPEN):
        data, response, metadata = (
            guarded.put_blob(f"{model_id}-{blob}", b'{"extended_metadata": []}')
            for blob in ("data", "response", "metadata")
        )
        items = [(f"{model_id}-key", "string", f"{model_id}-value")]
        keys = (data, response, metadata)
        inference = NewInference("one", metadata=items, keys=keys, model_id=model_id)
        numbers[model_id] = await guarded.store(inference)
        details = Details(project_id=f"{model_id}-project")
        await guarded.transact(registrations.put, model_id, details)
    return numbers
