"""The predictions of an inference as shapes over its picture."""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeBox:
    """An upright box in pixels, y down."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OrientedBox:
    """A turned box: centre and size are shares of the picture, the angle is in radians."""

    cx: float
    cy: float
    w: float
    h: float
    angle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Keypoint:
    """What is known of a point: its index in the model's list, its name, its score."""

    index: int
    name: str | None
    score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape; of a prediction with several contours, each is a shape."""

    kind: Literal["box", "oriented_box", "polygon", "keypoints"]
    ordinal: int
    """The index of its prediction in the response."""
    rank: int
    label: str | None
    score: float | None
    points: tuple[tuple[float, ...], ...]
    """x and y of each, in pixels."""
    keypoints: tuple[Keypoint, ...] | None
    """One for each point; None for other kinds."""
    box: ShapeBox | None
    oriented: OrientedBox | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The shapes of an inference, in the order of the response."""

    uid: UUID
    width: int | None
    height: int | None
    units: Literal["pixels", "shares"]
    shapes: tuple[Shape, ...]
    without_shape: int
    problem: str | None
    """Why contours or keypoints are missing."""
