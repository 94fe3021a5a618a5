"""The OpenAPI is a contract: whatever it allows is answered as it says, and never with a 5xx."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi_checks

from inference_store.api.app import create_app
from inference_store.store.blobs import Blobs
from inference_store.store.database import create_engine
from inference_store.store.settings import ApiSettings
from tests.integration.stored import Made, at, store
from tests.properties import examples
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until


@pytest.fixture
def address(settings: Callable[..., ApiSettings], database: str) -> Iterator[str]:
    """The api on a real port, with a few inferences, so that schemathesis may use any loop."""
    port = free_port()
    server = _Server(settings(api_port=port), database)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, seconds=180, what="the api")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()
        thread.join(180)


class _Server:
    def __init__(self, settings: ApiSettings, dsn: str) -> None:
        self._settings = settings
        self._dsn = dsn
        self._uvicorn: uvicorn.Server | None = None

    @property
    def started(self) -> bool:
        return self._uvicorn is not None and self._uvicorn.started

    def run(self) -> None:
        asyncio.run(self._serve())

    def stop(self) -> None:
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def _serve(self) -> None:
        engine = create_engine(self._dsn)
        items = [("k", "int", "5"), ("s", "string", "x"), ("tags", "json", '["a", 1]')]
        made = [Made(f"id-{n}", at(n), items, [("person", 0.5)]) for n in range(3)]
        await store(engine, *made)
        with Blobs(self._settings) as blobs:
            app = create_app(self._settings, engine, blobs)
            config = uvicorn.Config(app, port=self._settings.api_port, log_level="critical")
            self._uvicorn = uvicorn.Server(config)
            await self._uvicorn.serve()
        await engine.dispose()


# What is there, half the time: a made-up id comes no further than a 404.
_MODELS = st.sampled_from([None, "model"])
_INFERENCES = st.sampled_from([None, "id-0", "id-1"])
_CHECKS = [
    not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_documented(address: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    for operation in (found.ok() for found in schema.get_all_operations()):
        try:
            _check(operation, mode)
        except Unsatisfiable:  # nothing can be wrong in a request without parameters
            assert mode is GenerationMode.NEGATIVE


def _check(operation: schemathesis.APIOperation, mode: GenerationMode) -> None:
    @example_settings(
        max_examples=examples(20),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), model=_MODELS, inference=_INFERENCES)
    def check(case: schemathesis.Case, model: str | None, inference: str | None) -> None:
        known = {"model_id": model, "inference_id": inference}
        for name, value in known.items():
            if value is not None and name in (case.path_parameters or {}):
                case.path_parameters[name] = value
        if isinstance(case.body, dict) and "timeout_seconds" in case.body:
            case.body["timeout_seconds"] = 120  # less may be too little on a busy machine
        case.call_and_validate(checks=_CHECKS, timeout=180)

    check()
