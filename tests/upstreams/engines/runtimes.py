"""MLServer's custom runtimes: what its documentation asks of one, and no more."""

import base64
import binascii
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, Parameters, RequestInput
from mlserver.types import ResponseOutput as Output

_CASCADE = Path(cv2.__file__).parent / "data" / "haarcascade_frontalface_default.xml"
_MIDDLE = 2.0


class Faces(MLModel):
    """chariot-v2-kserve, object detection: an output an input, named like it.

    The extra parameter `elements` says what `data` holds: `objects`, a detection each, as that
    protocol has it over REST; or `strings`, the same in JSON, which gRPC can carry too. Faces are
    found by the cascade that OpenCV's wheel carries, as the demo finds them.
    """

    async def load(self) -> bool:
        self._cascade = cv2.CascadeClassifier(str(_CASCADE))
        self._elements = self.settings.parameters.extra["elements"]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = [self._output(one) for one in payload.inputs]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)

    def _output(self, asked: RequestInput) -> Output:
        images = [_image(element) for element in asked.data.root]
        found: list[Any] = [one for image in images for one in self._detect(asked.name, image)]
        if self._elements == "strings":
            found = [json.dumps(one) for one in found]
        action = getattr(asked.parameters, "action", None)
        said = {} if action is None else {"parameters": Parameters(action=action)}
        return Output(name=asked.name, shape=[len(found)], datatype="BYTES", data=found, **said)

    def _detect(self, name: str, image: bytes) -> list[dict[str, Any]]:
        """Label, score and box of each face, in pixels, y down."""
        encoded = np.frombuffer(image, dtype=np.uint8)
        grey = cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE) if encoded.size else None
        if grey is None:
            raise InferenceError(f"input {name}: {len(image)} bytes that are no image")
        boxes, _, weights = self._cascade.detectMultiScale3(
            grey, scaleFactor=1.15, minNeighbors=2, outputRejectLevels=True
        )
        found = zip(np.reshape(boxes, (-1, 4)).tolist(), np.ravel(weights).tolist(), strict=True)
        # the cascade works in threads, and finds them in another order each time
        detections = [_detection(box, weight) for box, weight in found]
        return sorted(detections, key=lambda one: (-one["score"], one["xmin"], one["ymin"]))


def _detection(box: list[int], weight: float) -> dict[str, Any]:
    x, y, width, height = box
    score = 1 / (1 + math.exp(_MIDDLE - weight))
    edges = {"xmin": x, "xmax": x + width, "ymin": y, "ymax": y + height}
    return {"label": "face", "score": round(score, 4), **edges}


def _image(element: str | bytes) -> bytes:
    """REST brings base64; gRPC brings that or the bytes themselves."""
    try:
        return base64.b64decode(element, validate=True)
    except (binascii.Error, ValueError):
        return element if isinstance(element, bytes) else element.encode()


class Words(MLModel):
    """The words of the first input's text, one an answer where it is streamed."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        return self._answer(_text(payload).split())

    async def predict_stream(
        self, payloads: AsyncIterator[InferenceRequest]
    ) -> AsyncIterator[InferenceResponse]:
        async for payload in payloads:
            for word in _text(payload).split():
                yield self._answer([word])

    def _answer(self, words: list[str]) -> InferenceResponse:
        output = StringCodec.encode_output("words", words)
        return InferenceResponse(model_name=self.name, outputs=[output])


def _text(payload: InferenceRequest) -> str:
    return " ".join(StringCodec.decode_input(payload.inputs[0]))


class Echo(MLModel):
    """Every input as it came, of any datatype."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        return InferenceResponse(
            model_name=self.name, outputs=[_same(one) for one in payload.inputs]
        )


def _same(asked: RequestInput) -> Output:
    said: Any = asked.data.root
    return Output(name=asked.name, shape=asked.shape, datatype=asked.datatype, data=said)
