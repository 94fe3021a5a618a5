"""A detector of Triton: its tensors are boxes by the registration of docs/how-to/capture.md."""

import json
import re
from pathlib import Path

import httpx
import pytest

from tests.upstreams.clients import Clients, tensor

from .real_line import RealLine

pytestmark = [
    pytest.mark.real_upstreams,
    pytest.mark.real_huggingface,
    pytest.mark.real_triton,
    pytest.mark.real_kserve,
]
CAPTURE = (Path(__file__).parents[3] / "docs" / "how-to" / "capture.md").read_text()
WIDTH, HEIGHT = 6, 4
# Class 1 of three, in two columns of the second row.
GREEN = {(2, 1), (3, 1)}


def read_registration() -> object:
    result = re.search(r"^PUT /v1/models/yolo\n(\{.*?\})\n```", CAPTURE, re.DOTALL | re.MULTILINE)
    assert result is not None
    return json.loads(result[1])


def test_binary_tensors_become_boxes(real_line: RealLine, clients: Clients) -> None:
    registered = httpx.put(f"{real_line.api}/models/blobs", json=read_registration(), timeout=120)
    assert registered.status_code in (200, 201), registered.text
    pixels = [
        255 if (x, y) in GREEN and channel == 1 else 0
        for y in range(HEIGHT)
        for x in range(WIDTH)
        for channel in range(3)
    ]
    proxy, image = real_line.proxies["triton"], tensor("image", "UINT8", [HEIGHT, WIDTH, 3], pixels)
    outputs = ["boxes", "scores", "classes"]
    clients.infer("http", proxy.http, "blobs", [image], id="b-http", outputs=outputs)
    clients.infer("grpc", proxy.grpc, "blobs", [image], id="b-grpc")
    items = real_line.captured("blobs", 2)
    assert [item["inference_id"] for item in items] == ["b-http", "b-grpc"]
    for item in items:
        (box,) = item["predictions"]
        assert (box["label"], box["score"]) == ("bicycle", 1)
        assert [box[side] for side in ("xmin", "ymin", "xmax", "ymax")] == [2, 1, 4, 2]
        assert real_line.blob(item, "data") == bytes(pixels)
