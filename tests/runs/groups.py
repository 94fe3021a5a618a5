"""pytest: tests that share a server of their own run on one worker, one after the other.

All others go to whichever worker is free (`--dist loadgroup`).
"""

import pytest

_GROUP = "servers-of-"
GROUP_SUFFIX = f"@{_GROUP}"
"""What pytest-xdist adds to the id of a test, before the group's name."""

_FILES = {"tests.servers.secured_fixtures": "secured", "tests.upstreams.fixtures": "upstreams"}
"""Modules of fixtures whose servers last for a session, and the group of who uses them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that needs a group."""
    for item in items:
        group = _group_of(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(_GROUP + group))


def _group_of(item: pytest.Item) -> str:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009  (private)
    used = [each[-1] for each in definitions]
    for fixture in used:
        shared = _FILES.get(fixture.func.__module__)
        if shared and fixture.scope == "session":
            return shared
    if any(fixture.scope in {"module", "package"} for fixture in used):
        return item.path.stem
    return ""
