"""A camera that moves over photographs: frames, each with its metadata."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np

from .photographs import PHOTOGRAPHS, Image, Photograph

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
