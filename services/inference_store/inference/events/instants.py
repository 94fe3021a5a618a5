"""RFC 3339 times as Go writes them: up to nine fractional digits, any offset."""

import re
from datetime import UTC, datetime, timedelta, timezone

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?"
    r"(?:([Zz])|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
# Go's zero time.Time; everything of year 1 counts as unset.
_UNSET_YEAR = 1


def parse_instant(text: str) -> datetime | None:
    """Return the instant in UTC, floored to microseconds; None for Go's unset time.

    Raises ValueError, with the reason, for anything but RFC 3339.
    """
    usual = text[-1:] == "Z" and text[10:11] == "T" and text[19:20] in ("Z", ".")
    # Python 3.14 reads the hour 24 as midnight of the next day.
    if usual and text[11:13] != "24" and text.isascii():
        try:  # Go's usual form, read in C; digits beyond the sixth are cut off
            at = datetime.fromisoformat(text)
            return None if at.year == _UNSET_YEAR else at
        except ValueError:
            pass
    return _parse_any(text)


def _parse_any(text: str) -> datetime | None:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:64]!r} is not an RFC 3339 time with an offset")
    *calendar, fraction, _zulu, sign, hours, minutes = match.groups()
    year, month, day, hour, minute, second = (int(part) for part in calendar)
    if second == 60:
        raise ValueError(f"{text[:64]!r} is a leap second, which no computer clock here can hold")
    microsecond = int((fraction or "0").ljust(9, "0")[:6])
    offset = _offset(sign, hours, minutes)
    if year == 0:
        return None
    try:
        at = datetime(year, month, day, hour, minute, second, microsecond, tzinfo=offset)
        return None if year == _UNSET_YEAR else at.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise ValueError(f"{text[:64]!r} is not a time: {wrong}") from None


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> timezone:
    if sign is None:
        return UTC
    ahead = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    if int(minutes or 0) > 59 or ahead >= timedelta(hours=24):
        raise ValueError("an offset is less than 24:00")
    return timezone(-ahead if sign == "-" else ahead)
