"""Rows in Postgres' own binary COPY form, thousands at once: every field is of one width."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
# 2000-01-01, in microseconds since 1970
_POSTGRES_EPOCH = 946_684_800_000_000
_BASE = 10_000
_NEGATIVE = 0x4000

Column: TypeAlias = np.ndarray[Any, Any]


def rows(count: int, fields: Sequence[Column | None]) -> bytes:
    """`count` rows; a field is an array of that length in network byte order, None for NULL."""
    shape: list[tuple[str, Any]] = [("fields", ">i2")]
    for position, field in enumerate(fields):
        shape.append((f"width{position}", ">i4"))
        if field is not None:
            shape.append((f"field{position}", field.dtype))
    array = np.zeros(count, dtype=shape)
    array["fields"] = len(fields)
    for position, field in enumerate(fields):
        array[f"width{position}"] = -1 if field is None else field.dtype.itemsize
        if field is not None:
            array[f"field{position}"] = field
    return array.tobytes()


def int4(values: Any, count: int | None = None) -> Column:
    """Whole numbers; `count`: one number so many times."""
    return _as(values, ">i4", count)


def int8(values: Column) -> Column:
    return values.astype(">i8")


def float8(values: Column) -> Column:
    return values.astype(">f8")


def boolean(values: Any, count: int | None = None) -> Column:
    return _as(values, "u1", count)


def _as(values: Any, kind: str, count: int | None) -> Column:
    return np.asarray(values).astype(kind) if count is None else np.full(count, values, dtype=kind)


def instant(microseconds: Column) -> Column:
    """Timestamps from microseconds since 1970."""
    return (microseconds - _POSTGRES_EPOCH).astype(">i8")


def numeric(scaled: Column, digits: int) -> Column:
    """Numbers times 10,000, below 10^8; `digits` of them after the point, 0 to 4."""
    array = np.zeros(len(scaled), dtype=[("head", ">i2", (4,)), ("digits", ">i2", (3,))])
    size = np.abs(scaled)
    array["head"] = np.stack(
        [
            np.full(len(scaled), 3),
            np.full(len(scaled), 1),
            np.where(scaled < 0, _NEGATIVE, 0),
            np.full(len(scaled), digits),
        ],
        axis=1,
    )
    whole = size // _BASE
    array["digits"] = np.stack([whole // _BASE, whole % _BASE, size % _BASE], axis=1)
    return array.view("V14").reshape(len(scaled))


def text(values: Column) -> Column:
    """ASCII texts that are all as long as their dtype says."""
    return values.view(f"V{values.dtype.itemsize}")


def constant(value: str, count: int) -> Column:
    """One ASCII text so many times."""
    return text(np.full(count, value.encode()))
