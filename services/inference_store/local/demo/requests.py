"""The requests of the demo: a picture, an id, and metadata of the picture."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import cv2
import orjson

from .camera import Frame, take_frame
from .digits import Digit
from .models import DIGITS, FRAME
from .photographs import Image

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
