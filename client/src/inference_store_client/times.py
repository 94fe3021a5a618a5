"""Instants and durations: as they are given, and as the API takes them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from inference_store_client.errors import FilterError, SettingsError

Time: TypeAlias = datetime | timedelta | str
"""A `datetime` with a time zone, RFC 3339, or a date; or how long ago: a `timedelta`, `7d`."""
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO: Final = re.compile(r"-?(\d{1,6})([smhdw])", re.ASCII)
# Without the hour 24, which Python 3.14 reads as midnight of the next day.
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[Tt ]((?!24)\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-]\d\d:\d\d))?)?",
    re.ASCII,
)


def read_time(time: Time) -> datetime:
    """Return the instant that is meant. Raises SettingsError for a text that names none."""
    if isinstance(time, datetime):
        require_zone(time)
        return time
    try:
        if isinstance(time, timedelta):
            return datetime.now(UTC) - time
        if ago := _AGO.fullmatch(time.strip()):
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return read_instant(time)
    except (ValueError, OverflowError):
        example = "2026-11-01, 2026-11-01T12:00:00Z, 30m, 12h or 7d"
        raise SettingsError(f"{time!r} is not a time: write {example}") from None


def read_instant(text: str) -> datetime:
    """Return an instant in UTC, to the microsecond; without an offset it is UTC. Raises
    ValueError."""
    match = _RFC_3339.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a timestamp")
    date, time, fraction, offset = match.groups()
    spelled = f"{date}T{time or '00:00:00'}.{(fraction or '')[:6]:0<6}{offset or '+00:00'}"
    return datetime.fromisoformat(spelled).astimezone(UTC)


def format_instant(at: datetime) -> str:
    """Return an instant in RFC 3339. Raises FilterError for a `datetime` without a time zone."""
    require_zone(at)
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def require_zone(at: datetime) -> None:
    """Raise FilterError for a `datetime` without a time zone."""
    if at.tzinfo is None:
        raise FilterError(
            f"{at!r} has no time zone, so it is no instant: datetime(…, tzinfo=UTC), or"
            " .astimezone() for the time of this machine"
        )


def format_duration(duration: timedelta) -> str:
    """Return a duration in ISO 8601, in seconds: `PT86400S`. Raises FilterError if negative."""
    if duration < timedelta(0):
        raise FilterError("a duration is not negative: in a filter, subtract it instead")
    seconds, rest = divmod(duration // timedelta(microseconds=1), 1_000_000)
    fraction = f".{rest:06}".rstrip("0") if rest else ""
    return f"PT{seconds}{fraction}S"
