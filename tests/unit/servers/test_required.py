"""A missing server fails the test if servers are required; otherwise the run says why."""

from pathlib import Path

import pytest

from tests.servers import missing
from tests.servers.missing import demand, sentences
from tests.servers.versions import REQUIRE_SERVERS, MissingServer


def find_nothing() -> Path:
    raise MissingServer("it was never built")


def find_here() -> Path:
    return Path("here")


@pytest.fixture
def nothing_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "MISSING", {})
    monkeypatch.setattr(missing, "NOT_RUN", set())
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv(REQUIRE_SERVERS, raising=False)


@pytest.mark.usefixtures("nothing_missing")
def test_otherwise_the_run_says_why() -> None:
    assert demand("found", find_here)
    assert not demand("lost", find_nothing)
    assert len(sentences()) == 1
    assert "it was never built" in sentences()[0]


@pytest.mark.usefixtures("nothing_missing")
def test_fails_if_the_server_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRE_SERVERS, "1")
    with pytest.raises(pytest.fail.Exception, match="it was never built"):
        demand("lost again", find_nothing)
