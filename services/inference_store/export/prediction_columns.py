"""Predictions as one column: of each inference a list, with the same members for all."""

from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any, Final

from inference_store.query.read import PREDICTION_FIELDS

from .fixed_columns import Row
from .kinds import Column, Kind

_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("ordinal", "rank", "output", "start", "end"), Kind.INTEGER),
    **dict.fromkeys(("output_name", "label", "prompt", "answer", "text"), Kind.TEXT),
}
"""Those of the other members are floats."""


def predictions_column(parts: Collection[str]) -> Column:
    """Return the column; with these members alone, or with all if there are none."""
    names = [name for name in PREDICTION_FIELDS if not parts or name in parts]
    members = tuple((name, _KINDS.get(name, Kind.FLOAT)) for name in names)
    return Column("predictions", Kind.PREDICTIONS, members)


def read_predictions(column: Column, rows: Sequence[Row]) -> list[Sequence[Sequence[Any]]]:
    """Return the predictions of each inference, the values of each in the order of the members."""
    names = [name for name, _ in column.members]
    values = [row.inference.prediction_values or () for row in rows]
    if names == list(PREDICTION_FIELDS):
        return values
    positions = [PREDICTION_FIELDS.index(name) for name in names]
    pick = itemgetter(*positions, 0)  # at least two, so that it returns tuples
    return [[pick(prediction)[:-1] for prediction in predictions] for predictions in values]
