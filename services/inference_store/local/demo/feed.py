"""Feeds missing inferences, and waits until the store has indexed them."""

import asyncio
import base64
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import count, cycle
from typing import Any

import aiohttp
import cv2
import grpc
import numpy as np
import orjson

from inference_store.grpc_messages import message
from inference_store.local.demo.sources import (
    PHOTOGRAPHS,
    Digit,
    Image,
    Photograph,
    held_out_digits,
)
from inference_store.local.folder import LocalStackError
from inference_store.local.stack import Stack

from .models import DEMO_MODELS, DIGITS, FACES, FRAME, FRAMES, PEOPLE, Rest

WIDTH, HEIGHT = 400, 300  # of every frame, pixels
FRAMES_A_SHOT = 6
_NIGHT_BELOW = 80.0  # mean grey level of 255
_PLACES: Mapping[str, tuple[float, float]] = {  # latitude, longitude in degrees
    "hallway-camera-feed": (-32.1, -43.2),
    "yard-camera-feed": (-32.1012, -43.2031),
    "table-camera-feed": (-32.0991, -43.1984),
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture of the moving camera."""

    number: int
    photograph: str
    data_source: str
    image: Image
    latitude: float
    longitude: float
    angle: float
    """Degrees to the right of the photograph's middle."""
    tilt: float
    """Degrees below the photograph's middle."""

    @property
    def night(self) -> bool:
        """True if the picture is dark."""
        return float(self.image.mean()) < _NIGHT_BELOW


def take_frame(number: int) -> Frame:
    """Return frame `number` (0, 1, 2, …), which is always the same. Raises LocalStackError."""
    photograph = PHOTOGRAPHS[number // FRAMES_A_SHOT % len(PHOTOGRAPHS)]
    # Pan, tilt and zoom oscillate without a common period: no two frames are equal.
    right, down = math.sin(number * 0.61), math.sin(number * 0.37)
    zoom = 0.7 + 0.25 * math.sin(number * 0.23)
    latitude, longitude = _PLACES[photograph.data_source]
    return Frame(
        number=number,
        photograph=photograph.name,
        data_source=photograph.data_source,
        image=_crop(_read(photograph), right, down, zoom),
        latitude=round(latitude + number * 1e-6, 6),
        longitude=longitude,
        angle=round(30 * right, 1),
        tilt=round(12 * down, 1),
    )


_read = cache(Photograph.read)


def _crop(image: Image, right: float, down: float, zoom: float) -> Image:
    """Return the part at (right, down), each −1 to 1; `zoom`: its share of the largest."""
    height, width = image.shape[:2]
    largest = min(width, height * WIDTH / HEIGHT)
    across, tall = int(largest * zoom), int(largest * zoom * HEIGHT / WIDTH)
    start = int((width - across) * (1 + right) / 2)
    top = int((height - tall) * (1 + down) / 2)
    part = image[top : top + tall, start : start + across]
    frame = cv2.resize(part, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    return np.asarray(frame, dtype=np.uint8)


_JPEG_QUALITY = 85


@dataclass(frozen=True, slots=True)
class Request:
    """One picture for one model."""

    model_id: str
    request_id: str
    """The same id at every start, so that no picture is fed twice."""
    picture: bytes = field(repr=False)
    """A JPEG or a PNG."""
    metadata: str
    """The list of `{key, type, value}`, as JSON."""


def frame_id(number: int) -> str:
    """Return the id of a frame's inference by either detector."""
    return f"{FRAME}{number:05d}"


def digit_id(sample: int) -> str:
    """Return the id of a digit's inference."""
    return f"{DIGITS.prefix}{sample:04d}"


def frame_requests(model_id: str, numbers: Iterable[int]) -> Iterator[Request]:
    """Yield the requests of these frames, one at a time. Raises LocalStackError."""
    for number in numbers:
        frame = take_frame(number)
        picture = _encode_image(".jpg", frame.image)
        yield Request(model_id, frame_id(number), picture, _encode_metadata(_list_metadata(frame)))


def digit_requests(model_id: str, digits: Iterable[Digit]) -> Iterator[Request]:
    """Yield the requests of these pictures, one at a time."""
    for digit in digits:
        items = [("true_label", "string", digit.true_label), ("sample", "int", str(digit.sample))]
        picture = _encode_image(".png", digit.image)
        yield Request(model_id, digit_id(digit.sample), picture, _encode_metadata(items))


def _list_metadata(frame: Frame) -> list[tuple[str, str, str]]:
    """Return (key, type, value) of each item: the value is a string, whatever its type."""
    position = {"angle": str(frame.angle), "tilt": str(frame.tilt)}
    return [
        ("frame_number", "int", str(frame.number)),
        ("data_source", "string", frame.data_source),
        ("photograph", "string", frame.photograph),
        ("latitude", "float", str(frame.latitude)),
        ("longitude", "float", str(frame.longitude)),
        ("captured_at", "timestamp", datetime.now(UTC).isoformat()),
        ("camera_position", "json", orjson.dumps(position).decode()),
        ("night", "bool", "true" if frame.night else "false"),
    ]


def _encode_metadata(items: Sequence[tuple[str, str, str]]) -> str:
    entries = [{"key": key, "type": kind, "value": value} for key, kind, value in items]
    return orjson.dumps(entries).decode()


def _encode_image(suffix: str, image: Image) -> bytes:
    quality = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if suffix == ".jpg" else []
    _, content = cv2.imencode(suffix, image, quality)
    return content.tobytes()


_INDEXED_SECONDS = 300.0
_POLL_SECONDS = 0.2


def feed_missing(stack: Stack, rest: Rest, show: Callable[[str], None]) -> int:
    """Send a request for each missing inference to the models, through the proxy; return how many.

    Returns when all are indexed. Raises LocalStackError.
    """
    # others, such as a user's own pictures, do not count
    there = {
        model.model_id: {
            id for id in rest.inference_ids(model.model_id) if id.startswith(model.prefix)
        }
        for model in DEMO_MODELS
    }
    total = sum(model.inferences - len(there[model.model_id]) for model in DEMO_MODELS)
    if total > 0:
        numbers = count(1)
        asyncio.run(
            _send_all(
                _streams(there),
                stack,
                lambda: show(f"{next(numbers)} of {total} pictures answered"),
            )
        )
        _wait_indexed(stack, rest, show)
    return total


def _streams(there: Mapping[str, Collection[str]]) -> list[Iterator[Request]]:
    """Return the missing requests of each model.

    An id that was fed is not fed again: with another time it would be another inference.
    """
    streams: list[Iterator[Request]] = []
    for model_id in (FACES.model_id, PEOPLE.model_id):
        missing = [n for n in range(FRAMES) if frame_id(n) not in there[model_id]]
        streams.append(frame_requests(model_id, missing))
    digits = there[DIGITS.model_id]
    samples = [digit for digit in held_out_digits() if digit_id(digit.sample) not in digits]
    return [*streams, digit_requests(DIGITS.model_id, samples)]


def _wait_indexed(stack: Stack, rest: Rest, show: Callable[[str], None]) -> None:
    total = sum(model.inferences for model in DEMO_MODELS)
    deadline = time.monotonic() + _INDEXED_SECONDS
    while (indexed := sum(model.count(rest) for model in DEMO_MODELS)) < total:
        stack.check()
        if time.monotonic() > deadline:
            raise LocalStackError(
                f"After {_INDEXED_SECONDS:.0f} s only {indexed} of {total} inferences are "
                f"indexed; see {stack.services['ingester'].log}"
            )
        show(f"indexed {indexed} of {total}")
        time.sleep(_POLL_SECONDS)


_TIMEOUT_SECONDS = 60.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"


async def _send_all(
    streams: Sequence[Iterator[Request]], stack: Stack, on_answer: Callable[[], None]
) -> None:
    """Send every request of every stream, over REST and gRPC in turn; the streams run beside each
    other. Raises LocalStackError."""

    async def send(stream: Iterator[Request], client: Client) -> None:
        over = cycle((client.send_rest, client.send_grpc))
        # Taking a picture takes CPU: not in the loop that others wait for.
        while (request := await asyncio.to_thread(next, stream, None)) is not None:
            await next(over)(request)
            on_answer()

    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with (
        aiohttp.ClientSession(stack.proxy, timeout=timeout) as session,
        grpc.aio.insecure_channel(stack.proxy_grpc) as channel,
    ):
        client = Client(session, channel)
        await asyncio.gather(*(send(stream, client) for stream in streams))


class Client:
    """One connection of each kind."""

    def __init__(self, session: aiohttp.ClientSession, channel: grpc.aio.Channel) -> None:
        self._session = session
        self._infer: Any = channel.unary_unary(
            _INFER,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=message("inference.ModelInferResponse").FromString,
        )

    async def send_rest(self, request: Request) -> None:
        """Raises LocalStackError with what came in place of an answer."""
        path = f"/v2/models/{request.model_id}/infer"
        try:
            async with self._session.post(path, json=rest_body(request)) as answer:
                words = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LocalStackError(f"POST {path} was not answered: {error!r}") from error
        if answer.status != 200:
            raise LocalStackError(f"POST {path} was answered {answer.status}: {words}")

    async def send_grpc(self, request: Request) -> None:
        """Raises LocalStackError with what came in place of an answer."""
        try:
            await self._infer(grpc_message(request), timeout=_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            raise LocalStackError(f"ModelInfer of {request.model_id} failed: {reason}") from error


def rest_body(request: Request) -> dict[str, Any]:
    """Return a request in JSON: the picture is base64, and the input has the metadata."""
    image = {
        "name": "image",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": {"metadata": request.metadata},
        "data": [base64.b64encode(request.picture).decode()],
    }
    return {"id": request.request_id, "inputs": [image]}


def grpc_message(request: Request) -> Any:
    """Return a request as a `ModelInferRequest`, with the picture as unchanged bytes."""
    image = {
        "name": "image",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": {"metadata": {"string_param": request.metadata}},
        "contents": {"bytes_contents": [request.picture]},
    }
    return message("inference.ModelInferRequest")(
        model_name=request.model_id, id=request.request_id, inputs=[image]
    )
