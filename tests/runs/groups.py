"""pytest: tests that share their own server run on one worker, one after the other.

All others run on any free worker (`--dist loadgroup`). The group is the end of a test's id: the
scheduler of pytest-xdist knows no more of a test. Its own mark does not change the ids of pytest
9.2 (its issue 1386), and then groups nothing, without a word.
"""

import pytest
from _pytest.nodeid import NodeId

_GROUP = "servers-of-"
GROUP_SUFFIX = f"@{_GROUP}"
"""The text that is added to the id of a test, before the group's name."""

_FILES = {"tests.servers.secured_fixtures": "secured", "tests.upstreams.fixtures": "upstreams"}
"""Modules of fixtures whose servers last for a session, with the group of their users."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add its group to the id of each test that needs one; in a worker of `--dist loadgroup`."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        group = _find_group(item)
        if group:
            item._id = NodeId.parse(f"{item.nodeid}{GROUP_SUFFIX}{group}")


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
