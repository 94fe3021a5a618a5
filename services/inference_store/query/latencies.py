"""The parts of the time that an inference took, in milliseconds."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

_MICROSECOND: Final = timedelta(microseconds=1)
LATENCIES: Final[Mapping[str, tuple[str, str]]] = {
    "pre_ms": ("received_at", "forwarded_at"),
    "model_ms": ("forwarded_at", "responded_at"),
    "post_ms": ("responded_at", "published_at"),
}
"""The columns that each begins and ends with."""


def compute_latency(row: Mapping[str, Any], name: str) -> float | None:
    """Return a latency in milliseconds; None if it did not begin or end."""
    start, end = (row[column] for column in LATENCIES[name])
    return None if start is None or end is None else (end - start) / _MICROSECOND / 1000
