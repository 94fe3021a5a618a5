"""The rows that an order is of."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the values of a range are: one an inference, that of the order, and never NULL."""

    value: ColumnElement[Any]
    uid: ColumnElement[Any]
    where: tuple[ColumnElement[bool], ...]
