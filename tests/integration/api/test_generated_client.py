"""A client that is generated from the OpenAPI asks every route that reads."""

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.accounting import open_partition
from inference_store.index.registrations import Details, put
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.stored import Made, store

from .access.named import PLACE, ids_of
from .access.table import TABLE, Row, filled
from .conftest import MakeApp
from .served import served

_PACKAGE = "generated_client"
_READS = ("/query", "/count", "/aggregate", "/preview")
_GENERATE = ("-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages can be imported for as long as the test lasts."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]


async def test_a_generated_client_asks_every_route_that_reads(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str, folder: Path
) -> None:
    ids = await _stored_ids(engine, blobs, bucket)
    async with served(make_app()) as http:
        document = (await http.get("/openapi.json")).json()
        titles = [schema["title"] for schema in document["components"]["schemas"].values()]
        assert len(titles) == len(set(titles))
        await _generate(document, folder)
        package = importlib.import_module(_PACKAGE)
        client = package.Client(base_url=str(http.base_url), timeout=httpx.Timeout(120))
        async with client:
            for method, path in _reading_routes():
                operation = document["paths"][path][method.lower()]["operationId"]
                answer = await _ask(client, _module_of(folder, operation), TABLE[method, path], ids)
                assert answer.status_code == 200, (method, path, answer.content)
                assert answer.parsed is not None, (method, path)
                if hasattr(answer.parsed, "to_dict"):
                    assert answer.parsed.to_dict().keys() == json.loads(answer.content).keys()


async def _stored_ids(engine: AsyncEngine, blobs: Blobs, bucket: str) -> dict[str, str]:
    """What the paths name, of a model that has an inference with three blobs."""
    places = f"{bucket}/data", f"{bucket}/response", f"{bucket}/metadata"
    for place in places:
        key = StorageKey(*place.split("/", 1))
        blobs.put(key, b'{"extended_metadata": []}', content_type="application/json")
    items = [("frame_number", "int", "9001")]
    model = await store(
        engine, Made("one", metadata=items, predictions=[("person", 0.5)], keys=places)
    )
    async with engine.begin() as connection:
        await put(connection, "model", Details(project_id="model-project"))
        await open_partition(connection, PLACE, first=0, began="earliest")
        return await ids_of(connection, "model", model, 0)


async def _generate(document: dict[str, Any], folder: Path) -> None:
    """Raises AssertionError for a warning."""
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


def _reading_routes() -> list[tuple[str, str]]:
    return [
        (method, path)
        for (method, path), row in TABLE.items()
        if row.status == 200 and (method == "GET" or path.endswith(_READS))
    ]


def _module_of(folder: Path, operation_id: str) -> ModuleType:
    """What the client has for an operation."""
    [file] = (folder / _PACKAGE / "api").glob(f"*/{operation_id}.py")
    return importlib.import_module(f"{_PACKAGE}.api.{file.parent.name}.{operation_id}")


async def _ask(client: Any, module: ModuleType, row: Row, ids: dict[str, str]) -> Any:
    """The answer to an operation, asked with the ids of its path and its body."""
    hints = get_type_hints(module.asyncio_detailed)
    arguments: dict[str, Any] = {name: ids[name] for name in hints.keys() & ids.keys()}
    if "body" in hints:
        arguments["body"] = hints["body"].from_dict(filled(row.body, ids["model_id"]))
    return await module.asyncio_detailed(client=client, **arguments)
