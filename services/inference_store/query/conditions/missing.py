"""The condition that there is any value at all."""

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
class Valued:
    """The value, of anything but a metadata key itself, exists; or it is NULL."""

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
        found = rows.exists(*([side.sql.is_not(None)] if side.nullable else []))
        return found if self.when else ~found
