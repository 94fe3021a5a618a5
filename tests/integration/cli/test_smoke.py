"""The smoke test against real services: it succeeds if they run, and reports what fails."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference_store.operations.smoke.capture import MODEL
from inference_store.operations.smoke.rest import Rest
from tests.servers.fixtures import MakeEnvironment
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.service_process import Service
from tests.settings import TOKEN
from tests.warm.process import run_command


def run_smoke(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_command("smoke", *arguments, environment=environment)


@pytest.fixture
def api(
    service_environment: MakeEnvironment, topic: Callable[..., str], tmp_path: Path
) -> Iterator[dict[str, str]]:
    environment = service_environment(
        KAFKA_TOPIC=topic(), API_PORT=str(free_port()), AUTH="on", API_TOKEN=TOKEN
    )
    service = Service("api", environment, tmp_path).wait_ready()
    yield environment
    service.stop()


def find_address(environment: dict[str, str]) -> str:
    return f"http://127.0.0.1:{environment['INFERENCE_STORE_API_PORT']}"


def register_without_task_type(environment: dict[str, str]) -> None:
    """Leave the model as an event leaves it that comes before its registration."""
    Rest(find_address(environment), TOKEN).ask("PUT", f"/v1/models/{MODEL}", {})


def test_stores_and_erases_an_inference(api: dict[str, str], tmp_path: Path) -> None:
    refusing = api | {"INFERENCE_STORE_INGESTER_UNKNOWN_MODELS": "refuse"}
    ingester = Service("ingester", refusing, tmp_path).wait_ready()
    try:
        register_without_task_type(api)
        done = run_smoke(api, "--seconds", "300")  # asks the api that the settings name
    finally:
        ingester.stop()
    assert done.returncode == 0, done
    assert "The line works" in done.stdout
    assert TOKEN not in done.stdout + done.stderr


def test_reports_a_missing_ingester(api: dict[str, str]) -> None:
    done = run_smoke(api, "--api", find_address(api), "--seconds", "0.5")
    assert done.returncode == 1
    assert "was not indexed within 0.5 s: look at the ingester's /health/ready" in done.stderr
    assert f"If the api at {find_address(api)}, which was asked, is another store's" in done.stderr
    assert "once it is indexed, erase it: DELETE /v1/models/inference-store-smoke/" in done.stdout


def test_deletes_its_blobs_without_kafka(api: dict[str, str], minio_server: S3) -> None:
    away = api | {"INFERENCE_STORE_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}"}
    done = run_smoke(away, "--api", find_address(api))
    assert done.returncode == 1
    assert "three blobs are in the bucket" in done.stdout
    assert "what was stored is deleted again" in done.stdout
    bucket = api["INFERENCE_STORE_S3_BUCKET"]
    assert list(minio_server.client().list_objects(bucket, recursive=True)) == []


def test_reports_a_wrong_token(api: dict[str, str]) -> None:
    wrong = api | {"INFERENCE_STORE_API_TOKEN": "another"}
    done = run_smoke(wrong, "--api", find_address(api))
    assert done.returncode == 1
    assert "answered 401" in done.stderr


def test_reports_an_address_that_is_none(service_environment: MakeEnvironment) -> None:
    done = run_smoke(service_environment(), "--api", "store.example")
    assert done.returncode == 1
    assert "failed: 'store.example' is no address of an api" in done.stderr


def test_reports_a_missing_api(service_environment: MakeEnvironment) -> None:
    done = run_smoke(service_environment(), "--api", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "does not answer" in done.stderr
