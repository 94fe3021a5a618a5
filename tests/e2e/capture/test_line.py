"""From a client's call to an analyst's answer."""

import base64
import hashlib
import json

from tests.polling import until

from .conftest import Line

# The smallest PNG: one pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def _make_input(name: str, content: bytes, **metadata: str) -> dict[str, object]:
    listed = [{"key": key, "type": "int", "value": value} for key, value in metadata.items()]
    return {
        "name": name,
        "shape": [1],
        "datatype": "BYTES",
        "data": [base64.b64encode(content).decode()],
        "parameters": {"metadata": json.dumps(listed), "action": "predict"},
    }


async def test_a_call_becomes_an_answer(line: Line) -> None:
    body = {"id": "frame/7", "inputs": [_make_input("image", PNG, frame_number="9001")]}
    async with line.http.post(f"{line.url}/v2/models/faces/infer", json=body) as answer:
        assert answer.status == 200
        inference_id = answer.headers["inference-store-id"]
        assert (await answer.json())["outputs"][0]["name"] == "image"
    (item,) = await line.indexed("faces", 1)
    assert item["inference_id"] == "frame/7"
    assert (item["ok"], item["http_status"], item["protocol"]) == (True, 200, "v2")
    assert (item["width"], item["height"], item["data_size_bytes"]) == (1, 1, len(PNG))
    assert item["data_hash"] == hashlib.sha256(PNG).hexdigest()
    assert item["model_version"] == "3"
    metadata = {entry["key"]: entry["value"] for entry in item["metadata"]}
    assert metadata["frame_number"] == "9001"
    # an id of the answer's header finds it, too
    result = await line.ask(f"/models/faces/inferences/{inference_id}")
    assert result["uid"] == item["uid"]
    async with line.http.get(f"{line.api}/models/faces/inferences/frame%2F7/data") as data:
        assert await data.read() == PNG


async def test_the_first_query_of_the_readme(line: Line) -> None:
    model = f"{line.api}/models/people"
    async with line.http.put(model, json={"task_type": "Object Detection"}) as registered:
        assert registered.status in {200, 201}, await registered.text()
    for number in range(3):
        body = {"inputs": [_make_input("image", PNG, frame_number=str(9000 + number))]}
        async with line.http.post(f"{line.url}/v2/models/people/infer", json=body) as answer:
            assert answer.status == 200
    await line.indexed("people", 3)
    query = {"filter": "frame_number > 9000 AND prediction(label = 'car' AND score < 0.4)"}
    result = await line.ask("/models/people/inferences/query", query)
    assert len(result["items"]) == 2


async def test_several_images_are_several_inferences(line: Line) -> None:
    inputs = [
        _make_input("one", PNG, frame_number="1"),
        _make_input("two", PNG + b"2", frame_number="2"),
    ]
    async with line.http.post(
        f"{line.url}/v2/models/faces/infer", json={"id": "batch", "inputs": inputs}
    ) as answer:
        assert len((await answer.json())["outputs"]) == 2
    items = await line.indexed("faces", 2)
    assert sorted(item["inference_id"] for item in items) == ["batch-0", "batch-1"]
    assert {(item["batch_index"], item["batch_size"]) for item in items} == {(0, 2), (1, 2)}


async def test_captures_failed_calls(line: Line) -> None:
    body = {"inputs": [_make_input("image", PNG)]}
    async with line.http.post(f"{line.url}/v2/models/broken/infer", json=body) as answer:
        assert (answer.status, await answer.json()) == (500, {"error": "out of memory"})
    (item,) = await line.indexed("broken", 1)
    assert (item["ok"], item["http_status"], item["error"]) == (False, 500, "out of memory")


async def test_the_proxy_ends_with_its_books_closed(line: Line) -> None:
    body = {"inputs": [_make_input("image", PNG)]}
    for _ in range(20):
        async with line.http.post(f"{line.url}/v2/models/faces/infer", json=body) as answer:
            await answer.read()
    line.proxy.stop()
    assert '"lost": 0' in line.proxy.text
    assert len(await line.indexed("faces", 20)) == 20

    async def published() -> int:
        books = await line.ask("/accounting")
        return max((producer.get("published") or 0 for producer in books["producers"]), default=0)

    await until(published, lambda result: result == 20)
