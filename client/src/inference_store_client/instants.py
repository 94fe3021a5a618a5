"""Instants and durations, as the API takes them."""

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from .errors import FilterError

Instant: TypeAlias = datetime | str
"""A `datetime` with a time zone, or RFC 3339."""


def format_instant(at: Instant) -> str:
    """Return an instant in RFC 3339. Raises FilterError for a `datetime` without a time zone."""
    if isinstance(at, str):
        return at
    if at.tzinfo is None:
        raise FilterError(
            f"{at!r} has no time zone, so it is no instant: datetime(…, tzinfo=UTC), or"
            " .astimezone() for the time of this machine"
        )
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def format_duration(duration: timedelta) -> str:
    """Return a duration in ISO 8601, in seconds: `PT86400S`."""
    seconds = f"{duration / timedelta(seconds=1):.6f}".rstrip("0").rstrip(".")
    return f"PT{seconds}S"
