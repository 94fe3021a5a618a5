"""Which parts of the standard are kept, and what a model's filters may name."""

from typing import Any

import httpx
from jsonschema import Draft202012Validator
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.query.cql2 import CONFORMANCE
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES
from tests.integration.stored import Made, at, store

_PATH = "/v1/models/model/queryables"


async def _read(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get(_PATH)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/schema+json"
    Draft202012Validator.check_schema(answer.json())
    return dict(answer.json())


async def test_conformance_lists_what_is_kept(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/conformance")).json()
    kept = {each["uri"] for each in answer["classes"] if each["kept"]}
    assert set(answer["conformsTo"]) == kept
    assert {each["name"] for each in answer["classes"]} == set(CONFORMANCE)
    assert "http://www.opengis.net/spec/cql2/1.0/conf/basic-cql2" in kept


async def test_properties_keys_and_columns_of_predictions(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    items = [
        ("frame_number", "int", "7"),
        ("camera-id", "string", "c1"),
        ("tags", "json", '["a", 1]'),
        ("camera", "json", '{"angle": 10.5}'),
        ("day", "bool", "True"),
        ("height", "int", "3"),
    ]
    await store(
        engine, Made("one", at(1), items), Made("two", at(2), [("day", "string", "Monday")])
    )
    schema = await _read(client)
    found = schema["properties"]
    assert schema["$id"] == f"http://127.0.0.1{_PATH}"
    assert set(PROPERTIES) - set(found) == {"height"}
    assert found["inference.height"]["type"] == "integer"
    assert found["metadata.height"]["examples"] == [3]
    assert found["received_at"]["format"] == "date-time"
    assert found["inference_ids"]["type"] == "array"
    assert (found["frame_number"]["type"], found["frame_number"]["examples"]) == ("number", [7])
    assert found["camera.angle"]["examples"] == [10.5]
    assert found["camera-id"]["x-cql2-text"] == '"camera-id"'
    assert found["frame_number"]["x-cql2-text"] == "frame_number"
    assert found["tags[]"]["items"]["anyOf"] == [{"type": "number"}, {"type": "string"}]
    assert found["day"]["anyOf"] == [{"type": "boolean"}, {"type": "string"}]
    assert sorted(map(str, found["day"]["examples"])) == ["Monday", "True"]
    assert {each["type"]: each["count"] for each in found["day"]["x-types-seen"]} == {
        "bool": 1,
        "string": 1,
    }
    assert set(schema["$defs"]["prediction"]["properties"]) == set(PREDICTION_COLUMNS)


async def test_of_a_model_without_keys(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, Made())
    assert set((await _read(client))["properties"]) == set(PROPERTIES)
    assert (await client.get("/v1/models/nobody/queryables")).status_code == 404
