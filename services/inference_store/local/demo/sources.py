"""The photographs and digits in wheels, and the pictures that the demo's cameras make of them."""

import gzip
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from inference_store.local.folder import LocalStackError, find_package

from .models import HELD_OUT

Image = NDArray[np.uint8]
"""Height × width × 3, blue-green-red as in OpenCV."""


@dataclass(frozen=True, slots=True)
class Photograph:
    """One photograph inside a wheel."""

    name: str
    data_source: str
    package: str = "skimage"
    folder: str = "data"

    @property
    def path(self) -> Path:
        """Its path. Raises LocalStackError if the wheel does not contain it."""
        return _find(self.package, f"{self.folder}/{self.name}.*")

    def read(self) -> Image:
        """Read the photograph. Raises LocalStackError."""
        if self.path.suffix == ".npy":
            return _sheet_of_faces()
        image = cv2.imread(str(self.path), cv2.IMREAD_COLOR)
        if image is None:
            raise LocalStackError(f"OpenCV cannot read {self.path}.")
        return np.asarray(image, dtype=np.uint8)


def _find(package: str, pattern: str) -> Path:
    for path in sorted(find_package(package).glob(pattern)):
        return path
    raise LocalStackError(f"The package {package} does not carry {pattern}.")


_HALLWAY, _YARD, _TABLE = "hallway-camera-feed", "yard-camera-feed", "table-camera-feed"
_ENTRANCE = "entrance-camera-feed"
_MICROSCOPE, _TELESCOPE, _SCANNER = "microscope-feed", "telescope-feed", "scanner-feed"
_LEARN: Final = ("sklearn", "datasets/images")

PHOTOGRAPHS = (
    Photograph("astronaut", _HALLWAY),
    Photograph("coins", _TABLE),
    Photograph("rocket", _YARD),
    Photograph("lfw_subset", _HALLWAY),
    Photograph("chelsea", _HALLWAY),
    Photograph("motorcycle_left", _YARD),
    Photograph("flower", _TABLE, *_LEARN),
    Photograph("camera", _YARD),
    Photograph("china", _YARD, *_LEARN),
    Photograph("coffee", _TABLE),
    Photograph("clock_motion", _HALLWAY),
    Photograph("moon", _YARD),
    Photograph("grass", _YARD),
    Photograph("brick", _HALLWAY),
    Photograph("gravel", _YARD),
    Photograph("motorcycle_right", _YARD),
)
SPECIMENS = (  # how often each is divided, across and down
    (Photograph("hubble_deep_field", _TELESCOPE), 3),
    (Photograph("moon", _TELESCOPE), 2),
    (Photograph("ihc", _MICROSCOPE), 2),
    (Photograph("cell", _MICROSCOPE), 2),
    (Photograph("retina", _MICROSCOPE), 2),
    (Photograph("microaneurysms", _MICROSCOPE), 1),
    (Photograph("phantom", _SCANNER), 1),
    (Photograph("text", _SCANNER), 1),
    (Photograph("horse", _SCANNER), 1),
    (Photograph("chessboard_GRAY", _SCANNER), 1),
    (Photograph("color", _SCANNER), 1),
    (Photograph("logo", _SCANNER), 1),
    (Photograph("coins", _TABLE), 1),
    (Photograph("coffee", _TABLE), 1),
)

_SHEET_SIDE = 10  # the first 100 pictures of lfw_subset are faces of as many people
_SHEET_SCALE = 5


@cache
def _faces() -> NDArray[np.uint8]:
    """Return 100 faces of 25 × 25 greys."""
    pictures = np.load(_find("skimage", "data/lfw_subset.npy"))[: _SHEET_SIDE**2]
    return np.asarray(pictures * 255, dtype=np.uint8)


def _sheet_of_faces() -> Image:
    """Return a sheet of all faces, enlarged."""
    faces = _faces()
    rows = [np.hstack(list(faces[at : at + _SHEET_SIDE])) for at in range(0, len(faces), 10)]
    size = _SHEET_SCALE
    large = cv2.resize(np.vstack(rows), None, fx=size, fy=size, interpolation=cv2.INTER_CUBIC)
    return np.asarray(cv2.cvtColor(large, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


WIDTH, HEIGHT = 400, 300  # of every frame, pixels
FRAMES_A_SHOT = 5
_NIGHT_BELOW = 80.0  # mean grey level of 255
_PLACES = {  # latitude, longitude in degrees
    _HALLWAY: (-32.1, -43.2),
    _YARD: (-32.1012, -43.2031),
    _TABLE: (-32.0991, -43.1984),
    _ENTRANCE: (-32.1007, -43.2002),
}
# Every fourth frame is the entrance camera's. It shows one visitor after the other, and fails
# slowly: each frame has less light than the last, and more noise. One in twelve arrives cut off.
_ENTRANCE_EVERY, _ENTRANCE_AT, _CUT_EVERY, _CUT_AT = 4, 3, 48, 23
_FADING = 0.0135
_NOISE = 0.3
_FACE = 200  # pixels
_WALL = Photograph("brick", _ENTRANCE)


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture of a camera."""

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
    def brightness(self) -> float:
        """The mean grey level, 0 to 255."""
        return round(float(self.image.mean()), 1)

    @property
    def night(self) -> bool:
        """True if the picture is dark."""
        return self.brightness < _NIGHT_BELOW

    @property
    def cut(self) -> bool:
        """True if only its first bytes are sent."""
        return self.number % _CUT_EVERY == _CUT_AT


@cache  # two models see each
def take_frame(number: int) -> Frame:
    """Return frame `number` (0, 1, 2, …), which is always the same. Raises LocalStackError."""
    visitors, rest = divmod(number, _ENTRANCE_EVERY)
    if rest == _ENTRANCE_AT:
        source, name, right, down = _ENTRANCE, f"visitor-{visitors:02}", 0.0, 0.0
        image = _take_visitor(visitors)
    else:
        at = (number - visitors) // FRAMES_A_SHOT
        photograph = PHOTOGRAPHS[at % len(PHOTOGRAPHS)]
        source, name = photograph.data_source, photograph.name
        # Pan, tilt and zoom oscillate without a common period: no two frames are equal.
        right, down = math.sin(number * 0.61), math.sin(number * 0.37)
        image = _crop(_read(photograph), right, down, 0.7 + 0.25 * math.sin(number * 0.23))
    latitude, longitude = _PLACES[source]
    return Frame(
        number=number,
        photograph=name,
        data_source=source,
        image=image,
        latitude=round(latitude + number * 1e-6, 6),
        longitude=longitude,
        angle=round(30 * right, 1),
        tilt=round(12 * down, 1),
    )


_read = cache(Photograph.read)


def _take_visitor(visitor: int) -> Image:
    wall = _read(_WALL)[:HEIGHT, :WIDTH, 0].astype(np.float64)
    left, top = 100 + int(80 * math.sin(visitor)), 50 + int(40 * math.sin(visitor * 2.3))
    face = cv2.resize(_faces()[visitor], (_FACE, _FACE), interpolation=cv2.INTER_CUBIC)
    wall[top : top + _FACE, left : left + _FACE] = face
    noise = np.random.default_rng(visitor).normal(0, _NOISE * visitor, wall.shape)
    grey = np.clip(wall * (1 - _FADING * visitor) + noise, 0, 255).astype(np.uint8)
    return np.asarray(cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


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


@dataclass(frozen=True, slots=True)
class Specimen:
    """One part of a photograph: what it shows, no other part shows."""

    number: int
    photograph: Photograph
    row: int
    column: int
    divided: int

    @property
    def image(self) -> Image:
        """Raises LocalStackError."""
        whole = _read(self.photograph)
        tall, across = (side // self.divided for side in whole.shape[:2])
        top, start = self.row * tall, self.column * across
        return whole[top : top + tall, start : start + across]


def list_specimens() -> list[Specimen]:
    """Return every part of every photograph, always in the same order."""
    parts = (
        (photograph, row, column, divided)
        for photograph, divided in SPECIMENS
        for row in range(divided)
        for column in range(divided)
    )
    return [Specimen(number, *part) for number, part in enumerate(parts)]


_SIDE = 8  # pixels, as tall as wide
_SCALE = 8
_BRIGHTEST = 16.0
_SEED = 7


@dataclass(frozen=True, slots=True)
class Digit:
    """One held-out image."""

    sample: int
    """Its place in scikit-learn's data set."""
    true_label: str
    pixels: NDArray[np.float64]
    """64 numbers, 0 to 16."""

    @property
    def image(self) -> Image:
        """64 × 64 × 3."""
        grey = (self.pixels.reshape(_SIDE, _SIDE) / _BRIGHTEST * 255).astype(np.uint8)
        large = cv2.resize(grey, None, fx=_SCALE, fy=_SCALE, interpolation=cv2.INTER_NEAREST)
        return np.asarray(cv2.cvtColor(large, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


def held_out_digits() -> list[Digit]:
    """Return the images that the classifier was not trained on, always the same ones."""
    # as scikit-learn reads and divides them, without the seconds that its import takes
    with gzip.open(_find("sklearn", "datasets/data/digits.csv.gz"), "rt") as file:
        data = np.loadtxt(file, delimiter=",")
    unseen = np.random.RandomState(_SEED).permutation(len(data))[:HELD_OUT]
    return [Digit(int(sample), str(int(data[sample, -1])), data[sample, :-1]) for sample in unseen]
