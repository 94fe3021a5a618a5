"""What the demo asks the models: a picture, an id, and what the camera knows of the picture."""

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
    """The same at every start, so that none is fed twice."""
    picture: bytes = field(repr=False)
    """A JPEG or a PNG."""
    metadata: str
    """The list of `{key, type, value}`, as JSON."""


def frame_id(number: int) -> str:
    """The id of a frame's inference by either detector."""
    return f"{FRAME}{number:05d}"


def digit_id(sample: int) -> str:
    """The id of a digit's inference."""
    return f"{DIGITS.prefix}{sample:04d}"


def frame_requests(model_id: str, numbers: Iterable[int]) -> Iterator[Request]:
    """Take these frames, one at a time. Raises LocalStackError."""
    for number in numbers:
        frame = take_frame(number)
        picture = _encoded(".jpg", frame.image)
        yield Request(model_id, frame_id(number), picture, _metadata(_known_of_frame(frame)))


def digit_requests(model_id: str, digits: Iterable[Digit]) -> Iterator[Request]:
    """These pictures, one at a time."""
    for digit in digits:
        known = [("true_label", "string", digit.true_label), ("sample", "int", str(digit.sample))]
        picture = _encoded(".png", digit.image)
        yield Request(model_id, digit_id(digit.sample), picture, _metadata(known))


def _known_of_frame(frame: Frame) -> list[tuple[str, str, str]]:
    """(key, type, value): the value as a string, whatever its type."""
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


def _metadata(known: Sequence[tuple[str, str, str]]) -> str:
    entries = [{"key": key, "type": kind, "value": value} for key, kind, value in known]
    return orjson.dumps(entries).decode()


def _encoded(suffix: str, image: Image) -> bytes:
    quality = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if suffix == ".jpg" else []
    _, content = cv2.imencode(suffix, image, quality)
    return content.tobytes()
