"""Comparisons of the time received, and of the uid: they narrow the range, as uids sort by time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, select
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE

from inference_store.index.tables import inference
from inference_store.inference.events.event import HIGHEST as LATEST
from inference_store.inference.events.event import uid_floor
from inference_store.query.filters.typed import Comparison
from inference_store.query.operand import bind_one
from inference_store.query.scan_range import HIGHEST, LOWEST, ScanRange

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Received:
    """The uid is in [lo, hi)."""

    lo: UUID = LOWEST
    hi: UUID = HIGHEST
    kind: str = "time"
    unique: bool = True
    scans: int = 1

    def narrow(self, scan_range: ScanRange) -> ScanRange:
        """Return the part of the range that is in it."""
        return scan_range.clip(self.lo, self.hi)

    def uids(self, scan_range: ScanRange) -> Select[Any]:
        return select(inference.c.uid).where(self.narrow(scan_range).of(inference))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:  # noqa: ARG002
        kind = UUID_TYPE(as_uuid=True)
        return and_(uid >= bind_one(self.lo, kind), uid < bind_one(self.hi, kind))


def find_time_ranges(op: Comparison, at: datetime) -> list[Received]:
    """Return the ranges in which the comparison of `received_at` holds."""
    begins, ends = uid_floor(at), _ends(at)
    match op:
        case "=":
            return [Received(begins, ends)]
        case "<>":
            return [Received(hi=begins), Received(lo=ends)]
        case "<":
            return [Received(hi=begins)]
        case "<=":
            return [Received(hi=ends)]
        case ">":
            return [Received(lo=ends)]
        case _:
            return [Received(lo=begins)]


def _ends(at: datetime) -> UUID:
    """Return the uid after all those of the instant."""
    return HIGHEST if at >= LATEST else uid_floor(at + _MICROSECOND)


def find_uid_range(text: str) -> list[Received]:
    """Return the range of the uid with this spelling; no range if it is not a uid."""
    try:
        uid = UUID(text)
    except ValueError:
        return []
    return [Received(uid, UUID(int=uid.int + 1))] if str(uid) == text and uid != HIGHEST else []
