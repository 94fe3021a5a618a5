"""What an inference is asked to satisfy, in SQL: as a list of uids, and as a test of one uid.

A list comes from an index and leads a query; a test is made of inferences that something else
found. Every condition has a test, not every one a list.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from sqlalchemy import ColumnElement, Select, any_, select, union
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.store.operators import Operator
from inference_store.store.tables import (
    SIDE_TABLES,
    inference,
    inference_alias,
    metadata_presence,
    prediction,
)

from .operand import Bound, compare
from .scope import Scope

Uids = Select[Any] | CompoundSelect[Any]


class Condition(Protocol):
    """One condition."""

    # as metrics name it: one of a short list
    kind: ClassVar[str]

    @property
    def unique(self) -> bool:
        """Whether its list names each inference once."""

    def uids(self, scope: Scope) -> Uids | None:
        """The inferences that satisfy it; None: no index leads to them."""

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        """Whether the inference by this uid, which lies in the scope, satisfies it."""


def _rows(scope: Scope, table: Any, key: int) -> Select[Any]:
    return select(table.c.uid).where(scope.of(table), table.c.key == key)


@dataclass(frozen=True, slots=True)
class Compared:
    """A metadata key compared with a value of one family."""

    kind: ClassVar[str] = "metadata"
    key: int
    many: bool
    operator: Operator
    bound: Bound

    @property
    def unique(self) -> bool:
        return not self.many or self.operator.name in {"eq", "not_in"}

    def uids(self, scope: Scope) -> Uids:
        table = SIDE_TABLES[self.bound.family]
        rows = _rows(scope, table, self.key)
        hit = compare(self.operator, self.bound, table)
        if self.operator.holds_for == "some":
            return rows.where(hit)
        return rows.except_(rows.where(hit)) if self.many else rows.where(~hit)

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        table = SIDE_TABLES[self.bound.family].alias()
        here = _rows(scope, table, self.key).where(table.c.uid == uid)
        hit = here.where(compare(self.operator, self.bound, table)).exists()
        return hit if self.operator.holds_for == "some" else here.exists() & ~hit


@dataclass(frozen=True, slots=True)
class Sent:
    """A metadata key was sent, or was not."""

    kind: ClassVar[str] = "metadata"
    key: int
    sent: bool
    unique: bool = True

    def uids(self, scope: Scope) -> Uids | None:
        if not self.sent:
            return None
        return union(*(_rows(scope, table, self.key) for table in _SENT))

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        found = [
            _rows(scope, table, self.key).where(table.c.uid == uid).exists()
            for table in (each.alias() for each in _SENT)
        ]
        some = found[0]
        for other in found[1:]:
            some = some | other  # type: ignore[assignment]
        return some if self.sent else ~some


_SENT = (*SIDE_TABLES.values(), metadata_presence)


@dataclass(frozen=True, slots=True)
class Named:
    """The inference's id, or one of its aliases, is one of these."""

    kind: ClassVar[str] = "id"
    ids: Any
    unique: bool = True

    def uids(self, scope: Scope) -> Uids:
        own, alias = inference, inference_alias
        return union(
            select(own.c.uid).where(scope.of(own), own.c.inference_id == any_(self.ids)),
            select(alias.c.uid).where(scope.of(alias), alias.c.alias == any_(self.ids)),
        )

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        own, alias = inference.alias(), inference_alias.alias()
        mine = select(own.c.uid).where(
            scope.of(own), own.c.uid == uid, own.c.inference_id == any_(self.ids)
        )
        other = select(alias.c.uid).where(
            scope.of(alias), alias.c.uid == uid, alias.c.alias == any_(self.ids)
        )
        return mine.exists() | other.exists()


@dataclass(frozen=True, slots=True)
class Hashed:
    """The datum's hash is one of these."""

    kind: ClassVar[str] = "hash"
    hashes: Any
    unique: bool = True

    def uids(self, scope: Scope) -> Uids:
        return select(inference.c.uid).where(
            scope.of(inference), inference.c.data_hash == any_(self.hashes)
        )

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        own = inference.alias()
        hashed = own.c.data_hash == any_(self.hashes)
        return select(own.c.uid).where(scope.of(own), own.c.uid == uid, hashed).exists()


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The request went well, or did not; unknown is neither."""

    kind: ClassVar[str] = "ok"
    ok: bool
    unique: bool = True

    def uids(self, scope: Scope) -> None:  # noqa: ARG002  (no index leads to them)
        return None

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        own = inference.alias()
        return (
            select(own.c.uid).where(scope.of(own), own.c.uid == uid, own.c.ok.is_(self.ok)).exists()
        )


@dataclass(frozen=True, slots=True)
class Predicted:
    """Some prediction has one of these labels and a score in these bounds, both at once."""

    kind: ClassVar[str] = "prediction"
    labels: Any | None
    scores: tuple[tuple[Operator, Any], ...] = ()
    unique: bool = False

    def _tests(self, table: Any) -> list[ColumnElement[bool]]:
        tests = [operator.row(table.c.score, score) for operator, score in self.scores]
        return tests if self.labels is None else [table.c.label == any_(self.labels), *tests]

    def uids(self, scope: Scope) -> Uids | None:
        if self.labels is None:
            return None
        return select(prediction.c.uid).where(scope.of(prediction), *self._tests(prediction))

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        table = prediction.alias()
        here = select(table.c.uid).where(scope.of(table), table.c.uid == uid)
        return here.where(*self._tests(table)).exists()
