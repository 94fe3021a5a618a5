"""aiokafka says the same of a broker that is away 50 times a second: once in a while is enough."""

import logging
import time

_EVERY_SECONDS = 30.0


class Repeats(logging.Filter):
    """Lets each kind of message of a library pass once in 30 s."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one passes. The kinds are the library's own, so they are few."""
        now, kind = time.monotonic(), str(record.msg)
        if now - self._said.get(kind, -_EVERY_SECONDS) < _EVERY_SECONDS:
            return False
        self._said[kind] = now
        return True


def say_less(library: str) -> None:
    """Put the filter on every logger that a library has: filters are not inherited."""
    for name in list(logging.root.manager.loggerDict):
        if name == library or name.startswith(f"{library}."):
            logger = logging.getLogger(name)
            if not any(isinstance(one, Repeats) for one in logger.filters):
                logger.addFilter(Repeats())
