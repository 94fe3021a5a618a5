"""Registrations, metadata keys, and the names that a model's filters may use, over HTTP."""

from typing import Any
from urllib.parse import quote

import jsonschema_rs
from sqlalchemy import select

from inference_store.index.tables import registration
from inference_store.query.cql2 import CONFORMANCE
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api

ODD_IDS = ["a/b", "a%2Fb", "ü", "query", "uid:x", " ", "a b?c#d", "..a", "%", "a//b", "\U0001f600"]


async def test_accepts_any_model_id(api: Api) -> None:
    for model_id in ODD_IDS:
        path = f"/v1/models/{quote(model_id, safe='')}"
        body = {"name": "x", "task_type": "Object Detection", "class_labels": ["a", "b"]}
        answer = await api.put(path, json=body)
        created = answer.json()
        assert answer.status_code == 201, answer.text
        assert (created["model_id"], created["task_type"]) == (model_id, "object_detection")
        assert await api.read(path) == created, model_id
        first = {"If-Match": answer.headers["ETag"]}
        again = await api.call("PUT", path, {"name": "y"}, status=200, headers=first)
        assert again["revision"] == 2, model_id
        await api.call("PUT", path, {}, status=412, headers=first)
        listed = (await api.read("/v1/models"))["items"]
        assert [item["model_id"] for item in listed] == [model_id]
        await api.call("DELETE", path, status=204)
        await api.read(path, status=404)


async def test_lists_are_paged_and_a_name_keeps_its_number(api: Api) -> None:
    for name in "cab":
        await api.call("PUT", f"/v1/models/{name}", {})
    ids, following = [], ""
    while following is not None:
        page = await api.read(f"/v1/models?limit=2{following}")
        ids += [item["model_id"] for item in page["items"]]
        following = page["next"] and f"&cursor={page['next']}"
    assert ids == ["a", "b", "c"]
    await api.read("/v1/models", status=422, cursor="x")
    for name in (".", ".."):
        refused = await api.call("PUT", "/v1/models/m", {"project_id": name}, status=422)
        assert [error["path"] for error in refused["errors"]] == ["project_id"]
    query = select(registration.c.model).where(registration.c.model_id == "again")
    await api.call("PUT", "/v1/models/again", {"name": "one"})
    first = await api.fetch(query)
    await api.call("DELETE", "/v1/models/again", status=204)
    assert await api.fetch(query) == []
    await api.call("PUT", "/v1/models/other", {})
    await api.call("PUT", "/v1/models/again", {"name": "two"})
    assert await api.fetch(query) == first != []


async def test_metadata_keys_and_inferences_keep_a_model(api: Api) -> None:
    await api.store(NewInference("1", at(1), [("k", "int", "5"), ("s", "string", "x")]))
    await api.store(NewInference("2", at(2), [("k", "string", "five")]))
    answer = await api.read("/v1/models/model/metadata-keys")
    k, s = answer["items"]
    assert (k["name"], k["count"], k["conflict"]) == ("k", 2, True)
    examples = {kind["type"]: kind["examples"] for kind in k["types"]}
    assert examples == {"int": ["5"], "string": ["five"]}
    assert (s["name"], s["compared_as"], s["conflict"]) == ("s", ["string"], False)
    assert answer["capped"] is False
    await _check_texts_that_spell_numbers(api)
    refused = await api.call("DELETE", "/v1/models/model", status=409)
    assert refused["type"] == "/docs/errors#conflict"


async def _check_texts_that_spell_numbers(api: Api) -> None:
    """They count once, and whatever puts them in order says that they are in text order."""
    pose = [("pose", "json", f'{{"angle": "{angle}"}}') for angle in (9, 10)]
    await api.store(*(NewInference(f"p{n}", at(9 + n), [item]) for n, item in enumerate(pose)))
    items = (await api.read("/v1/models/model/metadata-keys"))["items"]
    assert [key["count"] for key in items if key["name"] == "pose.angle"] == [2]
    query, aggregate = (f"/v1/models/model/inferences/{name}" for name in ("query", "aggregate"))
    for sort, ids, hints in (("", ["p1", "p0"], 1), (":number", ["p0", "p1"], 0)):
        body = {"sort": f"pose.angle{sort}", "filter": "pose.angle IS NOT NULL"}
        page = await api.ask(query, body)
        assert [item["inference_id"] for item in page["items"]] == ids
        assert ["`pose.angle:number`" in warning for warning in page["warnings"]] == [True] * hints
    for of, hints in (("pose.angle", 1), ({"name": "pose.angle", "type": "float"}, 0)):
        answer = await api.ask(aggregate, {"measures": [{"function": "max", "of": of}]})
        assert len(answer["warnings"]) == hints, of
    [fault] = (await api.ask(query, {"sort": "-received_at:string"}, status=422))["errors"]
    assert (fault["path"], fault["known"]) == ("sort", ["received_at"])
    assert "leave out `:string`" in fault["message"]


_PATH = "/v1/models/model/queryables"


async def _read_queryables(api: Api) -> dict[str, Any]:
    answer = await api.get(_PATH)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/schema+json"
    jsonschema_rs.meta.validate(answer.json())
    return dict(answer.json())


async def test_conformance_and_queryables(api: Api) -> None:
    answer = await api.read("/v1/conformance")
    kept_uris = {item["uri"] for item in answer["classes"] if item["kept"]}
    assert set(answer["conformsTo"]) == kept_uris
    assert {item["name"] for item in answer["classes"]} == set(CONFORMANCE)
    assert "http://www.opengis.net/spec/cql2/1.0/conf/basic-cql2" in kept_uris
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
