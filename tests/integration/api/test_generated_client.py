"""A client that is generated from the OpenAPI document calls every route that reads."""

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

import httpx
import pytest

from inference_store.index.registrations import Details, put
from tests.integration.stored_inferences import NewInference

from .access.path_values import add_path_values
from .access.table import TABLE, Row, fill_body
from .app_server import serve_app
from .conftest import Api, MakeApp

_PACKAGE = "generated_client"
_READS = ("/query", "/count", "/aggregate", "/preview")
_GENERATE = ("-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages can be imported while the test runs."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]


@pytest.mark.long
async def test_generated_client_calls_every_reading_route(
    api: Api, make_app: MakeApp, folder: Path
) -> None:
    ids = await _store_path_values(api)
    async with serve_app(make_app()) as http:
        document = (await http.get("/openapi.json")).json()
        titles = [schema["title"] for schema in document["components"]["schemas"].values()]
        assert len(titles) == len(set(titles))
        await _generate_client(document, folder)
        package = importlib.import_module(_PACKAGE)
        client = package.Client(base_url=str(http.base_url), timeout=httpx.Timeout(120))
        async with client:
            for method, path in _list_reading_routes():
                operation = document["paths"][path][method.lower()]["operationId"]
                answer = await _call_operation(
                    client, _import_operation(folder, operation), TABLE[method, path], ids
                )
                assert answer.status_code == 200, (method, path, answer.content)
                assert answer.parsed is not None, (method, path)
                if hasattr(answer.parsed, "to_dict"):
                    assert answer.parsed.to_dict().keys() == json.loads(answer.content).keys()


async def _store_path_values(api: Api) -> dict[str, str]:
    """Store what the paths name, of a model whose inference has three blobs; return the values."""
    data, response, metadata = (
        api.put_blob(name, b'{"extended_metadata": []}')
        for name in ("data", "response", "metadata")
    )
    items, keys = [("frame_number", "int", "9001")], (data, response, metadata)
    model = await api.store(
        NewInference("one", metadata=items, predictions=[("person", 0.5)], keys=keys)
    )
    async with api.engine.begin() as connection:
        await put(connection, "model", Details(project_id="model-project"))
        return await add_path_values(connection, "model", model, 0)


async def _generate_client(document: dict[str, Any], folder: Path) -> None:
    """Generate the client. A warning raises AssertionError."""
    (folder / "openapi.json").write_text(json.dumps(document))
    (folder / "configuration.json").write_text('{"post_hooks": []}')
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *_GENERATE,
        *("--path", str(folder / "openapi.json"), "--config", str(folder / "configuration.json")),
        *("--output-path", str(folder / _PACKAGE)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def _list_reading_routes() -> list[tuple[str, str]]:
    return [
        (method, path)
        for (method, path), row in TABLE.items()
        if row.status == 200 and (method == "GET" or path.endswith(_READS))
    ]


def _import_operation(folder: Path, operation_id: str) -> ModuleType:
    """Import the client's module of an operation."""
    [file] = (folder / _PACKAGE / "api").glob(f"*/{operation_id}.py")
    return importlib.import_module(f"{_PACKAGE}.api.{file.parent.name}.{operation_id}")


async def _call_operation(client: Any, module: ModuleType, row: Row, ids: dict[str, str]) -> Any:
    """Call an operation with the values of its path and its body, and return the answer."""
    hints = get_type_hints(module.asyncio_detailed)
    arguments: dict[str, Any] = {name: ids[name] for name in hints.keys() & ids.keys()}
    arguments |= {name: float(value) for name, value in parse_qsl(row.query.removeprefix("?"))}
    if "body" in hints:
        arguments["body"] = hints["body"].from_dict(fill_body(row.body, ids["model_id"]))
    return await module.asyncio_detailed(client=client, **arguments)
