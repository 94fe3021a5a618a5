"""pytest: tests that share their own server run on one worker, one after the other.

All others run on any free worker (`--dist loadgroup`).
"""

import pytest

_GROUP = "servers-of-"
GROUP_SUFFIX = f"@{_GROUP}"
"""The text that pytest-xdist adds to the id of a test, before the group's name."""

_FILES = {"tests.servers.secured_fixtures": "secured", "tests.upstreams.fixtures": "upstreams"}
"""Modules of fixtures whose servers last for a session, with the group of their users."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that needs a group."""
    for item in items:
        group = _find_group(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(_GROUP + group))


def _find_group(item: pytest.Item) -> str:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009  (private)
    fixtures = [overrides[-1] for overrides in definitions]
    for fixture in fixtures:
        shared = _FILES.get(fixture.func.__module__)
        if shared and fixture.scope == "session":
            return shared
    if any(fixture.scope in {"module", "package"} for fixture in fixtures):
        return item.path.stem
    return ""
