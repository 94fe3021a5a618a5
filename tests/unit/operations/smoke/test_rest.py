"""Requests of the smoke test to the api."""

from typing import Any

import orjson

from inference_store.operations.smoke.registration import register_model
from inference_store.operations.smoke.rest import Rest
from tests.http_stub import Request, Response, serve_http


def test_without_a_token_it_names_loopback() -> None:
    """Else an api without access control, in a cluster say, refuses it."""
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
    of_an_event = {"name": None, "project_id": "mine", "class_labels": [], "task_type": None}
    assert register(of_an_event) == [{"project_id": "mine", "class_labels": []} | task_type]
    assert register({"name": "Mine"} | task_type) == []
