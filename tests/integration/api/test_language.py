"""The supported parts of the standard, and the names that a model's filters may use."""

from typing import Any

import jsonschema_rs

from inference_store.query.cql2 import CONFORMANCE
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api

_PATH = "/v1/models/model/queryables"


async def _read_queryables(api: Api) -> dict[str, Any]:
    answer = await api.get(_PATH)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/schema+json"
    jsonschema_rs.meta.validate(answer.json())
    return dict(answer.json())


async def test_conformance_lists_supported_classes(api: Api) -> None:
    answer = await api.read("/v1/conformance")
    kept_uris = {item["uri"] for item in answer["classes"] if item["kept"]}
    assert set(answer["conformsTo"]) == kept_uris
    assert {item["name"] for item in answer["classes"]} == set(CONFORMANCE)
    assert "http://www.opengis.net/spec/cql2/1.0/conf/basic-cql2" in kept_uris


async def test_queryables_of_a_model(api: Api) -> None:
    await api.read("/v1/models/nobody/queryables", status=404)
    await api.store(NewInference())
    assert set((await _read_queryables(api))["properties"]) == set(PROPERTIES)
    items = [
        ("frame_number", "int", "7"),
        ("camera-id", "string", "c1"),
        ("tags", "json", '["a", 1]'),
        ("camera", "json", '{"angle": 10.5}'),
        ("day", "bool", "True"),
        ("height", "int", "3"),
    ]
    other = NewInference("two", at(2), [("day", "string", "Monday")])
    await api.store(NewInference("one", at(1), items), other)
    schema = await _read_queryables(api)
    properties = schema["properties"]
    assert schema["$id"] == f"http://127.0.0.1{_PATH}"
    assert set(PROPERTIES) - set(properties) == {"height"}
    assert properties["inference.height"]["type"] == "integer"
    assert properties["metadata.height"]["examples"] == [3]
    assert properties["received_at"]["format"] == "date-time"
    assert properties["inference_ids"]["type"] == "array"
    assert properties["frame_number"]["type"] == "number"
    assert properties["frame_number"]["examples"] == [7]
    assert properties["camera.angle"]["examples"] == [10.5]
    assert properties["camera-id"]["x-cql2-text"] == '"camera-id"'
    assert properties["frame_number"]["x-cql2-text"] == "frame_number"
    assert properties["tags[]"]["items"]["anyOf"] == [{"type": "number"}, {"type": "string"}]
    day = properties["day"]
    assert day["anyOf"] == [{"type": "boolean"}, {"type": "string"}]
    assert sorted(map(str, day["examples"])) == ["Monday", "True"]
    seen = {types_seen["type"]: types_seen["count"] for types_seen in day["x-types-seen"]}
    assert seen == {"bool": 1, "string": 1}
    assert set(schema["$defs"]["prediction"]["properties"]) == set(PREDICTION_COLUMNS)
