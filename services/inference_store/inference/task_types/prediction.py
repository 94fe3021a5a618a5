"""The predictions of a response, or the word that they are unknown."""

from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple


# A named tuple, not a dataclass: several are made an event, each at a third of the cost.
class Prediction(NamedTuple):
    """One element of a response. Floats are finite, texts storable by Postgres."""

    ordinal: int
    """0, 1, 2… in the order of the response."""
    rank: int
    """1 is the best score; equal scores, and those without one (last), by ordinal."""
    output: int
    """Index of the output that it came from."""
    output_name: str | None = None
    label: str | None = None
    score: float | None = None
    xmin: float | None = None
    """Box: pixels, y down. Shares of the size, flagged, while the size is unknown."""
    ymin: float | None = None
    xmax: float | None = None
    ymax: float | None = None
    area: float | None = None
    """Square pixels of the box, the oriented box or the contours; unknown without pixels."""
    cx: float | None = None
    """Oriented box: centre and size as shares of the width and height."""
    cy: float | None = None
    w: float | None = None
    h: float | None = None
    angle: float | None = None
    """Radians, clockwise in pixel space."""
    prompt: str | None = None
    answer: str | None = None
    text: str | None = None
    start: int | None = None
    """Of the text that was given: first character, and the one after the last."""
    end: int | None = None
    value: Decimal | None = None
    """A number that a tabular model answered, exactly."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """All of one inference."""

    items: tuple[Prediction, ...] | None
    """None: unknown, as the response failed, cannot be read, or is of an unknown task type."""
    flags: tuple[str, ...] = ()
    problem: str | None = None
    """The problem and its place, for people."""


@dataclass(frozen=True, slots=True)
class PredictionCaps:
    """Bounds for one inference. What is over them stays in the response's blob."""

    predictions: int = 10_000
    """Predictions that are read, the first ones of the response."""
    text_characters: int = 65_536
    """Characters of a prompt, answer or text; the rest is cut off and flagged."""
    label_characters: int = 256
    """Characters of a label or output name; a longer one is left out and flagged."""
    digits: int = 1_000
    """Digits of a tabular number."""
    exponent: int = 400
    """The largest |exponent| that a tabular number may be written with."""
