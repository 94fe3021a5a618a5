"""The operand that a name means: a property, a metadata key, a column of predictions, or their
labels."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property, Stored

from .functions import Kind

Source: TypeAlias = Literal["inference", "metadata", "prediction", "label"]
# Grouped by the integers of labels, which are named afterwards.
COUNTED_BY_NUMBER = {("inference", "top_label"), ("prediction", "label"), ("label", "label")}


@dataclass(frozen=True, slots=True)
class Operand:
    """A resolved name. `key`: the integer of a metadata key; 0: no inference has it."""

    source: Source
    name: str
    kind: Kind
    many: bool = False
    stored: Stored = "other"
    key: int = 0

    @property
    def is_label(self) -> bool:
        """Check whether its raw values are integers of labels."""
        return (self.source, self.name) in COUNTED_BY_NUMBER

    @property
    def property(self) -> Property:
        """Its entry in the list of properties, or of columns."""
        return (PROPERTIES if self.source == "inference" else PREDICTION_COLUMNS)[self.name]


LABEL = Operand("label", "label", "string", many=True)


def raw(operand: Operand, row: Any) -> Any:
    """Return its value in a row for grouping: labels by number, texts as the index has them."""
    if operand.is_label:
        return row.c["top_label" if operand.source == "inference" else "label"]
    if operand.source == "metadata":
        return row.c.value
    sql = operand.property.sql
    assert sql is not None
    return sql(row)
