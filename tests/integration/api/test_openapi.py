"""The OpenAPI is a contract: every request that it allows gets a documented answer, never a 5xx."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Err
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi import checks as openapi_checks

from inference_store.api.app import create_app
from inference_store.index import registrations
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.integration.api.access.path_values import Ids, add_path_values
from tests.integration.api.access.table import TABLE, fill_body
from tests.integration.stored_inferences import NewInference, at, store
from tests.properties import examples
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until

Operation: TypeAlias = schemathesis.APIOperation[Any, Any, Any, Any]
Case: TypeAlias = schemathesis.Case[Operation]


def read_operations(document: BaseSchema) -> Iterator[Operation]:
    """Yield every operation of the document. Raises the error of an invalid one."""
    for result in document.get_all_operations():
        if isinstance(result, Err):
            raise result.err()
        yield result.ok()


@dataclass(frozen=True)
class RunningApi:
    """The address of an api, and valid values for the parameters of its paths."""

    address: str
    ids: Ids


@pytest.fixture
def running_api(settings: Callable[..., ApiSettings], database: str) -> Iterator[RunningApi]:
    """The api on a real port, with everything that a path may name.

    It has a thread of its own, so that schemathesis may use any loop.
    """
    port = free_port()
    server = _Server(settings(api_port=port), database)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, seconds=180, what="the api")
        yield RunningApi(f"http://127.0.0.1:{port}", server.ids)
    finally:
        server.stop()
        thread.join(180)


class _Server:
    def __init__(self, settings: ApiSettings, dsn: str) -> None:
        self._settings = settings
        self._dsn = dsn
        self._uvicorn: uvicorn.Server | None = None
        self.ids: Ids = {}

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
        inferences = [NewInference(f"id-{n}", at(n), items, [("person", 0.5)]) for n in range(3)]
        model = await store(engine, *inferences, NewInference("one", at(9), items))
        async with engine.begin() as connection:
            details = registrations.Details(project_id="model-project")
            await registrations.put(connection, "model", details)
            path_values = await add_path_values(connection, "model", model, 0)
        self.ids = path_values | {"inference_id": "id-0"}
        with Blobs(self._settings) as blobs:
            app = create_app(self._settings, engine, blobs)
            port = self._settings.api_port
            # a connection stays open between two requests, however long the machine stalls
            config = uvicorn.Config(app, port=port, log_level="critical", timeout_keep_alive=600)
            self._uvicorn = uvicorn.Server(config)
            await self._uvicorn.serve()
        await engine.dispose()


# Hypothesis tries the first one first: a request that can succeed.
_VALID_PARTS = [
    frozenset(names)
    for count in (3, 0, 1, 2)
    for names in combinations(("path", "body", "revision"), count)
]
_CHECKS = [
    not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


# Reads come first and deletions last, so that each finds what it names.
_ORDER = ("get", "pending", "post", "put", "patch", "delete")
# Routes about policies, holds, erasures and proof: each must succeed at least once.
_MUST_SUCCEED = (
    "retention",
    "holds",
    "erasures",
    "certificates",
    "reconciliations",
    "inferences/delete",
    "views",
)
_Reached = set[tuple[str, str]]


@pytest.mark.long
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_documented(running_api: RunningApi, mode: GenerationMode) -> None:
    document = f"{running_api.address}/openapi.json"  # it takes a busy machine long to build
    schema = schemathesis.openapi.from_url(document, timeout=300)
    reached: _Reached = set()
    for operation in sorted(read_operations(schema), key=_order_of):
        try:
            _check_operation(operation, mode, running_api.ids, reached)
        except Unsatisfiable:  # a request without parameters cannot be wrong
            assert mode is GenerationMode.NEGATIVE
    if mode is GenerationMode.POSITIVE:
        possible = {route_key for route_key, row in TABLE.items() if row.status < 300}
        expected = {names for names in possible if any(name in names[1] for name in _MUST_SUCCEED)}
        assert expected - reached == set()


def _order_of(operation: Operation) -> int:
    return _ORDER.index("pending" if operation.path.endswith("/pending") else operation.method)


def _check_operation(
    operation: Operation, mode: GenerationMode, ids: Ids, reached: _Reached
) -> None:
    route_key = (operation.method.upper(), operation.path)
    body = fill_body(TABLE[route_key].body, ids)

    @example_settings(
        max_examples=examples(20, least=3),  # for each of 140 operations
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(generation_mode=mode), valid_parts=st.sampled_from(_VALID_PARTS)
    )
    def check(case: Case, valid_parts: frozenset[str]) -> None:
        """Use valid values in part of the requests, since a made-up id only leads to a 404."""
        if "path" in valid_parts and case.path_parameters:
            case.path_parameters.update({name: ids[name] for name in case.path_parameters})
        if "body" in valid_parts and body is not None and mode is GenerationMode.POSITIVE:
            case.body = body
        if "revision" in valid_parts and case.headers is not None:
            case.headers.pop("If-Match", None)
        for asked in (case.body, case.query):
            if isinstance(asked, dict) and "timeout_seconds" in asked:
                asked["timeout_seconds"] = 120  # less may be too little on a busy machine
        if operation.path.endswith("/follow"):
            case.query = {**(case.query or {}), "seconds": 0}  # else it lasts an hour
        answer = case.call_and_validate(checks=_CHECKS, timeout=180)
        if answer.status_code < 300:
            reached.add(route_key)

    check()
