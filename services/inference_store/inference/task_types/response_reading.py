"""The reading of one response: its context, its rows so far, and its flags."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from inference_store.inference.json_text import (
    Json,
    Number,
    exact,
    is_non_finite,
    is_number,
    storable,
    write_json,
)

from .mapping import OutputMapping
from .outlines import Outlines
from .prediction import Prediction, PredictionCaps

Row: TypeAlias = dict[str, Any]  # columns of a Prediction, without ordinal and rank
_LARGEST_POSITION = 2**31 - 1


class UnreadableResponse(ValueError):
    """The response does not have its task type's shape; `str()` of the error gives the reason."""

    def __init__(self, flag: str, problem: str) -> None:
        super().__init__(problem)
        self.flag = flag


@dataclass(slots=True)
class Reading:
    """The context of one response, and its rows so far."""

    class_labels: Sequence[str]
    mapping: OutputMapping | None
    width: int | None
    height: int | None
    caps: PredictionCaps
    rows: list[Row] = field(default_factory=list)
    flags: dict[str, None] = field(default_factory=dict)
    unreadable: int = 0
    """Elements without the task type's shape."""
    outlines: Outlines | None = None
    """Receives contours and keypoints; None if they are not needed."""

    def flag(self, name: str) -> None:
        """Add a flag, once."""
        self.flags[name] = None

    def full(self) -> bool:
        """Return whether the rows are at the cap, and flag that."""
        if len(self.rows) < self.caps.predictions:
            return False
        self.flag("predictions_capped")
        return True

    def number(self, value: Json) -> float | None:
        """Return a finite float; None, flagged, for any other value."""
        if type(value) is float:  # by far the most; orjson returns only finite ones
            if math.isfinite(value):
                return value
        elif value is None:
            return None
        elif type(value) is not int and not _spells_number(value):
            self.flag("not_a_number")
            return None
        else:
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        self.flag("not_finite")
        return None

    def label(self, value: Json) -> str | None:
        """Return a label; a whole number is looked up in the class labels, if there are any."""
        if type(value) is str:
            return self.short(value)
        if value is None or isinstance(value, (dict, list)):
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        return self.short(self._class_label(str(value)))

    def short(self, text: str | None) -> str | None:
        """Return a text for a dictionary; None, flagged, if it is too long or not storable."""
        if text is None:
            return None
        if len(text) > self.caps.label_characters:
            self.flag("label_too_long")
        elif not storable(text):
            self.flag("text_unstorable")
        else:
            return text
        return None

    def text(self, value: Json) -> str | None:
        """Return any text, cut at the cap; None, flagged, if Postgres cannot store it."""
        if value is None:
            return None
        text = value if type(value) is str else write_json(value)
        if not storable(text):
            self.flag("text_unstorable")
            return None
        if len(text) > self.caps.text_characters:
            self.flag("text_truncated")
            return text[: self.caps.text_characters]
        return text

    def position(self, value: Json) -> int | None:
        """Return a position in a text: a whole number from 0; None, flagged, for any other
        value."""
        number = self.number(value)
        if number is None:
            return None
        if number < 0 or number > _LARGEST_POSITION or number != int(number):
            self.flag("not_a_position")
            return None
        return int(number)

    def decimal(self, value: Json) -> Decimal | None:
        """Return a number exactly as it was written; None, flagged, if it is not finite or over a
        cap."""
        try:
            number = exact(str(value), digits=self.caps.digits, exponent=self.caps.exponent)
        except ValueError:
            self.flag("not_finite" if is_non_finite(str(value)) else "not_a_number")
            return None
        if number is None:
            self.flag("number_too_large")
        return number

    def _class_label(self, text: str) -> str:
        digits = text.removesuffix(".0")  # of a tensor of floats
        index = int(digits) if len(digits) < 10 and digits.isdecimal() else len(self.class_labels)
        return self.class_labels[index] if index < len(self.class_labels) else text

    def predictions(self) -> tuple[Prediction, ...]:
        """Return the rows as ranked predictions."""
        keys = [_last_when_none(row.get("score")) for row in self.rows]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        ranks = [0] * len(keys)
        for rank, ordinal in enumerate(order, start=1):
            ranks[ordinal] = rank
        return tuple(
            Prediction(ordinal, rank, **row)
            for ordinal, (rank, row) in enumerate(zip(ranks, self.rows, strict=True))
        )


def _spells_number(value: Json) -> bool:
    return isinstance(value, str) and (is_number(value) or is_non_finite(value))


def _last_when_none(score: float | None) -> float:
    return math.inf if score is None else -score


def is_numeric(value: Json) -> bool:
    """Return whether a value is a JSON number; a bool is not."""
    return type(value) in (float, int, Number)
