"""The photographs in wheels, and the camera of each."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from inference_store.local.errors import LocalStackError

Image = NDArray[np.uint8]
"""Height × width × 3, blue-green-red as in OpenCV."""

_SHEET_SIDE = 10  # the first 100 pictures of lfw_subset are faces
_SHEET_SCALE = 5


@dataclass(frozen=True, slots=True)
class Photograph:
    """One photograph inside a wheel."""

    name: str
    package: str
    file: str
    data_source: str

    @property
    def path(self) -> Path:
        """Its path. Raises LocalStackError if the wheel does not contain it."""
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise LocalStackError(f"The package {self.package} is missing: run `make demo`.")
        path = Path(spec.submodule_search_locations[0]) / self.file
        if not path.exists():
            raise LocalStackError(f"The package {self.package} does not carry {self.file}.")
        return path

    def read(self) -> Image:
        """Read the photograph. Raises LocalStackError."""
        if self.file.endswith(".npy"):
            return _sheet_of_faces(np.load(self.path))
        image = cv2.imread(str(self.path), cv2.IMREAD_COLOR)
        if image is None:
            raise LocalStackError(f"OpenCV cannot read {self.path}.")
        return np.asarray(image, dtype=np.uint8)


_HALLWAY, _YARD, _TABLE = "hallway-camera-feed", "yard-camera-feed", "table-camera-feed"

PHOTOGRAPHS = (
    Photograph("astronaut", "skimage", "data/astronaut.png", _HALLWAY),
    Photograph("coins", "skimage", "data/coins.png", _TABLE),
    Photograph("rocket", "skimage", "data/rocket.jpg", _YARD),
    Photograph("lfw_subset", "skimage", "data/lfw_subset.npy", _HALLWAY),
    Photograph("chelsea", "skimage", "data/chelsea.png", _HALLWAY),
    Photograph("motorcycle", "skimage", "data/motorcycle_left.png", _YARD),
    Photograph("flower", "sklearn", "datasets/images/flower.jpg", _TABLE),
    Photograph("camera", "skimage", "data/camera.png", _YARD),
    Photograph("china", "sklearn", "datasets/images/china.jpg", _YARD),
    Photograph("coffee", "skimage", "data/coffee.png", _TABLE),
)


def _sheet_of_faces(pictures: NDArray[np.float64]) -> Image:
    """Return a sheet of 100 faces of `pictures` (N × 25 × 25, 0 to 1), enlarged."""
    rows = [
        np.hstack(list(pictures[start : start + _SHEET_SIDE]))
        for start in range(0, _SHEET_SIDE**2, _SHEET_SIDE)
    ]
    grey = (np.vstack(rows) * 255).astype(np.uint8)
    large = cv2.resize(grey, None, fx=_SHEET_SCALE, fy=_SHEET_SCALE, interpolation=cv2.INTER_CUBIC)
    return np.asarray(cv2.cvtColor(large, cv2.COLOR_GRAY2BGR), dtype=np.uint8)
