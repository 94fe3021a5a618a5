"""Literal values."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from inference_store.inference.json_text import storable
from inference_store.inference.metadata import MetadataCaps
from inference_store.query.cql2.tree import Instant, Scalar
from inference_store.query.filters.digits import written
from inference_store.query.filters.filter_check import FilterCheck
from inference_store.query.filters.refusals import meaningless
from inference_store.query.filters.typed import Constant, Kind

_CAPS: Final = MetadataCaps()


def kind_of(scalar: Scalar) -> Kind:
    """Return the kind of a literal."""
    if isinstance(scalar.value, bool):
        return "bool"
    return "string" if isinstance(scalar.value, str) else "number"


def constant(scalar: Scalar, checking: FilterCheck) -> Constant:
    """Return the value of a literal. Raises InvalidFilter if no stored value can equal it."""
    stood = scalar.value
    if isinstance(stood, str) and not storable(stood):
        message = "the text holds NUL or a lone surrogate, and no stored text does"
        raise meaningless(scalar, checking.source, message)
    if isinstance(stood, Decimal):
        most = _CAPS.digits + _CAPS.exponent
        if not stood.is_finite() or max(written(stood)) > most:
            message = f"a number has at most {most} digits on either side of the point"
            raise meaningless(scalar, checking.source, message)
    return Constant(kind_of(scalar), stood)


def instant(node: Instant) -> datetime:
    """Return the instant in UTC; for a date, its midnight."""
    if isinstance(node.value, datetime):
        return node.value.astimezone(UTC)
    return datetime(node.value.year, node.value.month, node.value.day, tzinfo=UTC)
