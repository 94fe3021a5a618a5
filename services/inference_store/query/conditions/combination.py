"""One combination of an inference's values: the rows that hold them, as FROM and WHERE."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, Table, and_, select, true, union_all
from sqlalchemy.sql.elements import Grouping

from inference_store.index.tables import (
    SIDE_TABLES,
    inference,
    inference_alias,
    metadata_number,
    prediction,
)
from inference_store.inference.metadata import COORDINATES
from inference_store.query.filters.typed import Metadata
from inference_store.query.scan_range import ScanRange

from .condition import exists, row_at_hand
from .names import Names


class Combination:
    """Rows of one inference, by its uid; without one the first row that is added drives."""

    def __init__(
        self, scan_range: ScanRange, names: Names, uid: ColumnElement[Any] | None = None
    ) -> None:
        self.scan_range = scan_range
        self.names = names
        self.uid = uid
        self.froms: list[FromClause] = []
        self.where: list[ColumnElement[bool]] = []
        self._rows: dict[str, FromClause] = {}

    def take(self, table: FromClause, *where: ColumnElement[bool]) -> FromClause:
        """Add a row of the same inference."""
        here = [] if self.uid is None else [table.c.uid == self.uid]
        self.where += [*where, *here]
        self.froms.append(table)
        self.uid = table.c.uid if self.uid is None else self.uid
        return table

    def metadata(self, of: Metadata) -> FromClause:
        """Add a row of one value of the key; for a key with a single value, the same row again."""
        assert of.key is not None, "a key that no inference has is decided before there is any SQL"
        table, key = SIDE_TABLES[of.kind], of.key
        if of.many:
            return self._value_of(table, key)
        return self._once(f"{of.kind} {key}", lambda: self._value_of(table, key))

    def _value_of(self, table: Table, key: int) -> FromClause:
        row = table.alias()
        return self.take(row, self.scan_range.of(row), row.c.key == self.names.key(key))

    def own(self) -> FromClause:
        """Return the row of `inference`: the present one, if there is one."""
        return self._once("own", lambda: self._at_hand_or(inference))

    def prediction(self) -> FromClause:
        """Return the present row of `prediction`."""
        row = row_at_hand(self.uid, prediction)
        assert row is not None, "a column of a prediction stands inside prediction()"
        return row

    def id(self) -> FromClause:
        """Add a row of one of the inference's ids."""
        own, other, scan_range = inference.alias(), inference_alias.alias(), self.scan_range
        ids = union_all(
            select(own.c.uid, own.c.inference_id.label("value")).where(scan_range.of(own)),
            select(other.c.uid, other.c.alias).where(scan_range.of(other)),
        ).subquery()
        return self.take(ids)

    def coordinates(self) -> Mapping[str, ColumnElement[Any]]:
        """Return `longitude` and `latitude`, both on the map."""
        return {name: self._coordinate(name) for name in COORDINATES}

    def _coordinate(self, name: str) -> ColumnElement[Any]:
        def row() -> FromClause:
            value_row = self._value_of(metadata_number, self.names.coordinates[name])
            most = COORDINATES[name]
            low, high = self.names.number(-most), self.names.number(most)
            self.where.append(value_row.c.value.between(low, high))
            return value_row

        value: ColumnElement[Any] = self._once(name, row).c.value
        return value

    def _at_hand_or(self, table: Table) -> FromClause:
        row = row_at_hand(self.uid, table)
        if row is not None:
            return row
        other = table.alias()
        return self.take(other, self.scan_range.of(other))

    def _once(self, name: str, row: Any) -> FromClause:
        if name not in self._rows:
            self._rows[name] = row()
        return self._rows[name]

    def exists(self, *where: ColumnElement[bool], one_by_one: bool = False) -> ColumnElement[bool]:
        """Test whether there is such a combination for which this is true; see `exists`."""
        if self.froms:
            return exists(self.froms, *self.where, *where, one_by_one=one_by_one)
        # the brackets: IS binds more tightly than NOT
        return Grouping(and_(true(), *self.where, *where)).is_(true())

    def uids(self, *where: ColumnElement[bool]) -> Select[Any]:
        """Select the inferences that have such a combination, as often as they have one."""
        assert self.uid is not None, "no row drives"
        return select(self.uid.label("uid")).select_from(*self.froms).where(*self.where, *where)
