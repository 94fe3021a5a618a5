"""Registrations, retention policies, metadata keys, over HTTP."""

from urllib.parse import quote

from sqlalchemy import select

from inference_store.index.tables import registration
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


async def test_refuses_to_remove_model_with_inferences(api: Api) -> None:
    await api.store(NewInference())
    refused = await api.call("DELETE", "/v1/models/model", status=409)
    assert refused["type"] == "/docs/errors#conflict"


async def test_lists_are_paged(api: Api) -> None:
    for name in "cab":
        await api.call("PUT", f"/v1/models/{name}", {})
    ids, following = [], ""
    while following is not None:
        page = await api.read(f"/v1/models?limit=2{following}")
        ids += [item["model_id"] for item in page["items"]]
        following = page["next"] and f"&cursor={page['next']}"
    assert ids == ["a", "b", "c"]
    await api.read("/v1/models", status=422, cursor="x")


async def test_metadata_keys(api: Api) -> None:
    await api.store(NewInference("1", at(1), [("k", "int", "5"), ("s", "string", "x")]))
    await api.store(NewInference("2", at(2), [("k", "string", "five")]))
    answer = await api.read("/v1/models/model/metadata-keys")
    k, s = answer["items"]
    assert (k["name"], k["count"], k["conflict"]) == ("k", 2, True)
    examples = {kind["type"]: kind["examples"] for kind in k["types"]}
    assert examples == {"int": ["5"], "string": ["five"]}
    assert (s["name"], s["compared_as"], s["conflict"]) == ("s", ["string"], False)
    assert answer["capped"] is False


async def test_retention_policy(api: Api) -> None:
    await api.call("PUT", "/v1/models/m", {})
    path = "/v1/models/m/retention-policy"
    await api.read(path, status=404)
    rule = {"keep_input": "P30D", "keep_inference": "P1Y"}
    created = await api.call("PUT", path, {"rules": [rule]}, status=200)
    assert created["rules"] == [{"name": None, "filter": None, **rule, "keep_response": "P1Y"}]
    del created["would_delete"]
    assert await api.read(path) == created
    await api.call("PUT", path, {"rules": [rule | {"keep_input": "P2Y"}]}, status=422)
    await api.call("PUT", path, {"rules": [rule]}, status=412, headers={"If-Match": '"7"'})
    answer = await api.post(f"{path}/run")
    run = answer.json()
    assert (answer.status_code, run["state"], run["model_id"]) == (202, "pending", "m")
    assert run.pop("warnings") == []  # of the request alone
    assert await api.read(answer.headers["Location"]) == run
    assert (await api.read("/v1/retention/runs"))["items"] == [run]
    await api.call("DELETE", path, status=204)
    await api.call("DELETE", path, status=404)


async def test_reregistered_model_keeps_its_number(api: Api) -> None:
    query = select(registration.c.model).where(registration.c.model_id == "again")
    await api.call("PUT", "/v1/models/again", {"name": "one"})
    first = await api.fetch(query)
    await api.call("DELETE", "/v1/models/again", status=204)
    assert await api.fetch(query) == []
    await api.call("PUT", "/v1/models/other", {})
    await api.call("PUT", "/v1/models/again", {"name": "two"})
    assert await api.fetch(query) == first != []
