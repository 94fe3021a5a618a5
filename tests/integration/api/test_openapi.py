"""The OpenAPI document, a client generated from it, and the pages that show it."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints
from urllib.parse import parse_qsl

import httpx
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

from inference_store.api.answer import encode_json
from inference_store.api.app import create_app
from inference_store.index import registrations
from inference_store.index.database import create_engine
from inference_store.index.registrations import Details, put
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query.cql2 import parse_text, to_json
from inference_store.truth.rows import FORMATS
from tests.integration.api.access.path_values import Ids, add_path_values
from tests.integration.api.access.table import TABLE, fill_body
from tests.integration.stored_inferences import NewInference, at, store
from tests.properties import examples
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until

from .app_server import serve_app
from .conftest import Api, MakeApp
from .hallway import MODEL, make_frames

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


_PACKAGE = "generated_client"
_READS = ("/query", "/count", "/aggregate", "/preview")


@pytest.mark.long
async def test_generated_client_calls_every_reading_route(
    api: Api, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = b'{"extended_metadata": []}'
    keys = api.put_blob("d", blob), api.put_blob("r", blob), api.put_blob("m", blob)
    model = await api.store(NewInference(metadata=[("n", "int", "1")], keys=keys))
    async with api.engine.begin() as connection:
        await put(connection, "model", Details(project_id="model-project"))
        ids = await add_path_values(connection, "model", model, 0)
    monkeypatch.syspath_prepend(tmp_path)
    async with serve_app(make_app()) as http:
        document = (await http.get("/openapi.json")).json()
        await asyncio.to_thread(_generate_client, document, tmp_path)
        package = import_module(_PACKAGE)
        async with package.Client(str(http.base_url), timeout=httpx.Timeout(120)) as client:
            for (method, path), row in TABLE.items():
                if row.status != 200 or not (method == "GET" or path.endswith(_READS)):
                    continue
                name = document["paths"][path][method.lower()]["operationId"]
                [file] = (tmp_path / _PACKAGE / "api").glob(f"*/{name}.py")
                call = import_module(f"{_PACKAGE}.api.{file.parent.name}.{name}").asyncio_detailed
                hints = get_type_hints(call)
                arguments: dict[str, Any] = {key: ids[key] for key in hints.keys() & ids.keys()}
                arguments |= {key: float(value) for key, value in parse_qsl(row.query[1:])}
                if "body" in hints:
                    arguments["body"] = hints["body"].from_dict(fill_body(row.body, ids))
                answer = await call(client=client, **arguments)
                assert (answer.status_code, answer.parsed is None) == (200, False), path
                if hasattr(answer.parsed, "to_dict"):
                    assert answer.parsed.to_dict().keys() == json.loads(answer.content).keys()


def _generate_client(document: dict[str, Any], folder: Path) -> None:
    """Generate the client; a warning fails, such as one about two schemas of one name."""
    (folder / "openapi.json").write_text(json.dumps(document))
    # the generator knows no other type of bytes
    bytes = dict.fromkeys(FORMATS, "application/octet-stream")
    options = {"post_hooks": [], "content_type_overrides": bytes}
    (folder / "options.json").write_text(json.dumps(options))
    command = "-m openapi_python_client generate --meta none --fail-on-warning --path openapi.json"
    command += f" --config options.json --output-path {_PACKAGE}"
    arguments = [sys.executable, *command.split()]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


_DOCS = Path(__file__).parents[3] / "docs"
_PAGES = (_DOCS / "reference" / "filters.md", _DOCS / "how-to" / "query.md")
_PAGE = "\n".join(page.read_text() for page in _PAGES)
_EXAMPLES = [
    (kind, example.strip(), int(number))
    for kind, example, number in re.findall(
        r"^```(cql2|json)\n(.*?)^```\n\n(\d+) of the 100\.$", _PAGE, re.DOTALL | re.MULTILINE
    )
]
_RELATIVE = re.findall(r"^```cql2 relative\n(.*?)^```$", _PAGE, re.DOTALL | re.MULTILINE)
_RELATIVE += re.findall(r"^\| `([^`]+ [^`]+)` \| [^|]+ \|$", _PAGES[1].read_text(), re.MULTILINE)
_BASE = f"/v1/models/{MODEL}/inferences"
_JSON = {"Content-Type": "application/json"}
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# pages with commands, and how many each has
PAGES = {"retention.md": 9, "erasures.md": 5, "holds.md": 4}


def test_every_example_has_its_number() -> None:
    filters = [example for kind, example, _ in _EXAMPLES if kind == "cql2"]
    assert len(re.findall(r"^```cql2$", _PAGE, re.MULTILINE)) == len(filters)
    assert len(filters) >= 30
    assert len(_EXAMPLES) == len(filters) + 3
    assert len(_RELATIVE) == 8


async def _count(api: Api, body: bytes) -> Any:
    answer = await api.post(f"{_BASE}/count", content=body, headers=_JSON)
    assert answer.status_code == 200, answer.text
    assert answer.json()["warnings"] == []
    return answer.json()["count"]


async def _count_each_way(api: Api, kind: str, example: str) -> list[Any]:
    """Return the count of an example by each way to send it: text, JSON and link."""
    if kind == "json":
        return [await _count(api, example.encode())]
    tree = encode_json({"filter": to_json(parse_text(example))})
    link = await api.read(_BASE, filter=example, limit=1000)
    text = json.dumps({"filter": example}).encode()
    return [await _count(api, text), await _count(api, tree), len(link["items"])]


@pytest.mark.long
async def test_examples_find_as_many_as_the_page_says(api: Api) -> None:
    await api.store(*make_frames())
    for kind, example, number in _EXAMPLES:
        counts = await _count_each_way(api, kind, example)
        assert counts == [number] * len(counts), example


async def test_resolves_relative_times_and_accepts_queryables(api: Api) -> None:
    await api.store(make_frames()[0])
    for example in _RELATIVE:
        page = await api.read(_BASE, filter=example)
        for resolved in page.get("resolved", ()):
            assert resolved["expression"] in example
    for name in ("location", "frame_number", "metadata.frame_number"):
        body = json.dumps({"filter": f"{name} IS NOT NULL"}).encode()
        assert await _count(api, body) == 1, name


def _make_curl_parser() -> ArgumentParser:
    """Return a parser of the options that the pages use; any other option fails the test."""
    parser = ArgumentParser("curl", allow_abbrev=False)
    parser.add_argument("-sS", action="store_true", required=True)
    parser.add_argument("-X", dest="method", default="GET")
    parser.add_argument("-H", dest="headers", action="append")
    parser.add_argument("-d", dest="body")
    parser.add_argument("url")
    return parser


def read_commands(page: str) -> Iterator[Namespace]:
    """Yield every `curl` command in a page's blocks, as a shell would read it."""
    for block in _BLOCK.findall((_DOCS / "how-to" / page).read_text()):
        words: list[str] = []
        for word in [*shlex.split(block.replace("\\\n", " "), comments=True), "curl"]:
            if word == "curl" and words[:1] == ["curl"]:
                yield _make_curl_parser().parse_args(words[1:])
            words = [word] if word == "curl" else [*words, word]


async def _send_command(api: Api, command: Namespace, last_id: str) -> dict[str, Any]:
    """Send a command and return its answer; `$ID` is the id of what was created last."""
    headers = dict(header.split(": ", 1) for header in command.headers)
    assert headers.pop("Authorization") == "Bearer $KEY"
    assert headers == ({} if command.body is None else _JSON)
    url = command.url.removeprefix("$API").replace("$ID", last_id)
    assert url.startswith("/v1/")
    # the end of a hold lies ahead in whatever year this runs
    body = command.body and command.body.replace("2027-", f"{datetime.now(UTC).year + 1}-")
    answer = await api.request(command.method, url, content=body, headers=headers)
    assert answer.is_success, (command, answer.text)
    return dict(answer.json())


@pytest.mark.parametrize("page", PAGES)
async def test_commands_succeed(api: Api, page: str) -> None:
    now = datetime.now(UTC)
    person_items = [("person_id", "string", "p-1044")]
    camera_items = [("data_source", "string", "hallway-camera-feed"), ("frame_number", "int", 7)]
    await api.store(NewInference("frame-1", now, person_items, model_id="hallway-detector"))
    await api.store(NewInference("frame-2", now, camera_items, model_id="cameras"))
    await api.call("PUT", "/v1/models/hallway-detector", {"project_id": "building"})
    last_id, count = "", 0
    for command in read_commands(page):
        body = await _send_command(api, command, last_id)
        count += 1
        if command.method == "PUT" and command.url.endswith("/retention-policy"):
            assert body["state"] == "in_force", command
        if command.method == "POST":
            last_id = body.get("id", last_id)
    assert count == PAGES[page]
