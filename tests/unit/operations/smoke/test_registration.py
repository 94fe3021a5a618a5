"""The smoke test gives its model a task type, even if an event registered the model first."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import orjson
import pytest

from inference_store.operations.smoke.registration import register_model
from inference_store.operations.smoke.rest import Rest


class _Api(HTTPServer):
    """Has one model, or none."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model: dict[str, Any] | None = None
        self.put: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Api

    def do_GET(self) -> None:
        self._answer(404 if self.server.model is None else 200, self.server.model)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.put.append(orjson.loads(body))
        self._answer(200, {})

    def _answer(self, status: int, body: object) -> None:
        data = orjson.dumps(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def api() -> Iterator[_Api]:
    with _Api() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _register(api: _Api) -> list[dict[str, Any]]:
    register_model(Rest(f"http://127.0.0.1:{api.server_port}"))
    return api.put


def test_a_new_model_has_a_task_type(api: _Api) -> None:
    assert _register(api) == [{"name": "Smoke test", "task_type": "image_classification"}]


def test_a_model_that_an_event_registered_gets_one(api: _Api) -> None:
    """Else no prediction of it is indexed, and the query of each later run fails."""
    api.model = {"name": None, "project_id": "mine", "class_labels": [], "task_type": None}
    assert _register(api) == [
        {"project_id": "mine", "class_labels": [], "task_type": "image_classification"}
    ]


def test_a_model_with_a_task_type_stays_as_it_is(api: _Api) -> None:
    api.model = {"name": "Mine", "task_type": "image_classification"}
    assert _register(api) == []
