"""Content negotiation: the media type of an answer, and what it includes."""

from tests.integration.stored_inferences import NewInference

from .conftest import Api

_PATH = "/v1/models/model/inferences"
_ITEMS = [("frame_number", "int", "9001"), ("data_source", "string", "hallway-camera-feed")]


async def test_types_that_are_offered_and_others(api: Api) -> None:
    picture = api.put_blob("picture", b"\xff\xd8", "image/jpeg")
    await api.store(NewInference("one", keys=(picture, None, None)))
    for path, accept, offered in (
        ("/v1/models", "text/csv", ["application/json"]),
        ("/v1/models", "application/x-ndjson", ["application/json"]),
        ("/v1/certificates/1/leaves", "application/json", ["application/octet-stream"]),
        (_PATH, "text/html, image/*", ["application/json", "application/x-ndjson"]),
        (f"{_PATH}/one/data", "application/json", ["image/jpeg", "application/octet-stream"]),
    ):
        answer = await api.get(path, headers={"Accept": accept})
        assert answer.status_code == 406, path
        assert answer.headers["content-type"] == "application/problem+json", path
        assert answer.json()["type"] == "/docs/errors#not-acceptable", path
        [fault] = answer.json()["errors"]
        assert fault["path"] == "header.accept", path
        assert fault["known"][: len(offered)] == offered, path
    for accept in ("image/*", "image/jpeg", "application/octet-stream", "*/*"):
        answer = await api.get(f"{_PATH}/one/data", headers={"Accept": accept})
        shown = (answer.status_code, answer.headers["content-type"])
        assert shown == (200, "image/jpeg"), accept


async def test_include_accepts_commas(api: Api) -> None:
    await api.store(NewInference("one", metadata=_ITEMS, predictions=[("person", 0.5)]))
    for path in (_PATH, f"{_PATH}/one"):
        body = await api.read(f"{path}?include=metadata,%20predictions")
        answer = body["items"][0] if path == _PATH else body
        assert [item["key"] for item in answer["metadata"]] == ["frame_number", "data_source"]
        assert [prediction["label"] for prediction in answer["predictions"]] == ["person"]
        refused = await api.read(f"{path}?include=metadata,nothing", status=422)
        assert "'metadata', 'predictions', 'urls' or 'ground_truth'" in refused["detail"]
