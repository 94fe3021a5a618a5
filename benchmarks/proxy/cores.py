"""Chooses who runs on which core: the one that is measured has one to itself."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CoreSets:
    """Cores of each part. With two cores the servers share the load's."""

    measured: frozenset[int]
    load: frozenset[int]
    servers: frozenset[int]


def choose_cores() -> CoreSets:
    """Divide the cores that we may use: the first is the measured one's. Ends where there is
    one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("bench-proxy needs two cores: one for the proxy, one for all else")
    first, *others = cores
    servers = others[2:] or others
    return CoreSets(frozenset({first}), frozenset(others[:2]), frozenset(servers))


def pin(pids: Iterable[int], cores: Iterable[int], *, idle: bool = False) -> None:
    """Pin processes with all their threads; `idle`: they run only where nobody else wants to.

    Threads that they start later are placed as the ones that start them.
    """
    allowed = set(cores)
    for pid in pids:
        if idle:
            _behind_other_sessions(pid)
        for thread in _threads(pid):
            try:
                os.sched_setaffinity(thread, allowed)
                if idle:
                    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            except ProcessLookupError:
                continue


def _behind_other_sessions(pid: int) -> None:
    """Let other sessions go first: where Linux shares a core between sessions first, a priority
    counts inside its session."""
    with suppress(OSError):  # there are no such groups, or it was asked twice within a moment
        Path(f"/proc/{pid}/autogroup").write_text("19")


def _threads(pid: int) -> list[int]:
    try:
        return [int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:
        return []
