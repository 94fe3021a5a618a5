"""What a name stands for: a property, a metadata key, a column of predictions, or their labels."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property, Stored

from .functions import Kind

Place: TypeAlias = Literal["inference", "metadata", "prediction", "label"]
# The integers of labels are grouped by, and named afterwards.
COUNTED_BY_NUMBER = {("inference", "top_label"), ("prediction", "label"), ("label", "label")}


@dataclass(frozen=True, slots=True)
class Operand:
    """A name, resolved. `key`: of metadata, its integer; 0: no inference has it."""

    place: Place
    name: str
    kind: Kind
    many: bool = False
    stored: Stored = "other"
    key: int = 0

    @property
    def is_label(self) -> bool:
        """Whether its raw values are integers of labels."""
        return (self.place, self.name) in COUNTED_BY_NUMBER

    @property
    def property(self) -> Property:
        """Its entry in the list of properties, or of columns."""
        return (PROPERTIES if self.place == "inference" else PREDICTION_COLUMNS)[self.name]


LABEL = Operand("label", "label", "string", many=True)


def raw(operand: Operand, row: Any) -> Any:
    """Its value in a row, as groups are made of it: labels by number, texts as the index has
    them."""
    if operand.is_label:
        return row.c["top_label" if operand.place == "inference" else "label"]
    if operand.place == "metadata":
        return row.c.value
    sql = operand.property.sql
    assert sql is not None
    return sql(row)
