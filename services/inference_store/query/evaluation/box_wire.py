"""The messages between the api and the process that matches boxes, over its stdin and stdout."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

IMAGE: Final = [("uid", "S16"), ("complete", "?")]
"""An image as Postgres writes it; numpy's words."""
PLACE: Final[list[tuple[Any, ...]]] = [("label", ">i4"), ("at", ">f8", 4), ("score", ">f8")]
BOX: Final = [("uid", "S16"), ("ordinal", ">i4"), *PLACE]
IMAGE_BYTES: Final = 17
BOX_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Request:
    """What is matched. `slices`: the images of each."""

    images: bytes
    truths: bytes
    predictions: bytes
    slices: Sequence[bytes] = ()
    iou: float = 0.5
    score: float | None = None

    def write(self) -> bytes:
        """Return it as the process reads it."""
        parts = [self.images, self.truths, self.predictions, *self.slices]
        head = {"iou": self.iou, "score": self.score, "sizes": list(map(len, parts))}
        return json.dumps(head).encode() + b"\n" + b"".join(parts)

    @classmethod
    def read(cls, stream: BinaryIO) -> "Request":
        """Read what `write` returned."""
        head = json.loads(stream.readline())
        images, truths, predictions, *slices = (stream.read(size) for size in head["sizes"])
        return cls(images, truths, predictions, slices, head["iou"], head["score"])
