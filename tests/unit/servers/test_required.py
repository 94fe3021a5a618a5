"""A missing server fails the test if servers are required; otherwise the run says why."""

from pathlib import Path

import pytest

from tests.servers import missing
from tests.servers.environment import service_environment
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
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


def test_a_service_gets_no_setting_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERENCE_STORE_SERVERS_CACHE", "somewhere")
    kafka, s3 = Kafka("127.0.0.1:1"), S3("http://127.0.0.1:2", "key", "secret")
    environment = service_environment("postgresql://", kafka, s3, "blobs", S3_REGION="there")
    assert "INFERENCE_STORE_SERVERS_CACHE" not in environment
    assert environment["INFERENCE_STORE_S3_REGION"] == "there"
    assert environment["INFERENCE_STORE_S3_BUCKET"] == "blobs"
