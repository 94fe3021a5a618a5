"""Edits of metadata change the answer, the index and the blob, and end no match of a hold."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from inference_store.index.database import create_engine
from inference_store.index.tables import audit, blob_reference, metadata_key
from inference_store.inference.events import StorageKey
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api, MakeApp, make_client
from .people import place_hold, release_hold

_ONE = "/v1/models/model/inferences/one"
_ITEMS = [
    {"key": "k", "type": "int", "value": "5"},
    {"key": "keep", "type": "json", "value": '{"a": 1.50, "b": ["x"]}'},
]


def _make_inference(name: str = "one", seconds: float = 0, key: str | None = None) -> NewInference:
    items = [(item["key"], item["type"], item["value"]) for item in _ITEMS]
    return NewInference(name, at(seconds), items, keys=(None, None, key))


async def _find(api: Api, key: str, operator: str, value: Any) -> list[str]:
    condition = {"key": key, "operator": operator, "value": value}
    return list(await api.find_ids(metadata_filter=[condition], unknown_keys="empty"))


async def _edit(api: Api, *items: Any, **more: Any) -> httpx.Response:
    metadata = [{"key": key, "type": kind, "value": value} for key, kind, value in items]
    headers = more.pop("headers", {})
    return await api.post(f"{_ONE}/metadata", json={"metadata": metadata, **more}, headers=headers)


def _read_blob(api: Api, name: str) -> Any:
    return json.loads(api.blobs.get(StorageKey(api.bucket, name), limit=10_000))


async def test_changes_and_adds_items(api: Api) -> None:
    before = {"event": {"x": 1.50}, "metadata": {"extended_metadata": _ITEMS}}
    key = api.put_blob("m", json.dumps(before).encode())
    await api.store(_make_inference(key=key), _make_inference("two", 1))
    answer = await _edit(api, ("k", "string", "five"), ("reviewed", "bool", True))
    assert answer.status_code == 200, answer.text
    values = {item["key"]: item["value"] for item in answer.json()["metadata"]}
    assert values == {"k": "five", "reviewed": "true", "keep": _ITEMS[1]["value"]}
    assert (answer.json()["revision"], answer.headers["ETag"]) == (2, '"2"')
    assert answer.json()["metadata_storage_key"] == f"s3://{key}"
    assert answer.json()["warnings"] == []
    assert await _find(api, "k", "eq", 5) == ["two"]
    assert await _find(api, "k", "eq", "five") == ["one"]
    assert await _find(api, "reviewed", "eq", True) == ["one"]
    assert await _find(api, "keep.a", "eq", 1.5) == ["two", "one"]
    assert await _find(api, "keep.b[]", "eq", "x") == ["two", "one"]
    after = _read_blob(api, "m")
    assert after["event"] == before["event"]
    items = [item for item in after["metadata"]["extended_metadata"] if item["key"] == "keep"]
    assert items == [_ITEMS[1]]
    assert await api.fetch(select(audit.c.detail)) == [{"keys": ["k", "reviewed"], "revision": 2}]


async def test_creates_missing_blob(api: Api) -> None:
    target = _make_inference()
    await api.store(target)
    answer = await _edit(api, ("k", "int", "6"))
    key = f"s3://{api.bucket}/metadata/model/{target.uid}"
    assert answer.json()["metadata_storage_key"] == key
    items = (await api.read(f"{_ONE}/metadata"))["extended_metadata"]
    assert (len(items), items[-1]) == (2, {"key": "k", "type": "int", "value": "6"})


async def test_copies_shared_blob_first(api: Api) -> None:
    shared = api.put_blob("shared", json.dumps(_ITEMS).encode())
    inferences = [_make_inference(key=shared), _make_inference("two", 1, shared)]
    await api.store(*inferences)
    answer = await _edit(api, ("k", "int", "6"))
    own = f"s3://{api.bucket}/metadata/model/{inferences[0].uid}"
    assert answer.json()["metadata_storage_key"] == own
    assert _read_blob(api, "shared") == _ITEMS
    references = await api.fetch(select(blob_reference.c.storage_key, blob_reference.c.uid))
    expected = {(own, inferences[0].uid), (f"s3://{shared}", inferences[1].uid)}
    assert {tuple(reference) for reference in references} == expected


async def test_copies_blob_that_is_also_the_response(api: Api) -> None:
    """The metadata blob is also the response, so it must not change."""
    both = api.put_blob("both", json.dumps(_ITEMS).encode())
    await api.store(NewInference("one", keys=(None, both, both)))
    answer = await _edit(api, ("k", "int", "6"))
    assert answer.json()["response_storage_key"] == f"s3://{both}"
    assert answer.json()["metadata_storage_key"] != f"s3://{both}"
    assert _read_blob(api, "both") == _ITEMS


async def test_literal_keys_and_paths(api: Api) -> None:
    await api.store(_make_inference())
    assert (await _edit(api, ("keep.a", "string", "literal"))).status_code == 200
    assert await _find(api, "keep.a", "eq", "literal") == ["one"]
    assert (await _edit(api, ("keep", "string", "plain"))).status_code == 200
    assert await _find(api, "keep.a", "eq", "literal") == ["one"]
    assert await _find(api, "keep.b[]", "eq", "x") == []
    answer = await _edit(api, ("keep", "json", None), ("ok", "bool", "true"))
    assert ["`metadata.ok`" in warning for warning in answer.json()["warnings"]] == [True]
    assert await _find(api, "keep", "exists", None) == ["one"]


async def test_refusals(api: Api) -> None:
    await api.store(_make_inference(), _make_inference("other", 1))
    assert (await _edit(api, ("k", "int", "x"))).status_code == 422
    assert (await _edit(api, ("k", "number?", "1"))).status_code == 422
    assert (await _edit(api, ("k", "json", "{"))).status_code == 422
    assert (await _edit(api, ("k", "int", 1), ("k", "int", 2))).status_code == 422
    late = await _edit(api, ("unseen", "int", "6"), headers={"If-Match": '"9"'})
    assert late.status_code == 412
    # the model gets no new name either
    unseen = select(metadata_key.c.key).where(metadata_key.c.name == "unseen")
    assert await api.fetch(unseen) == []
    soon = await _edit(api, ("k", "int", "6"), headers={"If-Match": '"1"'})
    assert soon.status_code == 200


async def test_ambiguous_id_requires_the_uid(api: Api) -> None:
    inferences = [_make_inference("one", n) for n in range(2)]
    await api.store(*inferences)
    refused = await _edit(api, ("k", "int", "6"))
    assert (refused.status_code, "uid:" in refused.json()["detail"]) == (409, True)
    path = f"/v1/models/model/inferences/uid:{inferences[0].uid}/metadata"
    body = {"metadata": [{"key": "k", "type": "int", "value": "6"}]}
    assert (await api.ask(path, body))["uid"] == str(inferences[0].uid)


async def test_edit_uses_one_connection_at_a_time(make_app: MakeApp, database: str) -> None:
    """With more, as many edits as the pool has connections would wait for each other forever."""
    app, small = make_app(), create_engine(database, pool_size=1)
    app.state.engine = small
    try:
        async with make_client(app) as api:
            await api.store(_make_inference())
            answers = await asyncio.gather(*(_edit(api, (f"k{n}", "int", "6")) for n in range(4)))
    finally:
        await small.dispose()
    assert [answer.status_code for answer in answers] == [200] * 4
    assert sorted(answer.json()["revision"] for answer in answers) == [2, 3, 4, 5]


async def test_path_into_a_new_value_does_not_replace_a_dotted_key(api: Api) -> None:
    """The key `a.b` takes precedence over `a` = {"b": …}, as it does for events."""
    await api.store(NewInference("one", at(0), [("a.b", "int", "1"), ("a", "int", "9")]))
    answer = await _edit(api, ("a", "json", {"b": 2, "c": 3}))
    assert answer.status_code == 200, answer.text
    assert await _find(api, "a.b", "eq", 1) == ["one"]
    assert await _find(api, "a.b", "eq", 2) == []
    assert await _find(api, "a.c", "eq", 3) == ["one"]
    answer = await _edit(api, ("a.b", "int", "5"))
    assert answer.status_code == 200, answer.text
    assert await _find(api, "a.b", "eq", 5) == ["one"]
    assert await _find(api, "a.b", "eq", 1) == []


_CAMERA = b'[{"key": "camera", "type": "string", "value": "hallway"}]'


@pytest.fixture
async def camera(api: Api) -> None:
    """Store an inference and its metadata blob, for holds that an edit may touch."""
    items = [("camera", "string", "hallway")]
    await api.store(
        NewInference("one", at(0), items, keys=(None, None, api.put_blob("m", _CAMERA)))
    )


@pytest.mark.parametrize(
    ("filter", "types", "edit"),
    [
        ("camera = 'hallway'", {}, ("camera", "string", "garden")),
        # NULL protects the inference, and a value that makes it FALSE would end that
        ("lens = 'wide'", {"lens": "string"}, ("lens", "string", "narrow")),
        ("revision = 1", {}, ("anything", "string", "x")),
    ],
)
@pytest.mark.usefixtures("camera")
async def test_an_edit_that_would_end_a_match(
    api: Api, filter: str, types: dict[str, str], edit: tuple[str, str, str]
) -> None:
    id = await place_hold(api, filter, name="incident", types=types)
    refused = await _edit(api, edit)
    assert (refused.status_code, refused.json()["type"]) == (409, "/docs/errors#held")
    assert id in refused.json()["detail"]
    assert "incident" in refused.json()["detail"]
    items = (await api.read(_ONE, include="metadata"))["metadata"]
    assert [(item["key"], item["value"]) for item in items] == [("camera", "hallway")]
    assert api.blobs.get(StorageKey(api.bucket, "m"), limit=1000) == _CAMERA
    await release_hold(api, id)
    assert (await _edit(api, edit)).status_code == 200


@pytest.mark.usefixtures("camera")
async def test_accepts_edit_that_ends_no_match(api: Api) -> None:
    await place_hold(api, "camera = 'hallway'")
    await place_hold(api, "camera = 'garden'")
    answer = await _edit(api, ("reviewed", "string", "yes"))
    assert (answer.status_code, answer.json()["revision"]) == (200, 2)
    # The second hold would begin to match, but the first one would end.
    assert (await _edit(api, ("camera", "string", "garden"))).status_code == 409


@pytest.mark.usefixtures("camera")
async def test_held_inference_is_not_erased(api: Api) -> None:
    await place_hold(api, "camera = 'hallway'")
    await api.call("DELETE", _ONE, status=202)
    await api.read(_ONE)
    assert (await api.get(f"{_ONE}/metadata")).content == _CAMERA
