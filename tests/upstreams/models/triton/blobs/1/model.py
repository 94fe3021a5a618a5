"""The bright regions of an image, in the three tensors of a YOLO behind its suppression: boxes
(xmin, ymin, xmax, ymax), scores, and classes, a row each.

A region is a run of rows, and in it a run of columns, with a pixel brighter than the middle; its
score is its mean brightness. The class is the brightest of the three channels.
"""

from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from numpy.typing import NDArray

_MIDDLE = 128


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        image = triton.get_input_tensor_by_name(request, "image").as_numpy()
        bright = image.max(axis=2) > _MIDDLE
        rows = [
            _row(image, left, top, right, bottom)
            for top, bottom in _runs(bright.any(axis=1))
            for left, right in _runs(bright[top:bottom].any(axis=0))
        ]
        found = np.array(rows, dtype=np.float32).reshape(-1, 6)
        tensors = {
            "boxes": np.ascontiguousarray(found[:, :4]),
            "scores": np.ascontiguousarray(found[:, 4]),
            "classes": found[:, 5].astype(np.int32),
        }
        outputs = [triton.Tensor(name, values) for name, values in tensors.items()]
        return triton.InferenceResponse(output_tensors=outputs)


def _row(image: NDArray[Any], left: int, top: int, right: int, bottom: int) -> tuple[float, ...]:
    means = image[top:bottom, left:right].mean(axis=(0, 1)) / 255
    return left, top, right, bottom, means.max(), means.argmax()


def _runs(marks: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Where each run of marks begins, and the first place behind it."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], marks.astype(np.int8), [0]))))
    return edges.reshape(-1, 2)
