"""The smoke test publishes an ordinary event, and asks the api that the settings name."""

from typing import Any

import orjson

from inference_store.operations.smoke.capture import Capture
from inference_store.operations.smoke.registration import register_model
from inference_store.operations.smoke.rest import Rest
from inference_store.operations.smoke.settings import SmokeSettings
from tests.http_stub import Request, Response, serve_http


def test_the_event_has_the_nine_fields_and_names_its_blobs() -> None:
    capture = Capture()
    event = orjson.loads(capture.event)
    assert len(event) == 9
    keys = {value for name, value in event.items() if name.endswith("_storage_key")}
    assert keys == set(capture.blobs)


def test_the_query_matches_the_metadata_in_the_blobs() -> None:
    capture = Capture()
    condition: Any = capture.question["metadata_filter"]
    [metadata] = [data for key, data in capture.blobs.items() if key.endswith("metadata")]
    written = [(item["key"], item["value"]) for item in orjson.loads(metadata)]
    assert written == [(item["key"], item["value"]) for item in condition]


def test_two_runs_never_meet() -> None:
    first, second = Capture(), Capture()
    assert first.inference_id != second.inference_id
    assert not set(first.blobs) & set(second.blobs)


_GIVEN = {"kafka_bootstrap_servers": "k:9092", "s3_endpoint_url": "http://s3:9000"}


def test_it_asks_the_api_that_the_settings_name() -> None:
    for settings, address in (
        ({}, "http://127.0.0.1:8080"),
        ({"api_port": 18780}, "http://127.0.0.1:18780"),
        ({"api_host": "0.0.0.0", "api_port": 18780}, "http://127.0.0.1:18780"),
        ({"api_host": "::", "api_port": 18780}, "http://[::1]:18780"),
        (
            {"api_host": "store.example", "api_tls_certificate_file": __file__},
            "https://store.example:8080",
        ),
        ({"api_port": 18780, "url": "https://store.example"}, "https://store.example"),
    ):
        assert SmokeSettings.model_validate(_GIVEN | settings).api_address == address, settings


def test_without_a_token_it_names_loopback() -> None:
    """Else an api without access control, in a cluster say, refuses it."""
    assert "sesame" not in repr(Rest("http://127.0.0.1", "sesame"))
    with serve_http(lambda request: Response(body=request.headers["Host"].encode())) as api:
        assert Rest(api).ask("GET", "/") == b"localhost"
        assert Rest(api, "a-token").ask("GET", "/") == api.removeprefix("http://").encode()


def register(model: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return what is put to an api that has a model, or none."""
    put: list[dict[str, Any]] = []

    def answer(request: Request) -> Response:
        if request.method == "PUT":
            put.append(orjson.loads(request.body))
            return Response(body=b"{}")
        return Response(404 if model is None else 200, orjson.dumps(model))

    with serve_http(answer) as api:
        register_model(Rest(api))
    return put


def test_its_model_has_a_task_type() -> None:
    """Else, if an event registered it first, no prediction is indexed, and later runs fail."""
    task_type = {"task_type": "image_classification"}
    assert register(None) == [{"name": "Smoke test"} | task_type]
    of_an_event: dict[str, Any] = {
        "name": None,
        "project_id": "mine",
        "class_labels": [],
        "task_type": None,
    }
    assert register(of_an_event) == [{"project_id": "mine", "class_labels": []} | task_type]
    assert register({"name": "Mine"} | task_type) == []
