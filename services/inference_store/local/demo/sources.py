"""The photographs and digits in wheels, and the pictures that the demo's cameras make of them."""

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from inference_store.local.folder import LocalStackError, find_package

from .models import DIGITS, FRAME, FRAMES, HELD_OUT, SHAPES, DemoModel, Request

Image = NDArray[np.uint8]
"""Height × width × 3, blue-green-red as in OpenCV."""

# Where wheels carry them.
_FOLDERS: Final = (
    ("skimage", "data"),
    ("sklearn", "datasets/images"),
    ("sklearn", "datasets/data"),
)


def _find(name: str) -> Path:
    for package, folder in _FOLDERS:
        for path in (find_package(package) / folder).glob(f"{name}.*"):
            return path
    raise LocalStackError(f"No installed package carries {name}.")


@cache
def _read(name: str) -> Image:
    if name == _SHEET:
        return _sheet_of_faces()
    image = cv2.imread(str(_find(name)), cv2.IMREAD_COLOR)
    if image is None:
        raise LocalStackError(f"OpenCV cannot read {_find(name)}.")
    return np.asarray(image, dtype=np.uint8)


_SHEET: Final = "lfw_subset"
_HALLWAY, _YARD, _TABLE = "hallway-camera-feed", "yard-camera-feed", "table-camera-feed"
_ENTRANCE = "entrance-camera-feed"
_MICROSCOPE, _TELESCOPE, _SCANNER = "microscope-feed", "telescope-feed", "scanner-feed"

PHOTOGRAPHS = (
    *(("astronaut", _HALLWAY), ("coins", _TABLE), ("rocket", _YARD), (_SHEET, _HALLWAY)),
    *(("chelsea", _HALLWAY), ("motorcycle_left", _YARD), ("flower", _TABLE), ("camera", _YARD)),
    *(("china", _YARD), ("coffee", _TABLE), ("clock_motion", _HALLWAY), ("moon", _YARD)),
    *(("grass", _YARD), ("brick", _HALLWAY), ("gravel", _YARD), ("motorcycle_right", _YARD)),
)
SPECIMENS = {  # by source, how often each photograph is divided, across and down
    _TELESCOPE: {"hubble_deep_field": 3, "moon": 2},
    _MICROSCOPE: {"ihc": 2, "cell": 2, "retina": 2, "microaneurysms": 1},
    _SCANNER: dict.fromkeys(("phantom", "text", "horse", "chessboard_GRAY", "color", "logo"), 1),
    _TABLE: {"coins": 1, "coffee": 1},
}

_SHEET_SIDE = 10  # the first 100 pictures of lfw_subset are faces of as many people


@cache
def _faces() -> NDArray[np.uint8]:
    """Return 100 faces of 25 × 25 greys."""
    pictures = np.load(_find(_SHEET))[: _SHEET_SIDE**2]
    return np.asarray(pictures * 255, dtype=np.uint8)


def _sheet_of_faces() -> Image:
    """Return a sheet of all faces, enlarged."""
    faces = _faces()
    rows = [np.hstack(list(faces[at : at + _SHEET_SIDE])) for at in range(0, len(faces), 10)]
    large = cv2.resize(np.vstack(rows), None, fx=5, fy=5, interpolation=cv2.INTER_CUBIC)
    return np.asarray(cv2.cvtColor(large, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


WIDTH, HEIGHT = 400, 300  # of every frame, pixels
FRAMES_A_SHOT = 5
_NIGHT_BELOW = 80.0  # mean grey level of 255
_PLACES = {  # latitude, longitude in degrees
    _HALLWAY: (41.3917, 2.1649),  # Barcelona, Passeig de Gràcia
    _YARD: (53.5511, 10.0013),  # Hamburg, Mönckebergstraße
    _TABLE: (55.6786, 12.5790),  # Copenhagen, Strøget
    _ENTRANCE: (38.7106, -9.1376),  # Lisbon, Rua Augusta
}
# Every fourth frame is the entrance camera's. It shows one visitor after the other, and fails
# slowly: each frame has less light than the last, and more noise. One in twelve arrives cut off.
_ENTRANCE_EVERY, _ENTRANCE_AT, _CUT_EVERY, _CUT_AT = 4, 3, 48, 23
_FIRST_BYTES = 300
_FADING = 0.0135
_NOISE = 0.3
_FACE = 200  # pixels


def frame_requests(model: DemoModel) -> Iterator[Request]:
    """Yield the frames, always the same ones, one at a time. Raises LocalStackError."""
    for number in range(FRAMES):
        picture, items = _take_frame(number)
        cut = number % _CUT_EVERY == _CUT_AT
        captured_at = ("captured_at", "timestamp", datetime.now(UTC).isoformat())
        sent = picture[:_FIRST_BYTES] if cut else picture
        yield Request(model, f"{FRAME}{number:05d}", sent, [*items, captured_at], refused=cut)


class _Shot(NamedTuple):
    """What a camera looks at."""

    source: str
    name: str
    """Of the photograph, or of the visitor."""
    right: float
    down: float
    """−1 to 1."""
    part: tuple[int, int, int, int]
    """Of the photograph: left, top, width and height in pixels."""


def _aim(number: int) -> _Shot:
    """Return what the frame shows."""
    visitors, rest = divmod(number, _ENTRANCE_EVERY)
    if rest == _ENTRANCE_AT:
        return _Shot(_ENTRANCE, f"visitor-{visitors:02}", 0.0, 0.0, (0, 0, WIDTH, HEIGHT))
    at = (number - visitors) // FRAMES_A_SHOT
    name, source = PHOTOGRAPHS[at % len(PHOTOGRAPHS)]
    # Pan, tilt and zoom oscillate without a common period: no two frames are equal.
    right, down = math.sin(number * 0.61), math.sin(number * 0.37)
    zoom = 0.7 + 0.25 * math.sin(number * 0.23)
    height, width = _read(name).shape[:2]
    largest = min(width, height * WIDTH / HEIGHT)
    across, tall = int(largest * zoom), int(largest * zoom * HEIGHT / WIDTH)
    left, top = int((width - across) * (1 + right) / 2), int((height - tall) * (1 + down) / 2)
    return _Shot(source, name, right, down, (left, top, across, tall))


@cache  # two models see each
def _take_frame(number: int) -> tuple[bytes, Sequence[tuple[str, str, str]]]:
    source, name, right, down, (left, top, across, tall) = _aim(number)
    if source == _ENTRANCE:
        image = _take_visitor(number // _ENTRANCE_EVERY)
    else:
        part = _read(name)[top : top + tall, left : left + across]
        frame = cv2.resize(part, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
        image = np.asarray(frame, dtype=np.uint8)
    latitude, longitude = _PLACES[source]
    brightness = round(float(image.mean()), 1)
    position = {"angle": str(round(30 * right, 1)), "tilt": str(round(12 * down, 1))}  # degrees
    return _encode(".jpg", image), [
        ("frame_number", "int", str(number)),
        ("data_source", "string", source),
        ("photograph", "string", name),
        ("latitude", "float", str(latitude)),
        ("longitude", "float", str(longitude)),
        ("camera_position", "json", json.dumps(position)),
        ("brightness", "float", str(brightness)),
        ("night", "bool", "true" if brightness < _NIGHT_BELOW else "false"),
    ]


def _place_face(visitor: int) -> tuple[int, int]:
    """Return the left and top edge of a visitor's face in pixels."""
    return 100 + int(80 * math.sin(visitor)), 50 + int(40 * math.sin(visitor * 2.3))


def _take_visitor(visitor: int) -> Image:
    wall = _read("brick")[:HEIGHT, :WIDTH, 0].astype(np.float64)
    left, top = _place_face(visitor)
    face = cv2.resize(_faces()[visitor], (_FACE, _FACE), interpolation=cv2.INTER_CUBIC)
    wall[top : top + _FACE, left : left + _FACE] = face
    noise = np.random.default_rng(visitor).normal(0, _NOISE * visitor, wall.shape)
    grey = np.clip(wall * (1 - _FADING * visitor) + noise, 0, 255).astype(np.uint8)
    return np.asarray(cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


# What is in the photographs, as (left, top, right, bottom) in pixels.
_SEEN: Final = {
    "astronaut": {"face": (168, 72, 290, 198), "person": (20, 14, 362, 512)},
    "camera": {"face": (182, 80, 262, 205), "person": (0, 62, 330, 512)},
}
_LEAST_SEEN = 0.4  # of a box, else it counts as outside the frame


def frame_truth(model: DemoModel) -> Iterator[dict[str, Any]]:
    """Yield what is true of each frame that the model can read: an id, and boxes of its class."""
    [label] = model.class_labels
    for number in range(FRAMES):
        if number % _CUT_EVERY != _CUT_AT:
            boxes = [box for box in _boxes_of(number, label) if box is not None]
            items = [{"label": label, "box": box} for box in boxes]
            yield {"inference_id": f"{FRAME}{number:05d}", "items": items}


def _boxes_of(number: int, label: str) -> Iterator[list[float] | None]:
    """Yield each box of the frame in its pixels; None: too little of it is inside."""
    source, name, _, _, (left, top, across, tall) = _aim(number)
    if source == _ENTRANCE:
        x, y = _place_face(number // _ENTRANCE_EVERY)
        stood = [(x, y, x + _FACE, y + _FACE)]
    elif name == _SHEET:
        side = _read(_SHEET).shape[0] // _SHEET_SIDE
        cells = product(range(_SHEET_SIDE), repeat=2)
        stood = [(c * side, r * side, (c + 1) * side, (r + 1) * side) for r, c in cells]
    else:
        stood = [_SEEN[name][label]] if name in _SEEN else []
    for box in stood:
        edges = zip(box, (left, top) * 2, (across, tall) * 2, (WIDTH, HEIGHT) * 2, strict=True)
        scaled = [(at - start) * pixels / of for at, start, of, pixels in edges]
        inside = [
            min(max(at, 0.0), most) for at, most in zip(scaled, (WIDTH, HEIGHT) * 2, strict=True)
        ]
        is_seen = _area(inside) >= _LEAST_SEEN * _area(scaled)
        yield [round(at, 1) for at in inside] if is_seen else None


def _area(box: Sequence[float]) -> float:
    xmin, ymin, xmax, ymax = box
    return (xmax - xmin) * (ymax - ymin)


def specimen_requests() -> Iterator[Request]:
    """Yield every part of every photograph of SPECIMENS; what it shows, no other part shows.
    Raises LocalStackError."""
    parts = [
        (name, source, divided, row, column)
        for source, photographs in SPECIMENS.items()
        for name, divided in photographs.items()
        for row in range(divided)
        for column in range(divided)
    ]
    for number, (name, source, divided, row, column) in enumerate(parts):
        whole = _read(name)
        tall, across = (side // divided for side in whole.shape[:2])
        part = whole[row * tall : (row + 1) * tall, column * across : (column + 1) * across]
        items = [
            ("photograph", "string", name),
            ("data_source", "string", source),
            ("part", "json", json.dumps([row, column])),
        ]
        yield Request(SHAPES, f"{SHAPES.prefix}{number:02d}", _encode(".jpg", part), items)


_SIDE, _SCALE = 8, 8  # pixels of a digit, as tall as wide, and of each of them
_BRIGHTEST = 16.0
_SEED = 7


@cache
def _held_out_digits() -> Sequence[tuple[int, NDArray[np.float64]]]:
    """Return the number of each digit and its pixels, with the true class behind them."""
    # as scikit-learn reads and divides them, without the seconds that its import takes
    with gzip.open(_find("digits"), "rt") as file:
        data = np.loadtxt(file, delimiter=",")
    held_out = np.random.RandomState(_SEED).permutation(len(data))[:HELD_OUT]
    return [(int(sample), data[sample]) for sample in held_out]


def digit_truth() -> Iterator[dict[str, Any]]:
    """Yield the true class of each digit, by the digit's id."""
    for sample, (*_, true_label) in _held_out_digits():
        id = f"{DIGITS.prefix}{sample:04d}"
        yield {"inference_id": id, "items": [{"label": str(int(true_label))}]}


def digit_requests() -> Iterator[Request]:
    """Yield the digits that the classifier was not trained on, always the same ones."""
    for sample, (*pixels, true_label) in _held_out_digits():
        grey = (np.reshape(pixels, (_SIDE, _SIDE)) / _BRIGHTEST * 255).astype(np.uint8)
        large = cv2.resize(grey, None, fx=_SCALE, fy=_SCALE, interpolation=cv2.INTER_NEAREST)
        items = [("true_label", "string", str(int(true_label))), ("sample", "int", str(sample))]
        picture = _encode(".png", cv2.cvtColor(large, cv2.COLOR_GRAY2BGR))
        yield Request(DIGITS, f"{DIGITS.prefix}{sample:04d}", picture, items)


_JPEG_QUALITY = 85


def _encode(suffix: str, image: Any) -> bytes:
    quality = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if suffix == ".jpg" else []
    return bytes(cv2.imencode(suffix, image, quality)[1].tobytes())
