"""The number of connections that the limit on open files allows."""

import resource
from typing import Final

import structlog

# For Postgres, Kafka, the object store, logs and files.
_RESERVED: Final = 256
_log = structlog.get_logger()


def connections_within(requested: int, *, shares: int = 1) -> int:
    """Return the connections requested, or fewer if one of `shares` of the open files allows no
    more; raises the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return requested
    room = max(1, (hard - _RESERVED) // shares)
    if room < requested:
        fields = {"open_files": hard, "connections": room, "wanted": requested}
        _log.warning("few open files allowed", action="connections_lowered", **fields)
    return min(requested, room)
