"""Logs one line instead of many equal ones: aiokafka logs an unavailable broker 50 times a
second."""

import logging
import time

_EVERY_SECONDS = 30.0


class LogThrottle(logging.Filter):
    """Passes each kind of message of a library once in 30 s."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record passes. The kinds are the library's own, so they are few."""
        now, kind = time.monotonic(), str(record.msg)
        if now - self._logged_at.get(kind, -_EVERY_SECONDS) < _EVERY_SECONDS:
            return False
        self._logged_at[kind] = now
        return True


def throttle_logs(library: str) -> None:
    """Add the filter to every logger of a library: filters are not inherited."""
    for name in list(logging.root.manager.loggerDict):
        if name == library or name.startswith(f"{library}."):
            logger = logging.getLogger(name)
            if not any(isinstance(filter, LogThrottle) for filter in logger.filters):
                logger.addFilter(LogThrottle())
