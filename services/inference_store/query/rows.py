"""The rows that an order sorts."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement


@dataclass(frozen=True, slots=True)
class Rows:
    """The values in a range: one for each inference, never NULL."""

    value: ColumnElement[Any]
    uid: ColumnElement[Any]
    where: tuple[ColumnElement[bool], ...]
