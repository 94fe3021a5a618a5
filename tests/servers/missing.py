"""Servers that this machine lacks, and what the end of a run says about them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from .versions import MissingServer, servers_are_required

MISSING: dict[str, str] = {}
"""The sentence that says why a server is missing, by server; filled as servers are needed."""

NOT_RUN: set[str] = set()
"""The ids of the tests that were skipped for a missing server."""


def demand(server: str, find: Callable[[], Path]) -> bool:
    """Return whether the real server is available. Fails the test if servers are required."""
    reason = _why_missing(server, find)
    if reason and servers_are_required():
        pytest.fail(f"{server} is required here: {reason}", pytrace=False)
    return not reason


@cache
def _why_missing(server: str, find: Callable[[], Path]) -> str:
    try:
        find()
    except MissingServer as exc:
        MISSING[server] = str(exc)
    return MISSING.get(server, "")


def sentences() -> list[str]:
    """Return one sentence for each missing server, and one for the tests that did not run."""
    lines = [
        f"The real {server} was not used: {reason}. What can, ran without it."
        for server, reason in sorted(MISSING.items())
    ]
    if NOT_RUN:
        lines.append(f"{len(NOT_RUN)} tests that need a missing server were not run.")
    return lines
