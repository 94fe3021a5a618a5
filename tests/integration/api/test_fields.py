"""Answers contain only the requested fields, and only the requested parts of them."""

from typing import Any

import pytest

from inference_store.index.tables import model_key
from tests.integration.stored_inferences import NewInference, at

from .conftest import LINES, Api

_PATH = "/v1/models/model/inferences"
_QUERY = f"{_PATH}/query"
_ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
_CAMERA = {"name": "hallway", "angle": 10}
_ITEMS = [
    ("frame_number", "int", "7"),
    ("camera", "json", '{"name": "hallway", "angle": 10}'),
    ("a.b", "string", "dotted"),
]


async def _read_item(api: Api, **body: Any) -> dict[str, Any]:
    [item] = (await api.ask(_QUERY, body))["items"]
    return dict(item)


@pytest.fixture(autouse=True)
async def _store_inferences(api: Api) -> None:
    await api.store(NewInference("one", at(1), _ITEMS, [("person", 0.5), ("dog", 0.25)]))


async def test_returns_requested_fields_and_metadata_by_key(api: Api) -> None:
    asked = ["inference_id", "top_label"]
    expected: dict[str, Any] = {"inference_id": "one", "top_label": "person"}
    assert await _read_item(api, fields=asked) == expected
    labels = [{"label": "person", "score": 0.5}, {"label": "dog", "score": 0.25}]
    both = await _read_item(api, fields=["predictions.label", "predictions.score"])
    assert both == {"predictions": labels}
    assert set(await _read_item(api, fields=["ok"], include=["metadata"])) == {"ok", "metadata"}
    assert await _read_item(api, fields=["urls.data"]) == {"urls": {"data": None}}
    for chosen, keys in (
        (["metadata.frame_number"], ["frame_number"]),
        (["metadata.camera.angle"], ["camera"]),
        (["metadata.camera"], ["camera"]),
        (["metadata.a.b"], ["a.b"]),
        (["metadata.cam"], []),
        (["metadata.cam", "metadata"], ["frame_number", "camera", "a.b"]),
    ):
        item = await _read_item(api, fields=chosen, unknown_keys="empty")
        assert [entry["key"] for entry in item["metadata"]] == keys, chosen
    metadata = {"frame_number": 7, "camera": _CAMERA, "a.b": "dotted"}
    as_object: dict[str, Any] = {"include": ["metadata"], "metadata_as": "object"}
    assert (await _read_item(api, **as_object))["metadata"] == metadata
    of_camera = await _read_item(api, fields=["metadata.camera.angle"], metadata_as="object")
    assert of_camera == {"metadata": {"camera": _CAMERA}}
    assert (await api.read(_PATH, **as_object))["items"][0]["metadata"] == metadata
    assert (await api.read(f"{_PATH}/one", **as_object))["metadata"] == metadata


async def test_refuses_unknown_fields_and_keys(api: Api) -> None:
    body = {"fields": ["ok", "metadata.frame_numer", "metadata.camera.angel", "metadata.camera"]}
    for headers in ({"Accept": "application/json"}, LINES, {"Accept": "text/csv"}, _ARROW):
        problem = await api.ask(_QUERY, body, status=422, headers=headers)
        assert problem["type"].endswith("#unknown-metadata-key"), headers
        assert problem["detail"] == f"fields[1]: {problem['errors'][0]['message']}."
        assert [fault["path"] for fault in problem["errors"]] == ["fields[1]", "fields[2]"]
        assert problem["errors"][0]["message"].startswith(
            "there is no metadata key 'frame_numer'; the nearest is frame_number"
        )
        assert problem["errors"][1]["known"][0] == "camera.angle"
    empty = {"fields": ["metadata.frame_numer", "metadata.camera"], "unknown_keys": "empty"}
    [warning] = (await api.ask(_QUERY, empty))["warnings"]
    assert "'frame_numer'" in warning
    assert "frame_number" in warning
    for name, near in (
        ("inference_ids", "inference_id"),
        ("predictions.labl", "predictions.label"),
        ("uid.x", "uid"),
        ("metadata.", "metadata"),
    ):
        [fault] = (await api.ask(_QUERY, {"fields": ["uid", name]}, status=422))["errors"]
        assert fault["path"] == "fields[1]", name
        assert near in fault["message"], name
        assert near in fault["known"], name
        is_hinted = "written metadata.KEY" in fault["message"]
        assert is_hinted == (name in {"inference_ids", "metadata."}), name


async def test_knows_keys_however_they_are_named_in_bodies_and_links(api: Api) -> None:
    long = "k" * 280  # the index has its beginning
    items = [("dataset_split", "string", "train"), (long, "int", "1"), ("tags", "json", "[1]")]
    await api.store(NewInference("two", at(2), items))
    for name in ("dataset_split", "dataset_snapshot_split", long, "tags", "tags[]"):
        page = await api.ask(_QUERY, {"fields": [f"metadata.{name}"]})
        assert page["warnings"] == [], name
    await api.ask(_QUERY, {"fields": ["metadata", "metadata.nothing"]})
    first = await api.read(_PATH, fields=["inference_id", "ok"], limit=1)
    assert first["items"] == [{"inference_id": "two", "ok": None}]
    rest = await api.ask(_QUERY, {"cursor": first["next"], "fields": ["inference_id"]})
    assert rest["items"] == [{"inference_id": "one"}]


async def test_a_key_that_is_erased_amid_pages_ends_no_question(api: Api) -> None:
    await api.store(NewInference("two", at(2), [("other", "int", "1")]))
    body = {"fields": ["metadata.other"], "limit": 1}
    cursor = (await api.ask(_QUERY, body))["next"]
    await api.execute(model_key.delete())
    await api.ask(_QUERY, body, status=422)
    await api.ask(_QUERY, {**body, "cursor": cursor})
