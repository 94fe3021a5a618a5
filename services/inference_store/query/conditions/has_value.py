"""The condition that a value exists."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement

from inference_store.query.filters.typed import Value
from inference_store.query.scan_range import ScanRange

from .combination import Combination
from .condition import Uids
from .names import Names
from .values import build_side


@dataclass(frozen=True, slots=True)
class HasValue:
    """The value exists, or it is NULL. For a metadata key itself, see `OfKey`."""

    of: Value
    when: bool
    names: Names
    kind: str = "property"
    unique: bool = True
    scans: int = 0

    def uids(self, scan_range: ScanRange) -> Uids | None:  # noqa: ARG002
        return None

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        rows = Combination(scan_range, self.names, uid)
        side = build_side(self.of, rows)
        has_value = rows.exists(*([side.sql.is_not(None)] if side.nullable else []))
        return has_value if self.when else ~has_value
