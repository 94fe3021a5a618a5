"""Scan ranges: one model, and a half-open range of uids, which is a span of time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, FromClause, and_, bindparam, select
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.partitions import spans
from inference_store.index.prepared import Prepared
from inference_store.index.tables import erasing
from inference_store.inference.events.uid import uid_floor

from .operand import bind_one

# Planning costs grow with partitions, and 200 at once exhaust the lock table.
GROUP = 8
LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
Range: TypeAlias = tuple[UUID, UUID]
"""Uids, half-open."""


@dataclass(frozen=True, slots=True)
class ScanRange:
    """A model's uids in [lo, hi)."""

    model: int
    lo: UUID
    hi: UUID
    # bound once, however many tables it is set on: a statement has 32,767 parameters at most
    _bound: list[Any] = field(default_factory=list, init=False, compare=False, repr=False)

    def of(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition on a table's rows; it is set on every table, so that planning prunes
        it."""
        if not self._bound:
            uid = UUID_TYPE(as_uuid=True)
            self._bound.extend(
                (bind_one(self.model, INTEGER()), bind_one(self.lo, uid), bind_one(self.hi, uid))
            )
        model, lo, hi = self._bound
        return and_(table.c.model == model, table.c.uid >= lo, table.c.uid < hi)

    def clip(self, lo: UUID, hi: UUID) -> "ScanRange":
        """Return the part of it in [lo, hi)."""
        return ScanRange(self.model, max(self.lo, lo), min(self.hi, hi))

    @property
    def empty(self) -> bool:
        """Whether no uid can be in it."""
        return self.lo >= self.hi


def range_of_time(model: int, since: datetime | None, until: datetime | None) -> ScanRange:
    """Return the range of [since, until)."""
    lo = LOWEST if since is None else uid_floor(since)
    return ScanRange(model, lo, HIGHEST if until is None else uid_floor(until))


async def find_pieces_of(
    connection: AsyncConnection, scan_range: ScanRange, *, newest_first: bool, closed: bool = False
) -> list[ScanRange]:
    """Cut the range into the partitions' spans, in the order in which they are searched.

    `closed`: those that are being dropped as well.
    """
    return cut_range(
        scan_range, await find_ranges(connection, closed=closed), newest_first=newest_first
    )


async def find_ranges(connection: AsyncConnection, *, closed: bool = False) -> list[Range]:
    """Return the spans as ranges of uids, the newest first."""
    known = await spans(connection, closed=closed)
    return [(uid_floor(span.lo), uid_floor(span.hi)) for span in known]


def cut_range(
    scan_range: ScanRange, known: Sequence[Range], *, newest_first: bool
) -> list[ScanRange]:
    """Cut the range into these ranges, which come the newest first."""
    found = [piece for each in known if not (piece := scan_range.clip(*each)).empty]
    return found if newest_first else found[::-1]


def split_groups(found: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield so many pieces at once."""
    for start in range(0, len(found), size):
        yield found[start : start + size]


def take_unbroken(found: Sequence[ScanRange], size: int = GROUP) -> Sequence[ScanRange]:
    """Return the first pieces that adjoin, so many at most.

    In a hole there may be a partition that is being dropped, whose rows nobody may see.
    """
    for index in range(1, min(size, len(found))):
        before, after = found[index - 1], found[index]
        if before.lo != after.hi and before.hi != after.lo:
            return found[:index]
    return found[:size]


def split_unbroken(found: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield so many pieces at once, never across a hole: `span_around` them is nothing else."""
    while found:
        group = take_unbroken(found, size)
        yield group
        found = found[len(group) :]


def split_growing(found: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield one piece, then two, then more, up to so many at once: mostly the first ones
    suffice."""
    start, some = 0, 1
    while start < len(found):
        yield found[start : start + some]
        start, some = start + some, min(2 * some, size)


def span_around(found: Sequence[ScanRange]) -> ScanRange:
    """Return the range from the earliest to the latest of several pieces, with the holes between
    them."""
    return ScanRange(found[0].model, min(s.lo for s in found), max(s.hi for s in found))


async def has_marks(connection: AsyncConnection, model: int) -> bool:
    """Whether any of its inferences is being erased; mostly not, and then no query tests it."""
    return bool(await _select_first_mark().fetch(connection, {"of": model}))


@cache
def _select_first_mark() -> Prepared:
    here = erasing.c
    mine = here.model == bindparam("of", type_=INTEGER())
    return Prepared(select(here.uid).where(mine, here.scope == "inference").limit(1))


def test_unmarked(scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
    """Test that the inference is not being erased."""
    mark = select(erasing.c.uid).where(
        scan_range.of(erasing), erasing.c.uid == uid, erasing.c.scope == "inference"
    )
    return ~mark.exists()
