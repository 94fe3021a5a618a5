"""A response that is also an object of the request counts as an input."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference, store
from tests.settings import TOKEN

from .conftest import OPEN, Keys

_PATH = f"/v1/models/{OPEN}/inferences/one/response"


@pytest.mark.parametrize(
    ("data", "response", "metadata", "is_input"),
    [
        ("a", "b", "c", False),
        ("a", "a", "c", True),
        ("a", "c", "c", True),
        (None, "b", None, False),
        (None, "c", "c", True),
    ],
)
async def test_a_response_that_is_an_input_needs_the_right_to_inputs(
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    keys: Keys,
    data: str | None,
    response: str,
    metadata: str | None,
    is_input: bool,
) -> None:
    for name in "abc":
        blobs.put(StorageKey(bucket, name), b"[]", content_type="application/json")

    def reference_to(name: str | None) -> str | None:
        return None if name is None else f"{bucket}/{name}"

    references = reference_to(data), reference_to(response), reference_to(metadata)
    await store(engine, NewInference(model_id=OPEN, keys=references))
    reader = await keys.make({"rights": ["read"]})
    answer = await keys.ask(reader, "GET", _PATH)
    assert answer.status_code == (403 if is_input else 200), answer.text
    if is_input:
        assert "`read_inputs`" in answer.json()["detail"]
    inputs = await keys.make({"rights": ["read", "read_inputs"]})
    answer = await keys.ask(inputs, "GET", _PATH)
    assert (answer.status_code, answer.content) == (200, b"[]")
    # the audit records it, like every read of an input
    entries = (await keys.ask(TOKEN, "GET", "/v1/audit")).json()["items"]
    assert [entry["action"] for entry in entries] == (["data_read"] if is_input else [])
