"""The order by distance from a point: the nearest first, or the farthest."""

from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Double, false, true
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.index.tables import inference
from inference_store.inference.metadata import COORDINATES, Family
from inference_store.query.filters.typed import Distance

from .conditions.combination import Combination
from .conditions.distances import compute_metres
from .conditions.names import Names
from .rows import Rows
from .scan_range import ScanRange


@dataclass(frozen=True, slots=True)
class ByDistance:
    """By metres from the location to a point, as `distance()` of a filter computes them.

    `names`: the integers of the coordinates. An inference without a location has no value.
    """

    to: Distance
    names: Names
    descending: bool
    kind: ClassVar[Family] = "number"
    is_scannable: ClassVar[bool] = False
    always: ClassVar[bool] = False

    @property
    def type(self) -> TypeEngine[Any]:
        """The SQL type of its values."""
        return Double()

    @property
    def _nowhere(self) -> bool:
        """Check whether no inference has ever had a location."""
        return not set(COORDINATES) <= set(self.names.coordinates)

    def rows(self, scan_range: ScanRange) -> Rows:
        """Return the range's values."""
        if self._nowhere:
            # any double: no row is read, and a constant orders nothing
            return Rows(inference.c.top_score, inference.c.uid, (false(),))
        combination = Combination(scan_range, self.names)
        value = compute_metres(self.to, combination).double
        assert combination.uid is not None, "a coordinate leads"
        return Rows(value, combination.uid, tuple(combination.where))

    def is_missing(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        """Test whether the inference with this uid has no location."""
        if self._nowhere:
            return true()
        combination = Combination(scan_range, self.names, uid)
        combination.coordinates()
        return ~combination.exists()
