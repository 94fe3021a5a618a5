"""A legal hold, as it is stored."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, or_

from inference_store.index.tables import hold

State = Literal["in_force", "ended", "released"]
ERASED: Final = "erased"
"""What replaces a value that an erasure removed, before its keyed hash."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold: what it protects, why and until when, and who placed and released it.

    `model` None: every model, also those to come. `filter`: in the form of `filters.saved`.
    """

    id: UUID
    name: str
    reason: str
    model: int | None
    filter: str
    inference_ids: tuple[str, ...] | None
    until: datetime | None
    placed_by: str
    placed_at: datetime
    in_force_at: datetime
    released_by: str | None
    released_at: datetime | None
    release_reason: str | None
    revision: int

    @property
    def is_redacted(self) -> bool:
        """Check whether an erasure removed its filter."""
        return self.filter.startswith(ERASED)

    def state(self, now: datetime) -> State:
        """Return whether it protects anything: until it is released, or `until` has passed."""
        if self.released_at is not None:
            return "released"
        return "ended" if self.until is not None and self.until <= now else "in_force"


def read_hold(row: Any) -> Hold:
    """Return the Hold of a row of the table."""
    values = {field.name: getattr(row, field.name) for field in fields(Hold)}
    ids = values["inference_ids"]
    return Hold(**values | {"inference_ids": None if ids is None else tuple(ids)})


def is_in_force() -> ColumnElement[bool]:
    """Return the condition of the holds that protect something now."""
    here = hold.c
    return and_(here.released_at.is_(None), or_(here.until.is_(None), here.until > func.now()))
