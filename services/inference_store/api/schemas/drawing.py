"""What is drawn over a picture."""

from typing import Literal
from uuid import UUID

from pydantic import Field

from inference_store.api.shown import Shown


class ShownBox(Shown):
    """An upright box in pixels, y down."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float


class TurnedBox(Shown):
    """A turned box, as the model said it."""

    cx: float
    """Centre and size are shares of the width and height."""
    cy: float
    w: float
    h: float
    angle: float
    """Radians, clockwise in pixel space."""


class ShownKeypoint(Shown):
    """What is known of a point."""

    index: int
    """Its place in the model's list; keypoints that the model did not find are left out."""
    name: str | None
    score: float | None


class ShownShape(Shown):
    """One shape. Of a prediction with several contours, each is a shape."""

    kind: Literal["box", "oriented_box", "polygon", "keypoints"]
    ordinal: int
    """Its prediction's place in the response."""
    rank: int
    """1: the best score."""
    label: str | None
    score: float | None
    points: list[tuple[float, float]] = Field(examples=[[[80, 40], [120, 40], [120, 90]]])
    """x and y of each. Boxes have four corners, clockwise from the top left one; polygons and boxes
    are closed. Empty for an oriented box of a picture whose size is not known."""
    keypoints: list[ShownKeypoint] | None
    """One for each point; null for other kinds."""
    box: ShownBox | None
    """Around it; null: not known."""
    oriented: TurnedBox | None
    """Of an oriented box."""


class ShownDrawing(Shown):
    """The predictions of an inference as shapes, in the order of the response."""

    uid: UUID
    width: int | None
    """Of the picture in pixels, as the event said; null: it did not."""
    height: int | None
    units: Literal["pixels", "shares"]
    """`shares` of the width and height: the size was not known when the boxes were read."""
    shapes: list[ShownShape]
    without_shape: int
    """How many predictions have none: a label of the whole picture, a box with a number missing."""
    problem: str | None = Field(examples=[None])
    """Why contours or keypoints are missing, with boxes in their place; null: none is."""
