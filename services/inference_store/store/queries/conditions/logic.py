"""Conditions of conditions: all of them, one of them, neither of two."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from sqlalchemy import ColumnElement, and_, intersect, or_, select, union

from inference_store.store.queries.scope import Scope
from inference_store.store.tables import inference

from .condition import EVERYTHING, MOST_SCANS, NOTHING, Condition, Uids
from .spans import Received


@dataclass(frozen=True, slots=True)
class All:
    """Every one of them. Spans of time narrow where the others look."""

    parts: tuple[Condition, ...]
    kind: str = "all"

    @property
    def unique(self) -> bool:
        leading = self._leading
        return len(leading) != 1 or leading[0].unique

    @property
    def scans(self) -> int:
        return sum(part.scans for part in self._leading) or (1 if any(self._spans) else 0)

    @property
    def _spans(self) -> list[Received]:
        return [part for part in self.parts if isinstance(part, Received)]

    @property
    def _leading(self) -> list[Condition]:
        """Those whose lists are intersected: as many as may be scanned."""
        leading: list[Condition] = []
        left = MOST_SCANS
        for part in self.parts:
            if not isinstance(part, Received) and 0 < part.scans <= left:
                leading.append(part)
                left -= part.scans
        return leading

    def uids(self, scope: Scope) -> Uids | None:
        here = reduce(lambda found, span: span.narrow(found), self._spans, scope)
        leading = self._leading
        tested = [part for part in self.parts if part not in leading]
        if not leading and not self._spans:
            return None
        if not leading:
            rows = select(inference.c.uid).where(here.of(inference))
            return rows.where(*_tests(tested, here, inference.c.uid))
        lists = [uids for part in leading if (uids := part.uids(here)) is not None]
        found = (intersect(*lists) if len(lists) > 1 else lists[0]).subquery()
        [uid] = found.c
        return select(uid).where(*_tests(tested, here, uid))

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return and_(*(part.holds(scope, uid) for part in self.parts))


def _tests(
    parts: list[Condition], scope: Scope, uid: ColumnElement[Any]
) -> Iterator[ColumnElement[bool]]:
    return (part.holds(scope, uid) for part in parts if not isinstance(part, Received))


@dataclass(frozen=True, slots=True)
class Either:
    """One of them."""

    parts: tuple[Condition, ...]
    kind: str = "either"
    unique: bool = True

    @property
    def scans(self) -> int:
        scans = [part.scans for part in self.parts]
        return 0 if 0 in scans or sum(scans) > MOST_SCANS else sum(scans)

    def uids(self, scope: Scope) -> Uids | None:
        if not self.scans:
            return None
        return union(*(uids for part in self.parts if (uids := part.uids(scope)) is not None))

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return or_(*(part.holds(scope, uid) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Neither:
    """None of them."""

    parts: tuple[Condition, ...]
    kind: str = "neither"
    unique: bool = True
    scans: int = 0

    def uids(self, scope: Scope) -> None:  # noqa: ARG002  (no index leads to them)
        return None

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return ~or_(*(part.holds(scope, uid) for part in self.parts))


def all_of(parts: list[Condition]) -> Condition:
    """Every one of them, without what changes nothing."""
    found: list[Condition] = []
    for part in parts:
        found += part.parts if isinstance(part, All) else [part]
    found = [part for part in found if part != EVERYTHING]
    if NOTHING in found:
        return NOTHING
    return All(tuple(found)) if len(found) > 1 else (found or [EVERYTHING])[0]


def either_of(parts: list[Condition]) -> Condition:
    """One of them, without what changes nothing."""
    found: list[Condition] = []
    for part in parts:
        found += part.parts if isinstance(part, Either) else [part]
    found = [part for part in found if part != NOTHING]
    if EVERYTHING in found:
        return EVERYTHING
    return Either(tuple(found)) if len(found) > 1 else (found or [NOTHING])[0]
