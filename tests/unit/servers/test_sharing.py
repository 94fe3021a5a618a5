"""Workers ask the process that started them for a server: it is started once, and ends with it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.servers.sharing import SHARED_SERVERS, SharedServers, ask_for_server


def test_a_server_is_started_once_and_ended_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_SERVERS, raising=False)
    happened = []

    @contextmanager
    def start() -> Iterator[str]:
        happened.append("started")
        yield "the address"
        happened.append("ended")

    with SharedServers({"kafka": start}), ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask_for_server, ["kafka"] * 20)) == {"the address"}
        assert happened == ["started"]
    assert happened == ["started", "ended"]
    assert ask_for_server("kafka") is None


def test_tells_every_caller_why_it_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_SERVERS, raising=False)

    @contextmanager
    def start() -> Iterator[str]:
        pytest.fail("Java is too old")
        yield ""

    with SharedServers({"kafka": start}):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="kafka could not be started: Java is too old"):
                ask_for_server("kafka")
