"""What a producer captures of one inference: the datum, the metadata, the response, the times."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import cv2
import orjson

from .camera import Frame, take_frame
from .detectors import Detector
from .digits import DigitClassifier
from .photographs import Image

_JPEG_QUALITY = 85


@dataclass(frozen=True, slots=True)
class Blob:
    """One object to store; the file's name says its content type."""

    file: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Capture:
    """One inference as a producer holds it before anything is written."""

    model_id: str
    inference_id: str
    data: Blob
    metadata: Blob
    response: Blob
    received_ns: int
    """Unix time in nanoseconds: the request came."""
    forwarded_ns: int
    """The model was asked."""
    responded_ns: int
    """The model had answered."""


def frame_id(number: int) -> str:
    """The inference id of a frame; the same at every start, so that none is fed twice."""
    return f"frame-{number:05d}"


def digit_id(sample: int) -> str:
    return f"digit-{sample:04d}"


def capture_frames(model_id: str, detector: Detector, numbers: Iterable[int]) -> Iterator[Capture]:
    """Run `detector` over these frames, one at a time."""
    for number in numbers:
        received = time.time_ns()
        frame = take_frame(number)
        data = Blob("data.jpg", _encoded(".jpg", frame.image))
        forwarded = time.time_ns()
        found = detector.detect(frame.image)
        yield Capture(
            model_id=model_id,
            inference_id=frame_id(number),
            data=data,
            metadata=_metadata_blob(_frame_metadata(frame)),
            response=_response_blob(model_id, frame_id(number), found),
            received_ns=received,
            forwarded_ns=forwarded,
            responded_ns=time.time_ns(),
        )


def capture_digits(
    model_id: str, classifier: DigitClassifier, samples: frozenset[int]
) -> Iterator[Capture]:
    """Classify these held-out images, one at a time."""
    for digit in classifier.held_out:
        if digit.sample not in samples:
            continue
        received = time.time_ns()
        data = Blob("data.png", _encoded(".png", digit.image))
        forwarded = time.time_ns()
        classes = classifier.classify(digit)
        told = [("true_label", "string", digit.true_label), ("sample", "int", str(digit.sample))]
        yield Capture(
            model_id=model_id,
            inference_id=digit_id(digit.sample),
            data=data,
            metadata=_metadata_blob(told),
            response=_response_blob(model_id, digit_id(digit.sample), classes),
            received_ns=received,
            forwarded_ns=forwarded,
            responded_ns=time.time_ns(),
        )


def _frame_metadata(frame: Frame) -> list[tuple[str, str, str]]:
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


def _metadata_blob(entries: Sequence[tuple[str, str, str]]) -> Blob:
    told = [{"key": key, "type": kind, "value": value} for key, kind, value in entries]
    return Blob("metadata.json", orjson.dumps(told))


def _response_blob(model_id: str, request_id: str, found: Sequence[Mapping[str, Any]]) -> Blob:
    """An answer of the Open Inference Protocol, version 2."""
    output = {"name": "predictions", "datatype": "BYTES", "shape": [len(found)], "data": found}
    answer = {"model_name": model_id, "id": request_id, "outputs": [output]}
    return Blob("response.json", orjson.dumps(answer))


def _encoded(suffix: str, image: Image) -> bytes:
    quality = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if suffix == ".jpg" else []
    _, content = cv2.imencode(suffix, image, quality)
    return content.tobytes()
