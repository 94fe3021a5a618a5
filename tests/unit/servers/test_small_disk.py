"""If no disk can be mounted, the run says in one sentence why."""

import pytest

from tests.servers.small_disk import find_small_disk
from tests.servers.versions import MissingServer


def test_it_says_what_mounting_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingServer, match="mounting a tmpfs takes root, or sudo"):
        find_small_disk()
