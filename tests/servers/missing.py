"""What is not on this machine, and what the run says of it at its end."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from .versions import MissingServer, servers_are_required

MISSING: dict[str, str] = {}
"""Server name to the sentence that says why it is missing; filled as servers are asked for."""

NOT_RUN: set[str] = set()
"""The ids of the tests that were skipped for a missing server."""

NOTES: list[str] = []
"""Sentences of tests that could run in more than one way: how they did."""


def demand(server: str, find: Callable[[], Path]) -> bool:
    """Whether the real server can be had. Fails the test where servers are required."""
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
    """One sentence for each missing server, and one for what was not run."""
    said = [
        f"The real {server} was not used: {reason}. What can, ran without it."
        for server, reason in sorted(MISSING.items())
    ]
    if NOT_RUN:
        said.append(f"{len(NOT_RUN)} tests that need a missing server were not run.")
    return said
