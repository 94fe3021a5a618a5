"""A model server with two models, the second of which disagrees about some pictures."""

import base64
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.http_requests import send
from tests.http_stub import Request, Response

MODEL, CHANGED = "faces", "faces-2"
FLIPPED, MOVED = {3, 7}, {5}


class ChangedDetector:
    """What it answers, and `replays`: the calls that repeat others, by their header."""

    def __init__(self) -> None:
        self.replays: Counter[str] = Counter()

    def answer(self, request: Request) -> Response:
        """Answer V2: a box, by the number at the end of the request's id."""
        if (mark := request.headers.get("inference-store-replay")) is not None:
            self.replays[mark] += 1
        model, body = request.path.split("/")[3], json.loads(request.body)
        number, is_changed = int(body["id"].rpartition("-")[2]), model == CHANGED
        label = "car" if is_changed and number in FLIPPED else "person"
        x = 180 if is_changed and number in MOVED else 40
        found = [{"label": label, "score": 0.9, "xmin": x, "ymin": 30, "xmax": x + 70, "ymax": 200}]
        output = {"name": "found", "shape": [1], "datatype": "BYTES", "data": [found]}
        answer = {"model_name": model, "id": body["id"], "outputs": [output]}
        return Response(200, json.dumps(answer).encode(), "application/json")


def call(url: str, number: int, picture: bytes, metadata: Sequence[dict[str, Any]] = ()) -> None:
    """Send a picture to the first model, as `frame-<number>`."""
    tensor = {
        "name": "image",
        "shape": [1],
        "datatype": "BYTES",
        "data": [base64.b64encode(picture).decode()],
        "parameters": {"metadata": json.dumps(list(metadata))},
    }
    body = {"id": f"frame-{number}", "inputs": [tensor]}
    send(f"{url}/v2/models/{MODEL}/infer", body, method="POST")
