"""A client that is generated from the OpenAPI document calls every route that reads."""

import asyncio
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

import httpx
import pytest

from inference_store.index.registrations import Details, put
from tests.integration.stored_inferences import NewInference

from .access.path_values import add_path_values
from .access.table import TABLE, fill_body
from .app_server import serve_app
from .conftest import Api, MakeApp

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
    (folder / "options.json").write_text('{"post_hooks": []}')
    command = "-m openapi_python_client generate --meta none --fail-on-warning --path openapi.json"
    options = f"--config options.json --output-path {_PACKAGE}"
    arguments = [sys.executable, *command.split(), *options.split()]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
