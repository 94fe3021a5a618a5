"""A store of pictures: it streams inferences, and has their data, links and drawings."""

import json
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

import httpx

from inference_store_client.values.inference import Prediction
from tests.both_clients import copy_response, make_item
from tests.console.pictures import make_png

Item = dict[str, Any]
BUCKET = "https://bucket.example"
_COLUMNS = [each.name for each in fields(Prediction)]


def make_prediction(ordinal: int, label: str | None, box: Any = None, **more: Any) -> Item:
    """Make a prediction; `box`: xmin, ymin, xmax, ymax."""
    corners = dict(zip(("xmin", "ymin", "xmax", "ymax"), box or (None,) * 4, strict=True))
    known = {"ordinal": ordinal, "rank": ordinal + 1, "output": 0, "label": label, "score": 0.5}
    return {**dict.fromkeys(_COLUMNS), **known, **corners, **more}


def make_metadata(*entries: tuple[str, str, str]) -> list[Item]:
    """Make metadata of (key, type, value)."""
    keys = ("key", "type", "value")
    more = {"section": "extended", "flags": []}
    return [dict(zip(keys, entry, strict=True)) | more for entry in entries]


def make_inference(number: int, *predictions: Item, **changes: Any) -> Item:
    """Make an inference as the stream shows it, with its data in the bucket."""
    known = {
        "predictions": list(predictions),
        "prediction_count": len(predictions),
        "metadata": [],
        "data_storage_key": f"bucket/{number}",
        "task_type": "Object Detection",
        "urls": {"data": None, "response": None, "metadata": None},
    }
    return make_item(number, **{**known, **changes})


@dataclass(slots=True)
class PictureStore:
    """Answers requests for `items`. `contents` and `drawings` are by the number of the uid."""

    items: list[Item]
    contents: dict[int, bytes | httpx.Response] = field(default_factory=dict)
    drawings: dict[int, Item] = field(default_factory=dict)
    is_cut: bool = False
    """Whether the stream ends without its end."""
    bucket: httpx.Response | Exception | None = None
    """What the bucket answers; None: the content."""
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path
        if request.url.host == "bucket.example":
            return self._answer_as_bucket(int(path.strip("/")))
        if path.endswith("/query"):
            return self._stream(json.loads(request.content))
        number = UUID(path.split("/uid:")[1].split("/")[0]).int & 0xFFFF
        if path.endswith("/drawing"):
            return httpx.Response(200, json=self.drawings[number])
        return self._read(number)

    def _stream(self, body: Item) -> httpx.Response:
        assert set(body["include"]) == {"metadata", "predictions", "urls"}
        begin = int(body.get("cursor", 0))
        lines = [item | {"cursor": str(n + 1)} for n, item in enumerate(self.items)][begin:]
        end: Item = {"count": len(lines), "next": None, "warnings": [], "problem": None}
        whole = [*lines, *([] if self.is_cut else [end])]
        return httpx.Response(200, text="".join(json.dumps(line) + "\n" for line in whole))

    def _answer_as_bucket(self, number: int) -> httpx.Response:
        if isinstance(self.bucket, Exception):
            raise self.bucket
        return self._read(number) if self.bucket is None else copy_response(self.bucket)

    def _read(self, number: int) -> httpx.Response:
        content = self.contents.get(number, make_png(number))
        if isinstance(content, httpx.Response):
            return copy_response(content)
        return httpx.Response(200, content=content, headers={"content-type": "image/png"})
