"""Certain matches: the predicate is TRUE, whatever data of the inference the index lacks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, FromClause, Text, literal, not_, or_

from inference_store.index.tables import inference
from inference_store.query.filters.certain import FLAGS, Doubts, find_doubts, make_certain
from inference_store.query.filters.typed import Predicate
from inference_store.query.scan_range import ScanRange

from .compiled import compile_condition
from .condition import Condition, exists, row_at_hand
from .logic import combine_all, combine_either
from .names import Names


@dataclass(frozen=True, slots=True)
class NotAllOf:
    """At least one of these parts of the inference is not in doubt."""

    doubts: Doubts
    kind: str = "flags"
    unique: bool = True
    scans: int = 0

    def uids(self, scan_range: ScanRange) -> None:  # noqa: ARG002  (nearly all satisfy it)
        return None

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        row = row_at_hand(uid, inference)
        if row is not None:
            return self._of(row)
        row = inference.alias("flagged")
        return exists([row], scan_range.of(row), row.c.uid == uid, self._of(row))

    def _of(self, row: FromClause) -> ColumnElement[bool]:
        return or_(*(not_(test_flags(row, FLAGS[doubt])) for doubt in sorted(self.doubts)))


def test_flags(row: FromClause, flags: tuple[str, ...]) -> ColumnElement[bool]:
    """Test whether a row of `inference` has one of these flags."""
    some = literal(list(flags), ARRAY(Text(collation="C")))
    overlaps: ColumnElement[bool] = row.c.flags.overlap(some)
    return overlaps


def compile_certain(predicate: Predicate, names: Names) -> Condition:
    """Return the condition that the predicate is true, whatever the index lacks."""
    parts = [compile_condition(predicate, names)]
    for doubts in _iterate_subsets(find_doubts(predicate)):
        sure = make_certain(predicate, doubts)
        if sure != predicate:
            parts.append(combine_either([compile_condition(sure, names), NotAllOf(doubts)]))
    return combine_all(parts)


def _iterate_subsets(doubts: Doubts) -> Iterator[Doubts]:
    """Yield every set of doubts that an inference may have."""
    sizes = range(1, len(doubts) + 1)
    subsets = chain.from_iterable(combinations(sorted(doubts), size) for size in sizes)
    return (frozenset(subset) for subset in subsets)
