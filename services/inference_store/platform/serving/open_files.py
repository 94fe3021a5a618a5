"""How many connections the limit on open files leaves room for."""

import resource
from typing import Final

import structlog

# For Postgres, Kafka, the object store, logs and files.
_RESERVED: Final = 256
_log = structlog.get_logger()


def connections_within(wanted: int, *, shares: int = 1) -> int:
    """As many as are wanted, or as one of `shares` of the files that may be open allows; the soft
    limit is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return wanted
    room = max(1, (hard - _RESERVED) // shares)
    if room < wanted:
        told = {"open_files": hard, "connections": room, "wanted": wanted}
        _log.warning("few open files allowed", action="connections_lowered", **told)
    return min(wanted, room)
