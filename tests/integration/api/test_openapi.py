"""The OpenAPI is a contract: whatever it allows is answered as it says, and never with a 5xx."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

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
from inference_store.index import registrations
from inference_store.index.accounting import open_partition
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.integration.api.access.named import PLACE, Ids, ids_of
from tests.integration.api.access.table import TABLE, filled
from tests.integration.stored import Made, at, store
from tests.openapi_operations import Case, Operation, read_operations
from tests.properties import examples
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until


@dataclass(frozen=True)
class Served:
    """Where the api is, and what of what is there a path may name."""

    address: str
    ids: Ids


@pytest.fixture
def served(settings: Callable[..., ApiSettings], database: str) -> Iterator[Served]:
    """The api on a real port, with a few inferences and one of everything else that a path names,
    so that schemathesis may use any loop."""
    port = free_port()
    server = _Server(settings(api_port=port), database)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, seconds=180, what="the api")
        yield Served(f"http://127.0.0.1:{port}", server.ids)
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
        made = [Made(f"id-{n}", at(n), items, [("person", 0.5)]) for n in range(3)]
        model = await store(engine, *made, Made("one", at(9), items))
        async with engine.begin() as connection:
            details = registrations.Details(project_id="model-project")
            await registrations.put(connection, "model", details)
            await open_partition(connection, PLACE, first=0, began="earliest")
            named = await ids_of(connection, "model", model, 0)
        self.ids = named | {"inference_id": "id-0"}
        with Blobs(self._settings) as blobs:
            app = create_app(self._settings, engine, blobs)
            config = uvicorn.Config(app, port=self._settings.api_port, log_level="critical")
            self._uvicorn = uvicorn.Server(config)
            await self._uvicorn.serve()
        await engine.dispose()


# The first is what Hypothesis tries first: a request that can succeed.
_THERE = [
    frozenset(each)
    for count in (3, 0, 1, 2)
    for each in combinations(("path", "body", "revision"), count)
]
_CHECKS = [
    not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


# What is asked for first is there still.
_ORDER = ("get", "pending", "post", "put", "delete")
# Their answers tell of policies, holds, erasures and proof: each is seen to succeed.
_SEEN = ("retention", "holds", "erasures", "certificates", "reconciliations", "inferences/delete")
_Reached = set[tuple[str, str]]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_documented(served: Served, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{served.address}/openapi.json")
    reached: _Reached = set()
    for operation in sorted(read_operations(schema), key=_place):
        try:
            _check(operation, mode, served.ids, reached)
        except Unsatisfiable:  # nothing can be wrong in a request without parameters
            assert mode is GenerationMode.NEGATIVE
    if mode is GenerationMode.POSITIVE:
        can = {place for place, row in TABLE.items() if row.status < 300}
        wanted = {each for each in can if any(name in each[1] for name in _SEEN)}
        assert wanted - reached == set()


def _place(operation: Operation) -> int:
    return _ORDER.index("pending" if operation.path.endswith("/pending") else operation.method)


def _check(operation: Operation, mode: GenerationMode, ids: Ids, reached: _Reached) -> None:
    place = (operation.method.upper(), operation.path)
    body = filled(TABLE[place].body, ids["model_id"])

    @example_settings(
        max_examples=examples(20),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), there=st.sampled_from(_THERE))
    def check(case: Case, there: frozenset[str]) -> None:
        """What is there, half the time: a made-up id comes no further than a 404."""
        if "path" in there and case.path_parameters:
            case.path_parameters.update({name: ids[name] for name in case.path_parameters})
        if "body" in there and body is not None and mode is GenerationMode.POSITIVE:
            case.body = body
        if "revision" in there and case.headers is not None:
            case.headers.pop("If-Match", None)
        if isinstance(case.body, dict) and "timeout_seconds" in case.body:
            case.body["timeout_seconds"] = 120  # less may be too little on a busy machine
        answer = case.call_and_validate(checks=_CHECKS, timeout=180)
        if answer.status_code < 300:
            reached.add(place)

    check()
