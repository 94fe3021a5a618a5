"""The predictions of an inference."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, overload

from inference_store_client.errors import NotIncluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One element of a response. Boxes are in pixels, y down."""

    ordinal: int
    rank: int
    output: int
    output_name: str | None
    label: str | None
    score: float | None
    xmin: float | None
    ymin: float | None
    xmax: float | None
    ymax: float | None
    area: float | None
    cx: float | None
    cy: float | None
    w: float | None
    h: float | None
    angle: float | None
    prompt: str | None
    answer: str | None
    text: str | None
    start: int | None
    end: int | None
    value: float | None

    @property
    def box(self) -> tuple[float, float, float, float] | None:
        """The box as (xmin, ymin, xmax, ymax); None: the prediction has no box."""
        match self.xmin, self.ymin, self.xmax, self.ymax:
            case float() as left, float() as top, float() as right, float() as bottom:
                return left, top, right, bottom
        return None


class Predictions(Sequence[Prediction]):
    """The predictions of an inference, in the order of the response.

    Raises NotIncluded if they were not asked for.
    """

    def __init__(self, items: tuple[Prediction, ...] | None) -> None:
        self._items = items

    @property
    def _included(self) -> tuple[Prediction, ...]:
        if self._items is None:
            raise NotIncluded("predictions were not asked for: include=['predictions']")
        return self._items

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Prediction, ...]: ...
    def __getitem__(self, index: int | slice) -> Prediction | tuple[Prediction, ...]:
        return self._included[index]

    def __len__(self) -> int:
        return len(self._included)

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, Predictions) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"Predictions({'not included' if self._items is None else list(self._items)})"


NO_PREDICTIONS: Final = Predictions(None)
"""What was not asked for."""
