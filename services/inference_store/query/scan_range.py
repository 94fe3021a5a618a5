"""Scan ranges: one model, and a half-open range of uids, which is a span of time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, FromClause, and_, bindparam, select
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.index.partitions import list_partitions
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import erasing
from inference_store.inference.events.event import uid_floor


def bind_one(value: Any, kind: TypeEngine[Any]) -> Any:
    """Return one value as a parameter."""
    return bindparam(None, value, type_=kind, unique=True)


def bind_many(values: Any, kind: TypeEngine[Any]) -> Any:
    """Return a list as one parameter: the protocol allows 32,767 of them."""
    return bindparam(None, list(values), type_=ARRAY(kind), unique=True)


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
        """Return the condition on a table's rows. Every table gets it, so that the planner prunes
        partitions."""
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
        """Check whether it can contain no uid."""
        return self.lo >= self.hi


def range_of_time(model: int, since: datetime | None, until: datetime | None) -> ScanRange:
    """Return the range of [since, until)."""
    lo = LOWEST if since is None else uid_floor(since)
    return ScanRange(model, lo, HIGHEST if until is None else uid_floor(until))


async def find_pieces_of(
    connection: AsyncConnection, scan_range: ScanRange, *, newest_first: bool, closed: bool = False
) -> list[ScanRange]:
    """Cut the range into the partitions' spans, in the order in which they are searched.

    `closed`: also the spans that are being dropped.
    """
    return cut_range(
        scan_range, await find_ranges(connection, closed=closed), newest_first=newest_first
    )


async def find_ranges(connection: AsyncConnection, *, closed: bool = False) -> list[Range]:
    """Return the spans as ranges of uids, the newest first."""
    partitions = await list_partitions(connection, closed=closed)
    return [(uid_floor(span.lo), uid_floor(span.hi)) for span in partitions]


def cut_range(
    scan_range: ScanRange, ranges: Sequence[Range], *, newest_first: bool
) -> list[ScanRange]:
    """Cut the range by these ranges, which are given newest first."""
    pieces = [piece for bounds in ranges if not (piece := scan_range.clip(*bounds)).empty]
    return pieces if newest_first else pieces[::-1]


def split_groups(pieces: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield the pieces in groups of `size`."""
    for start in range(0, len(pieces), size):
        yield pieces[start : start + size]


def take_unbroken(pieces: Sequence[ScanRange], size: int = GROUP) -> Sequence[ScanRange]:
    """Return the first pieces that adjoin, at most `size`.

    In a hole there may be a partition that is being dropped, whose rows nobody may see.
    """
    for index in range(1, min(size, len(pieces))):
        before, after = pieces[index - 1], pieces[index]
        if before.lo != after.hi and before.hi != after.lo:
            return pieces[:index]
    return pieces[:size]


def split_unbroken(pieces: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield groups of at most `size` adjoining pieces: `span_around` a group has no hole."""
    while pieces:
        group = take_unbroken(pieces, size)
        yield group
        pieces = pieces[len(group) :]


def split_growing(pieces: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield one piece, then two, then more, up to `size`: the first ones usually suffice."""
    start, some = 0, 1
    while start < len(pieces):
        yield pieces[start : start + some]
        start, some = start + some, min(2 * some, size)


def span_around(pieces: Sequence[ScanRange]) -> ScanRange:
    """Return the range from the earliest to the latest of several pieces, with the holes between
    them."""
    return ScanRange(pieces[0].model, min(s.lo for s in pieces), max(s.hi for s in pieces))


async def has_marks(connection: AsyncConnection, model: int) -> bool:
    """Check whether any of its inferences is being erased; if not, no query tests for it."""
    return bool(await _select_first_mark().fetch(connection, {"of": model}))


@cache
def _select_first_mark() -> PreparedStatement:
    here = erasing.c
    mine = here.model == bindparam("of", type_=INTEGER())
    return PreparedStatement(select(here.uid).where(mine, here.scope == "inference").limit(1))


def test_unmarked(scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
    """Test that the inference is not being erased."""
    mark = select(erasing.c.uid).where(
        scan_range.of(erasing), erasing.c.uid == uid, erasing.c.scope == "inference"
    )
    return ~mark.exists()
