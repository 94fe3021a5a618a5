"""An OMI container, written for the tests from Modzy's specification; its port: PSC_MODEL_PORT.

It tells whether a text is friendly by counting words: `input.txt` in, `results.json` out. What the
specification leaves to a model, a caller can ask for: a text of nothing fails as one item; when all
items fail, or are more than `batch_size`, the run is a 422; `fail the run` makes it a 500.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import grpc
import modzy_model_pb2 as omi
import modzy_model_pb2_grpc as served

BATCH_SIZE = 4
_INPUT, _OUTPUT = "input.txt", "results.json"
_FRIENDLY = {"good", "great", "kind", "love", "thanks"}
_UNFRIENDLY = {"bad", "awful", "hate", "broken", "late"}


class Container(served.ModzyModelServicer):
    """The model and the container around it; `ended` is set by a shutdown."""

    def __init__(self) -> None:
        self.ended = Event()
        self._initialised = 0

    def Status(self, *_: Any) -> Any:
        self._initialised += 1
        return omi.StatusResponse(
            status_code=200,
            status="OK",
            message=f"initialised {self._initialised} times",
            model_info=omi.ModelInfo(
                model_name="Friendly Words",
                model_version="1.2.0",
                model_author="the tests",
                model_type="textClassification",
            ),
            description=omi.ModelDescription(summary="Tells whether a text is friendly."),
            inputs=[
                omi.ModelInput(filename=_INPUT, accepted_media_types=["text/plain"], max_size="1M")
            ],
            outputs=[
                omi.ModelOutput(filename=_OUTPUT, media_type="application/json", max_size="1M")
            ],
            resources=omi.ModelResources(required_ram="64M", num_cpus=1),
            timeout=omi.ModelTimeout(status="20s", run="5s"),
            features=omi.ModelFeatures(
                batch_size=BATCH_SIZE,
                results_format="textClassification",
                drift_format="textClassification",
                explanation_format="textClassification",
            ),
        )

    def Run(self, request: Any, _: Any) -> Any:
        if len(request.inputs) > BATCH_SIZE:
            return _refused(f"{len(request.inputs)} items; at most {BATCH_SIZE}")
        if any(one.input.get(_INPUT) == b"fail the run" for one in request.inputs):
            return omi.RunResponse(status_code=500, status="Error", message="it was asked to fail")
        outputs = [_item(one, request.detect_drift, request.explain) for one in request.inputs]
        failed = sum(not one.success for one in outputs)
        if outputs and failed == len(outputs):
            return _refused("no item could be read", outputs)
        message = "Success with errors." if failed else "Success."
        return omi.RunResponse(status_code=200, status="OK", message=message, outputs=outputs)

    def Shutdown(self, *_: Any) -> Any:
        self.ended.set()
        return omi.ShutdownResponse(status_code=202, status="Accepted", message="shutting down")


def _refused(message: str, outputs: Any = ()) -> Any:
    said = {"status_code": 422, "status": "Unprocessable Entity", "message": message}
    return omi.RunResponse(outputs=outputs, **said)


def _item(item: Any, detect_drift: bool, explain: bool) -> Any:
    try:
        text = item.input[_INPUT].decode() if _INPUT in item.input else ""
    except UnicodeDecodeError as exc:
        return _failed(f"{_INPUT} is not UTF-8: {exc.reason}")
    if not text.strip():
        return _failed(f"{_INPUT} is missing or empty")
    result = json.dumps(_result(text.lower().split(), detect_drift, explain))
    return omi.OutputItem(output={_OUTPUT: result.encode()}, success=True)


def _failed(why: str) -> Any:
    return omi.OutputItem(output={"error": why.encode()}, success=False)


def _result(words: list[str], detect_drift: bool, explain: bool) -> dict[str, Any]:
    friendly = sum(word in _FRIENDLY for word in words) + 1
    unfriendly = sum(word in _UNFRIENDLY for word in words) + 1
    share = round(friendly / (friendly + unfriendly), 4)
    predictions = [
        {"class": "friendly", "score": share},
        {"class": "unfriendly", "score": round(1 - share, 4)},
    ]
    predictions.sort(key=lambda one: -float(str(one["score"])))
    said: dict[str, Any] = {
        "modelType": "textClassification",
        "result": {"classPredictions": predictions},
    }
    if explain:
        said["explanation"] = {"wordImportances": {"friendly": _importances(words)}}
    if detect_drift:
        known = sum(word in _FRIENDLY | _UNFRIENDLY for word in words)
        said["drift"] = {"known": round(known / len(words), 4)}
    return said


def _importances(words: list[str]) -> list[dict[str, Any]]:
    weights = [(word in _FRIENDLY) - (word in _UNFRIENDLY) for word in words]
    return [
        {"word": word, "score": weight, "index": index}
        for index, (word, weight) in enumerate(zip(words, weights, strict=True))
    ]


def main() -> int:
    container = Container()
    server = grpc.server(ThreadPoolExecutor(4))
    served.add_ModzyModelServicer_to_server(container, server)
    server.add_insecure_port(f"127.0.0.1:{os.environ['PSC_MODEL_PORT']}")
    server.start()
    container.ended.wait()
    server.stop(grace=5).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
