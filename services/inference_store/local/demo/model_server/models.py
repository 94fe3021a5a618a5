"""The served models, and the steps that both transports share: find a model, and call it."""

import asyncio
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from typing import Any, Final, TypeAlias

from inference_store.local.demo.models import DIGITS, LABELS

NAME = "inference-store-demo"
VERSION = "1"
"""The version of the server and of every model."""
MOST_BYTES = 16 << 20
"""The most bytes of a request."""
DATATYPE = "BYTES"

Finding: TypeAlias = Mapping[str, Any]
Model: TypeAlias = Callable[[bytes], Sequence[Finding]]
"""Finds objects in an encoded picture. Raises NoPicture."""


class NoSuchModel(Exception):
    """The name, or the version, is not served here."""


class NoPicture(Exception):
    """A model cannot read its input."""


class BadRequest(Exception):
    """The request cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class Input:
    """One picture of a request."""

    name: str
    encoded: bytes = field(repr=False)
    """A PNG, or another format that the model reads."""


@dataclass(frozen=True, slots=True)
class Output:
    """The objects found in the input of the same name."""

    name: str
    findings: Sequence[Finding]


class Serving:
    """Loaded models. Each runs in a thread of its own: no two threads may call it at once."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._threads = {name: ThreadPoolExecutor(1, name) for name in models}

    def check(self, model: str, version: str) -> None:
        """Raise NoSuchModel if a model or its version is not served. `version`: empty for any."""
        if model not in self._models:
            raise NoSuchModel(f"no model {model!r}; served are {', '.join(self._models)}")
        if version not in {"", VERSION}:
            raise NoSuchModel(f"model {model!r} has no version {version!r}, only {VERSION!r}")

    async def answer(self, model: str, version: str, inputs: Sequence[Input]) -> Sequence[Output]:
        """Return an output for each input, in order. Raises NoSuchModel, BadRequest."""
        self.check(model, version)
        if not inputs:
            raise BadRequest("there are no inputs")
        loop, thread = asyncio.get_running_loop(), self._threads[model]
        return [
            await loop.run_in_executor(thread, self._call, self._models[model], picture)
            for picture in inputs
        ]

    @staticmethod
    def _call(model: Model, picture: Input) -> Output:
        try:
            return Output(picture.name, model(picture.encoded))
        except NoPicture as error:
            why = f": {error}" if str(error) else ""
            raise BadRequest(
                f"input {picture.name!r} is no picture that can be read{why}"
            ) from error


# A classifier of handwritten digits in plain Python, if the extra `demo` is not installed.
#
# Its weights are those that the demo's classifier learns (tests/unit/local/test_small_model.py);
# digits.json holds a row of weights and an intercept for each digit.

MOST_PIXELS: Final = 256 * 256
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_CHANNELS: Final = {0: 1, 2: 3, 4: 2, 6: 4}
"""By colour type: grey, colours, and each with opacity."""


@dataclass(frozen=True, slots=True)
class GreyPicture:
    """Rows of greys, 0 to 255."""

    width: int
    height: int
    rows: Sequence[Sequence[float]]


def read_png(encoded: bytes) -> GreyPicture:
    """Return the picture in grey. Raises NoPicture."""
    try:
        return _read(encoded)
    except (struct.error, zlib.error, IndexError) as error:
        raise NoPicture(f"a broken PNG ({error})") from error


def _read(encoded: bytes) -> GreyPicture:
    if not encoded.startswith(_SIGNATURE):
        raise NoPicture("it is no PNG")
    chunks = list(_chunks(encoded))
    if not chunks or chunks[0][0] != b"IHDR":
        raise NoPicture("a PNG without a head")
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth != 8 or interlaced or colour not in _CHANNELS:
        raise NoPicture("a PNG whose channels do not have 8 bits, or with a palette or interlaced")
    if not 0 < width * height <= MOST_PIXELS:
        raise NoPicture(f"a PNG of {width} x {height} pixels, and {MOST_PIXELS} are the most")
    channels = _CHANNELS[colour]
    size = height * (1 + width * channels)
    packed = b"".join(data for kind, data in chunks if kind == b"IDAT")
    raw = zlib.decompressobj().decompress(packed, size)
    if len(raw) < size:
        raise NoPicture("a PNG that ends too early")
    lines = _lines(raw, width * channels, channels)
    return GreyPicture(width, height, [_greys(line, channels) for line in lines])


def _greys(line: bytearray, channels: int) -> Sequence[float]:
    colours = 3 if channels > 2 else 1
    return [sum(line[at : at + colours]) / colours for at in range(0, len(line), channels)]


def _chunks(encoded: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(encoded):
        length, kind = struct.unpack_from(">I4s", encoded, at)
        yield kind, encoded[at + 8 : at + 8 + length]
        at += length + 12


def _lines(raw: bytes, length: int, channels: int) -> Iterator[bytearray]:
    """Yield each line without its filter: a line stores the differences to adjacent pixels."""
    above = bytearray(length)
    for start in range(0, len(raw), length + 1):
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + length])
        for at in range(length) if kind else ():
            previous = line[at - channels] if at >= channels else 0
            corner = above[at - channels] if at >= channels else 0
            line[at] = (line[at] + _predict(kind, previous, above[at], corner)) & 255
        yield line
        above = line


def _predict(kind: int, previous: int, above: int, corner: int) -> int:
    if kind == 4:
        near = previous + above - corner
        return min((previous, above, corner), key=lambda neighbour: abs(near - neighbour))
    return (0, previous, above, (previous + above) // 2)[kind]


_SIDE = 8
_BRIGHTEST = 16


def small_models() -> Mapping[str, Model]:
    """Return the classifier, under its name in the demo."""
    return {DIGITS.model_id: SmallClassifier().classify}


class SmallClassifier:
    """Logistic regression on 8 x 8 greys, as scikit-learn's digits are: bright on dark."""

    def __init__(self) -> None:
        learnt = json.loads(files(__package__).joinpath("digits.json").read_text())
        self._weights: Sequence[Sequence[float]] = learnt["weights"]
        self._intercepts: Sequence[float] = learnt["intercepts"]

    def classify(self, encoded: bytes) -> Sequence[Finding]:
        """Return the ten classes with their probabilities, best first. Raises NoPicture."""
        pixels = _shrink(read_png(encoded))
        powers = [
            intercept + sum(map(float.__mul__, weights, pixels))
            for weights, intercept in zip(self._weights, self._intercepts, strict=True)
        ]
        shares = [math.exp(power - max(powers)) for power in powers]
        scores = {label: share / sum(shares) for label, share in zip(LABELS, shares, strict=True)}
        best_first = sorted(scores, key=scores.__getitem__, reverse=True)
        return [{"label": label, "score": round(scores[label], 6)} for label in best_first]


def _shrink(picture: GreyPicture) -> list[float]:
    """Return the mean greys of 8 x 8 cells, in the steps of the data set, 0 to 1."""
    across, down = _cells(picture.width), _cells(picture.height)
    return [
        round(_mean(picture, columns, rows) / 255 * _BRIGHTEST) / _BRIGHTEST
        for rows, columns in product(down, across)
    ]


def _cells(length: int) -> list[range]:
    """Return the pixels in each of the cells; at least one."""
    starts = [index * length // _SIDE for index in range(_SIDE)]
    ends = [(index + 1) * length // _SIDE for index in range(_SIDE)]
    return [range(start, max(end, start + 1)) for start, end in zip(starts, ends, strict=True)]


def _mean(picture: GreyPicture, columns: range, rows: range) -> float:
    greys = [picture.rows[row][column] for row in rows for column in columns]
    return sum(greys) / len(greys)
