"""Tags: set, removed, found, counted, exported, held and erased over HTTP."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query import deadline
from tests.integration.stored_inferences import NewInference, at
from tests.stopped_clock import StoppedClock

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
    nothing: dict[str, Any] = {"missing": [], "refused": [], "remaining": []}
    changed = await tag(api, add=["night", "wet"], filter="n >= 3", expected=3)
    assert changed == {"changed": 3, "unchanged": 0, **nothing}
    again = await tag(api, add=["night"], inference_ids=["i3", "i4", "none"])
    assert again == {"changed": 0, "unchanged": 2, **nothing, "missing": ["none"]}
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
    kept = await api.ask(f"{other}/tags", {"remove": ["first"], "inference_ids": names})
    assert kept["unchanged"] == 4
    # no tag, no key
    assert (await api.post(f"{other}/count", json={"filter": "tags = 'x'"})).status_code == 422
    change = {"add": ["first"], "inference_ids": names}
    assert (await api.ask(f"{other}/tags", change))["changed"] == 4
    assert sorted(await api.find_ids(f"{other}/query", filter="tags = 'first'")) == names


async def test_refuses_what_would_lose_something(api: Api) -> None:
    more = {"filter": "n >= 3", "add": ["x"]}
    assert (await tag(api, status=422, **more))["errors"][0]["path"] == "expected"
    assert "3 inferences match now" in (await tag(api, status=409, expected=2, **more))["detail"]
    assert (await tag(api, status=422, add=["x"], remove=["x"], inference_ids=["i3"]))["errors"]
    [fault] = (await tag(api, status=422, add=["x", " wet"], inference_ids=["i3"]))["errors"]
    assert (fault["path"], "write 'wet'" in fault["message"]) == ("add[1]", True)
    [refused] = (await tag(api, add=["x"], inference_ids=["i1", "i2"]))["refused"]
    assert "not an array of strings" in refused["detail"]
    assert await read_tags(api, "i1") == [1, 2]
    await place_hold(api, "tags = 'x'")
    [held] = (await tag(api, remove=["x"], add=["y"], inference_ids=["i2"]))["refused"]
    assert "legal hold" in held["detail"]
    assert (await erase(api, {"filter": "tags = 'x'"}))["state"] == "partly_held"


@pytest.mark.parametrize(
    ("declared", "value", "tag_of"),
    [
        *(("json", '"day"', "day"), ("json", "day", "day"), ("json", "5", "5")),
        *(("int", "5", "5"), ("bool", "true", "true"), ("timestamp", "noon", "noon")),
        *(("", '["day"]', '["day"]'), ("foo", "5", "5"), ("String", '["day"]', '["day"]')),
        *(("string", ["day"], "day"), ("", ["day"], "day")),
    ],
)
async def test_a_tag_that_came_otherwise_is_one_as_well(
    api: Api, declared: str, value: Any, tag_of: str
) -> None:
    """Whatever the item is, filters by tags mean the elements, and an edit reads what they do."""
    await tag(api, add=["night"], inference_ids=["i3"])
    await api.store(NewInference("stray", at(9), [("tags", declared, value)]))
    assert await api.find_ids(filter="tags = 'night'") == ["i3"]
    assert await api.find_ids(filter=f"tags = '{tag_of}'") == ["stray"]
    assert (await tag(api, add=["night"], inference_ids=["stray"]))["refused"] == []
    assert await read_tags(api, "stray") == [tag_of, "night"]
    same = {"key": "tags", "operator": "eq", "value": "night"}
    assert await api.find_ids(metadata_filter=[same]) == ["stray", "i3"]
    counted = await api.ask(f"{_M}/inferences/aggregate", {"group_by": ["tags"]})
    counts = {group["key"]["tags"]: group["measures"]["count"] for group in counted["groups"]}
    assert (counts[tag_of], counts["night"]) == (1, 2)


async def test_a_key_that_is_a_value_and_an_array_is_warned_of(api: Api) -> None:
    both = [NewInference("one", at(7), [("k", "int", "1")])]
    await api.store(*both, NewInference("two", at(8), [("k", "json", "[1]")]))
    answer = await api.ask(f"{_M}/inferences/count", {"filter": "k = 1"})
    assert any("'k[]'" in warning for warning in answer["warnings"])


class _AwayBlobs(Blobs):
    """Writes once, and only when the request's time is over."""

    writes = 0
    clock: StoppedClock

    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None:
        self.writes += 1
        may = self.writes == 1
        self.clock.now += 1_000
        if not may:
            raise ObjectStoreUnavailable("away")
        super().put(key, data, content_type=content_type)


async def test_says_what_became_of_each_when_a_part_is_away_and_time_is_over(
    api: Api, settings: Callable[..., ApiSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _AwayBlobs(settings()) as blobs, monkeypatch.context() as patched:
        api.app.state.blobs, blobs.clock = blobs, StoppedClock()
        patched.setattr(deadline, "time", blobs.clock)
        tagged = await tag(api, add=["x"], filter="n >= 2 OR n = 0", expected=5)
    assert (tagged["changed"], tagged["unchanged"], len(tagged["remaining"])) == (1, 0, 3)
    [refused] = tagged["refused"]
    assert "object store is unavailable" in refused["detail"]
    api.app.state.blobs = api.blobs
    again = [f"uid:{uid}" for uid in [*tagged["remaining"], refused["uid"]]]
    assert (await tag(api, add=["x"], inference_ids=again))["changed"] == 4


async def test_items_are_removed_and_an_unused_key_is_not_listed(api: Api) -> None:
    path = f"{_M}/inferences/i5/metadata"
    note = {"metadata": [{"key": "note", "type": "string", "value": "a bird"}], "remove": ["n"]}
    items = (await api.ask(path, note))["metadata"]
    assert [(item["key"], item["value"]) for item in items] == [("note", "a bird")]
    assert await api.find_ids(filter="note LIKE '%bird' AND n IS NULL") == ["i5"]
    assert (await api.ask(path, {"remove": ["note", "absent"]}))["metadata"] == []
    names = [key["name"] for key in (await api.read(f"{_M}/metadata-keys"))["items"]]
    assert names == ["n", "tags", "tags[]"]
    # retention removes it; until then a filter may name it
    assert await api.find_ids(filter="note IS NOT NULL") == []
    assert (await api.post(path, json={})).status_code == 422
