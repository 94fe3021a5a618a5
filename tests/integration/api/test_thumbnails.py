"""Thumbnails of inputs in a real bucket: one audit entry for each answer, none of erased inputs."""

import json
from base64 import b64decode
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, update

from inference_store.api import thumbnails
from inference_store.erasure import audit_chain
from inference_store.index.tables import inference
from inference_store.inference.events.event import Extras
from tests.exchanges import png as make_png
from tests.integration.stored_inferences import NewInference, at
from tests.unit.api.thumbnails.pictures import SVG, make_picture

from .conftest import Api, MakeApp, make_client

_PATH = "/v1/models/model/inferences"
_BATCH = f"{_PATH}/thumbnails"
_PICTURES = {
    "jpeg": make_picture(size=(640, 320)),
    "png": make_picture("PNG", (32, 64)),
    "svg": SVG,
    "cut": make_picture("JPEG", (640, 480))[:-400],
    "bomb": make_png(20_000, 20_000, rows=1),
}


@pytest.fixture(autouse=True)
def patient_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures of a request may take as long as a busy machine needs."""
    monkeypatch.setattr(thumbnails, "PICTURE_SECONDS", 300.0)
    monkeypatch.setattr(thumbnails, "BATCH_SECONDS", 600.0)


@pytest.fixture
async def uids(api: Api) -> dict[str, str]:
    """The uid of each picture's inference, and of one whose object is missing."""
    places = {
        name: api.put_blob(name, picture, "image/jpeg") for name, picture in _PICTURES.items()
    }
    places["missing"] = f"{api.bucket}/missing"
    inferences = [
        NewInference(name, at(n), keys=(place, None, None))
        for n, (name, place) in enumerate(places.items())
    ]
    await api.store(*inferences)
    return {target.inference_id: str(target.uid) for target in inferences}


async def _request_thumbnails(api: Api, *uids: str, **more: Any) -> list[dict[str, Any]]:
    answer = await api.post(_BATCH, json={"uids": uids, **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["cache-control"] == "no-store"
    return [json.loads(line) for line in answer.text.splitlines()]


async def _read_audit(api: Api, **filters: Any) -> list[dict[str, Any]]:
    return list((await api.read("/v1/audit", action="thumbnails_read", **filters))["items"])


async def test_a_batch(api: Api, uids: dict[str, str]) -> None:
    requested = [*uids.values(), str(uuid4())]
    lines = await _request_thumbnails(api, *requested, edge=100)
    assert [line["uid"] for line in lines] == requested
    jpeg, png, *others = lines
    assert b64decode(jpeg["data"])[:2] == b64decode(png["data"])[:2] == b"\xff\xd8"
    assert (jpeg["width"], jpeg["height"], jpeg["content_type"]) == (100, 50, "image/jpeg")
    assert (jpeg["picture_width"], jpeg["picture_height"], jpeg["problem"]) == (640, 320, None)
    assert (png["width"], png["height"]) == (32, 64)
    assert {line["data"] for line in others} == {None}
    problems = [(line["problem"]["status"], line["problem"]["detail"]) for line in others]
    assert problems == [
        (422, "The input is not a JPEG, PNG, WebP, GIF or BMP picture."),
        (422, "The picture is damaged or cut off."),
        (422, "The picture has too many pixels."),
        (404, problems[3][1]),
        (404, "The model has no such inference."),
    ]
    assert "is not in the bucket" in problems[3][1]
    [entry] = await _read_audit(api)
    assert (entry["uid"], entry["model_id"]) == (None, "model")
    assert entry["detail"] == {"inferences": [uids["jpeg"], uids["png"]], "edge": 100}
    assert await _read_audit(api, uid=uids["png"]) == [entry]
    assert await _read_audit(api, uid=uids["svg"]) == []
    body = {"uids": [uids["jpeg"], uids["svg"]]}
    as_one_object = await api.ask(_BATCH, body, headers={"Accept": "application/json"})
    assert as_one_object["items"] == await _request_thumbnails(api, *body["uids"])


async def test_single_thumbnail(api: Api, uids: dict[str, str]) -> None:
    answer = await api.get(f"{_PATH}/jpeg/thumbnail", params={"edge": 64})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.content[:2] == b"\xff\xd8"
    refused = await api.read(f"{_PATH}/svg/thumbnail", status=422)
    assert refused["type"] == "/docs/errors#no-thumbnail"
    await api.read(f"{_PATH}/missing/thumbnail", status=404)
    await api.read(f"{_PATH}/nobody/thumbnail", status=404)
    [entry] = await _read_audit(api)
    assert (entry["uid"], entry["detail"]) == (uids["jpeg"], {"edge": 64})


async def test_uses_the_index_before_fetching(api: Api) -> None:
    for extras, detail in (
        (Extras(data_content_type="audio/wav"), "the media type 'audio/wav'"),
        (Extras(data_size=20 * 1024 * 1024 + 1), "over 20 MiB"),
    ):
        target = NewInference(detail, extras=extras, keys=("nobody/nothing", None, None))
        await api.store(target)
        [line] = await _request_thumbnails(api, str(target.uid))
        assert detail in line["problem"]["detail"]


async def test_a_text_is_shown_by_its_beginning(api: Api) -> None:
    place = api.put_blob("question", "Wie groß? ".encode() * 1000, "text/plain; charset=utf-8")
    asked = NewInference(
        "question", extras=Extras(data_content_type="text/plain"), keys=(place, None, None)
    )
    await api.store(asked)
    [line] = await _request_thumbnails(api, str(asked.uid))
    assert (line["content_type"], line["width"], line["problem"]) == ("text/plain", None, None)
    text = b64decode(line["data"]).decode()
    assert text.startswith("Wie groß? ")
    assert 1990 < len(text.encode()) <= 2000
    assert len(await _read_audit(api, uid=str(asked.uid))) == 1
    await api.read(f"{_PATH}/question/thumbnail", status=422)


async def test_hides_erased_inference_and_empties_the_cache(api: Api, uids: dict[str, str]) -> None:
    lines = await _request_thumbnails(api, uids["jpeg"], uids["png"])
    assert all(line["data"] for line in lines)
    cache = api.app.state.thumbnails.cache
    both = cache.bytes
    await api.call("DELETE", f"{_PATH}/jpeg", status=202)
    [gone] = await _request_thumbnails(api, uids["jpeg"])
    assert (gone["data"], gone["problem"]["status"]) == (None, 404)
    assert 0 < cache.bytes < both
    await api.execute(update(inference).values(data_deleted_at=func.now()))
    [gone] = await _request_thumbnails(api, uids["png"])
    assert (gone["data"], gone["problem"]["status"]) == (None, 410)
    assert len(await _read_audit(api)) == 1


async def test_erasure_removes_uids_from_the_audit(api: Api, uids: dict[str, str]) -> None:
    await _request_thumbnails(api, uids["jpeg"], uids["png"])
    await _request_thumbnails(api, uids["png"])
    redacted = await api.transact(audit_chain.redact_values, uuid4(), uids=[UUID(uids["jpeg"])])
    assert redacted == 1
    left = [entry["detail"].get("inferences") for entry in await _read_audit(api)]
    assert left == [[uids["png"]], None]


async def test_switched_off(make_app: MakeApp) -> None:
    async with make_client(make_app(thumbnail_processes=0)) as api:
        await api.call("PUT", "/v1/models/model", {})
        refused = await api.ask(_BATCH, {"uids": [str(uuid4())]}, status=422)
        assert not (await api.read("/v1/me"))["switched_on"]["thumbnails"]
    assert "switched off" in refused["detail"]


async def test_rejects_invalid_requests_and_caches_others(api: Api, uids: dict[str, str]) -> None:
    many = [str(UUID(int=n)) for n in range(101)]
    oversized = {"uids": [uids["jpeg"]], "edge": 9999}
    bodies: list[dict[str, Any]] = [{}, {"uids": []}, {"uids": ["x"]}, {"uids": many}, oversized]
    for body in bodies:
        await api.ask(_BATCH, body, status=422)
    # The audit records it again.
    first = await _request_thumbnails(api, uids["jpeg"])
    api.put_blob("jpeg", SVG, "image/jpeg")
    assert await _request_thumbnails(api, uids["jpeg"]) == first
    assert len(await _read_audit(api)) == 2
    assert (await _request_thumbnails(api, uids["jpeg"], edge=64))[0]["data"] is None
