"""An event may name one object as the response and as a part of the request: it is an input."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.stored import Made, store
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
    a_key: Keys,
    data: str | None,
    response: str,
    metadata: str | None,
    is_input: bool,
) -> None:
    for name in "abc":
        blobs.put(StorageKey(bucket, name), b"[]", content_type="application/json")

    def named(name: str | None) -> str | None:
        return None if name is None else f"{bucket}/{name}"

    keys = named(data), named(response), named(metadata)
    await store(engine, Made(model_id=OPEN, keys=keys))
    reader = await a_key.make({"rights": ["read"]})
    answer = await a_key.ask(reader, "GET", _PATH)
    assert answer.status_code == (403 if is_input else 200), answer.text
    if is_input:
        assert "`read_inputs`" in answer.json()["detail"]
    inputs = await a_key.make({"rights": ["read", "read_inputs"]})
    answer = await a_key.ask(inputs, "GET", _PATH)
    assert (answer.status_code, answer.content) == (200, b"[]")
    # and it is noted, as every read of an input is
    noted = (await a_key.ask(TOKEN, "GET", "/v1/audit")).json()["items"]
    assert [each["action"] for each in noted] == (["data_read"] if is_input else [])
