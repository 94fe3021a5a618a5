"""A chariot-v2 engine, written for the tests from the published protocol: chariot_v2.py PORT.

POST /infer with {"input": base64, "parameters"}, with JSON Lines of them, or with the image itself
and its parameters in a header; GET /ready. It finds faces; the parameter `threshold` leaves out
those with a lower score.
"""

import base64
import binascii
import json
import sys
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from faces import FaceDetector, NoImage

_PARAMETERS = "chariot-inference-parameters"
_LARGEST_BODY = 64 * 2**20


class Refused(Exception):
    """The request is not of the protocol, or no image; the text says why."""


class Engine:
    """One detector, asked by one request at a time."""

    def __init__(self) -> None:
        self._detector = FaceDetector()

    async def ready(self, _: web.Request) -> web.Response:
        return web.json_response({"ready": True})

    async def infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        content_type = request.headers.get("Content-Type", "application/json").partition(";")[0]
        try:
            if content_type == "application/jsonl":
                return self._batch(body)
            if content_type == "application/json":
                return web.json_response(self._answer(*_document(body)))
            return web.json_response(self._answer(body, _parameters(request)))
        except (Refused, NoImage) as exc:
            return web.json_response({"error": str(exc)}, status=400)

    def _batch(self, body: bytes) -> web.Response:
        lines = [line for line in body.splitlines() if line.strip()]
        answered = [json.dumps(self._answer(*_document(line))) + "\n" for line in lines]
        return web.Response(text="".join(answered), content_type="application/jsonl")

    def _answer(self, image: bytes, parameters: Mapping[str, Any]) -> dict[str, Any]:
        threshold = float(parameters.get("threshold", 0))
        return {
            "output": [one for one in self._detector.detect(image) if one["score"] >= threshold]
        }


def _document(text: bytes) -> tuple[bytes, Mapping[str, Any]]:
    try:
        document = json.loads(text)
        return base64.b64decode(document["input"], validate=True), document.get("parameters") or {}
    except (ValueError, KeyError, TypeError, binascii.Error) as exc:
        raise Refused(f'not {{"input": base64, "parameters"}}: {exc}') from exc


def _parameters(request: web.Request) -> Mapping[str, Any]:
    said = request.headers.get(_PARAMETERS, "{}")
    try:
        found: Mapping[str, Any] = json.loads(said)
    except ValueError as exc:
        raise Refused(f"the header {_PARAMETERS} is not JSON: {exc}") from exc
    return found


def main() -> None:
    engine = Engine()
    application = web.Application(client_max_size=_LARGEST_BODY)
    application.add_routes([web.get("/ready", engine.ready), web.post("/infer", engine.infer)])
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
