"""MLServer's custom runtimes: what its documentation asks of one, and no more."""

import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import Any

from faces import FaceDetector, NoImage
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, Parameters, RequestInput
from mlserver.types import ResponseOutput as Output


class Faces(MLModel):
    """chariot-v2-kserve, object detection: an output an input, named like it.

    The extra parameter `elements` says what `data` holds: `objects`, a detection each, as that
    protocol has it over REST; or `strings`, the same in JSON, which gRPC can carry too. With
    `copies_metadata` the answer has the request's.
    """

    async def load(self) -> bool:
        self._detector = FaceDetector()
        self._extra = self.settings.parameters.extra
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = [self._output(one) for one in payload.inputs]
        answer = InferenceResponse(
            model_name=self.name, model_version=self.version, outputs=outputs
        )
        metadata = getattr(payload.parameters, "metadata", None)
        if metadata is not None and self._extra.get("copies_metadata"):
            answer.parameters = Parameters(metadata=metadata)
        return answer

    def _output(self, asked: RequestInput) -> Output:
        try:
            images = [_image(element) for element in asked.data.root]
            found: list[Any] = [one for image in images for one in self._detector.detect(image)]
        except NoImage as exc:
            raise InferenceError(f"input {asked.name}: {exc}") from exc
        if self._extra["elements"] == "strings":
            found = [json.dumps(one) for one in found]
        action = getattr(asked.parameters, "action", None)
        said = {} if action is None else {"parameters": Parameters(action=action)}
        return Output(name=asked.name, shape=[len(found)], datatype="BYTES", data=found, **said)


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
