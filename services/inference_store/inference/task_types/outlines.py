"""Outlines: the contours and keypoints of a response, which are drawn and not indexed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

Point: TypeAlias = tuple[float, float]
MOST_POINTS: Final = 100_000
"""The most points of one response that are drawn."""


class Keypoint(NamedTuple):
    """One place on an object, such as the left knee."""

    place: int
    """Its place in the list of the model; those that the model did not find are left out."""
    point: Point
    score: float | None = None
    name: str | None = None


class Outline(NamedTuple):
    """The drawing of one element, in pixels."""

    contours: tuple[tuple[Point, ...], ...] = ()
    keypoints: tuple[Keypoint, ...] = ()


@dataclass(slots=True)
class Outlines:
    """The outlines of a response, by the ordinal of the prediction."""

    most: int = MOST_POINTS
    found: dict[int, Outline] = field(default_factory=dict)
    points: int = 0
    capped: bool = False
    """Whether an outline was left out, because there would be too many points."""

    def add_contours(self, ordinal: int, contours: Iterable[Iterable[Point]]) -> None:
        """Keep an element's contours."""
        drawn = tuple(tuple(contour) for contour in contours)
        self._add(ordinal, Outline(contours=tuple(contour for contour in drawn if contour)))

    def add_keypoints(self, ordinal: int, keypoints: Iterable[Keypoint]) -> None:
        """Keep an element's keypoints."""
        self._add(ordinal, Outline(keypoints=tuple(keypoints)))

    def _add(self, ordinal: int, outline: Outline) -> None:
        points = sum(map(len, outline.contours)) + len(outline.keypoints)
        if self.points + points > self.most:
            self.capped = True
        elif points:
            self.points += points
            self.found[ordinal] = outline
