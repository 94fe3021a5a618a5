"""Tags: set, removed, found, counted, exported, held and erased over HTTP."""

import json
from typing import Any

import pytest

from tests.integration.stored_inferences import NewInference, at

from .api_client import Api
from .people import erase, place_hold

_M = "/v1/models/model"
_TAGS = f"{_M}/inferences/tags"


@pytest.fixture(autouse=True)
async def stored(api: Api) -> None:
    """Store six inferences: the event of the first had a tag, and that of the second numbers."""
    tags = {0: ("tags", "string", "from event"), 1: ("tags", "json", "[1, 2]")}
    await api.store(
        *(
            NewInference(f"i{n}", at(n), [("n", "int", n), *([tags[n]] if n in tags else [])])
            for n in range(6)
        )
    )


async def tag(api: Api, *, status: int = 200, **body: Any) -> Any:
    return await api.ask(_TAGS, body, status=status)


async def read_tags(api: Api, name: str) -> Any:
    page = {"inference_ids": [name], "include": ["metadata"], "metadata_as": "object"}
    [item] = (await api.ask(f"{_M}/inferences/query", page))["items"]
    return item["metadata"].get("tags")


async def test_tags_are_set_found_counted_exported_and_removed(api: Api) -> None:
    nothing: dict[str, Any] = {"missing": [], "refused": []}
    changed = await tag(api, add=["night", " wet "], filter="n >= 3", expected=3)
    assert changed == {"changed": 3, "unchanged": 0, **nothing}
    again = await tag(api, add=["night"], inference_ids=["i3", "i4", "none"])
    assert again == {"changed": 0, "unchanged": 2, "missing": ["none"], "refused": []}
    assert await read_tags(api, "i3") == ["night", "wet"]
    # what the event sent stays, as the first tag
    assert (await tag(api, add=["night"], inference_ids=["i0"]))["changed"] == 1
    assert await read_tags(api, "i0") == ["from event", "night"]
    assert await api.find_ids(filter="tags = 'night' AND n > 3") == ["i5", "i4"]
    assert await api.find_ids(filter="tags = 'from event' OR tags IN ('wet')") == [
        *("i5", "i4", "i3", "i0")
    ]
    groups = await api.ask(
        f"{_M}/inferences/aggregate",
        {"group_by": ["tags"], "measures": [{"function": "count"}], "filter": "tags LIKE '%t'"},
    )
    counts = {group["key"]["tags"]: group["measures"]["count"] for group in groups["groups"]}
    assert counts == {"from event": 1, "night": 4, "wet": 3}
    export = await api.ask(f"{_M}/exports", {"filter": "n = 3", "format": "jsonl"}, status=202)
    await api.run_retention()
    exported = await api.get(f"/v1/exports/{export['id']}/parts/1")
    [item] = [e for e in json.loads(exported.text)["metadata"] if e["key"] == "tags"]
    assert json.loads(item["value"]) == ["night", "wet"]
    removed = await tag(api, remove=["night", "wet"], add=["day"], filter="n >= 4", expected=2)
    assert removed["changed"] == 2
    assert (await tag(api, remove=["day"], inference_ids=["i4"]))["changed"] == 1
    assert await read_tags(api, "i4") is None
    assert await api.find_ids(filter="tags IS NULL") == ["i4", "i2"]
    actions = [entry["action"] for entry in (await api.read("/v1/audit"))["items"]]
    assert actions.count("metadata_changed") == 3 + 1 + 2 + 1


async def test_the_first_tags_of_a_model_are_all_found(api: Api) -> None:
    """They are written at the same time, and none has the key's number before."""
    other = "/v1/models/other/inferences"
    names = [f"o{n}" for n in range(4)]
    await api.store(*(NewInference(name, at(1), model_id="other") for name in names))
    change = {"add": ["first"], "inference_ids": names}
    assert (await api.ask(f"{other}/tags", change))["changed"] == 4
    assert sorted(await api.find_ids(f"{other}/query", filter="tags = 'first'")) == names


async def test_refuses_what_would_lose_something(api: Api) -> None:
    more = {"filter": "n >= 3", "add": ["x"]}
    assert "`expected`" in str(await tag(api, status=422, **more))
    assert "3 inferences match now" in (await tag(api, status=409, expected=2, **more))["detail"]
    assert (await tag(api, status=422, add=["x"], remove=["x"], inference_ids=["i3"]))["errors"]
    [refused] = (await tag(api, add=["x"], inference_ids=["i1", "i2"]))["refused"]
    assert "no array of texts" in refused["detail"]
    assert await read_tags(api, "i1") == [1, 2]
    await place_hold(api, "tags = 'x'")
    [held] = (await tag(api, remove=["x"], add=["y"], inference_ids=["i2"]))["refused"]
    assert "legal hold" in held["detail"]
    assert (await erase(api, {"filter": "tags = 'x'"}))["state"] == "partly_held"


async def test_items_are_removed_and_an_unused_key_is_unknown(api: Api) -> None:
    path = f"{_M}/inferences/i5/metadata"
    note = {"metadata": [{"key": "note", "type": "string", "value": "a bird"}], "remove": ["n"]}
    items = (await api.ask(path, note))["metadata"]
    assert [(item["key"], item["value"]) for item in items] == [("note", "a bird")]
    assert await api.find_ids(filter="note LIKE '%bird' AND n IS NULL") == ["i5"]
    assert (await api.ask(path, {"remove": ["note", "absent"]}))["metadata"] == []
    names = [key["name"] for key in (await api.read(f"{_M}/metadata-keys"))["items"]]
    assert names == ["n", "tags", "tags[]"]
    unknown = await api.ask(f"{_M}/inferences/count", {"filter": "note = 'x'"}, status=422)
    assert unknown["type"] == "/docs/errors#unknown-metadata-key"
    assert (await api.post(path, json={})).status_code == 422
