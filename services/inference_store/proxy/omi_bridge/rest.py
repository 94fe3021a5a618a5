"""V2 over REST in front of a container."""

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote

import orjson
from aiohttp import web

from inference_store.proxy.exchange import Body, Headers
from inference_store.proxy.protocols.v2.bodies import request_in
from inference_store.proxy.protocols.v2.tensor_json import envelope_json
from inference_store.proxy.protocols.v2.tensors import Tensor

from . import answers
from .container import Container, ContainerFailed

_MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?(/infer|/ready)?/?")
_JSON: Final = "application/json"
_Answer = Callable[[web.Request], Awaitable[web.Response]]


def application(container: Container, *, most_bytes: int) -> web.Application:
    """Return the application that answers health, metadata and infer, with bodies of at most
    `most_bytes`."""
    app = web.Application(client_max_size=most_bytes)
    app.router.add_route("*", "/{path:.*}", _handle_failures(container))
    return app


def _handle_failures(container: Container) -> _Answer:
    async def answer(request: web.Request) -> web.Response:
        try:
            return await _answer(container, request)
        except ContainerFailed as exc:
            headers = answers.headers_of(exc.run)
            return _json({"error": str(exc)}, exc.status, headers)

    return answer


async def _answer(container: Container, request: web.Request) -> web.Response:
    path = request.raw_path.partition("?")[0].rstrip("/")
    if path == "/v2":
        return _json(answers.server_metadata())
    if path == "/v2/health/live":
        return _json({"live": True})
    if path == "/v2/health/ready":
        return await _ready(container, {})
    match = _MODEL.fullmatch(path)
    if match is None:
        raise ContainerFailed(404, f"{path[:200]} is not here: the bridge answers /v2/models/…")
    name = unquote(match[1])
    if match[2] == "/infer":
        return await _infer(container, request, name)
    if match[2] == "/ready":
        return await _ready(container, {"name": name})
    return _json(answers.model_metadata(await container.status(), name))


async def _ready(container: Container, fields: dict[str, Any]) -> web.Response:
    ready = await container.is_reachable()
    return _json({**fields, "ready": ready}, 200 if ready else 503)


async def _infer(container: Container, request: web.Request, name: str) -> web.Response:
    if request.method != "POST":
        raise ContainerFailed(405, "infer takes a POST")
    raw = await request.read()
    headers: Headers = [(key.lower(), value) for key, value in request.headers.items()]
    # aiohttp has already decoded the body
    plain = [(name, value) for name, value in headers if name != "content-encoding"]
    read = request_in(Body(parts=[raw], size=len(raw)), plain, flat=False)
    if read.request is None:
        raise ContainerFailed(400, read.problem or "the request is no V2")
    answer, run = await answers.infer(container, read.request, name)
    members = {"model_name": answer.model, "model_version": answer.version, "id": answer.id}
    outputs = [_write_as_texts(output) for output in answer.outputs]
    written = envelope_json(members, answer.parameters, "outputs", outputs)
    added = answers.headers_of(run)
    return web.Response(body=written.text, content_type=_JSON, headers=added)


def _write_as_texts(output: Tensor) -> Tensor:
    """Return files that are not all UTF-8 as base64, which the output's `content_type` says."""
    files = [file for file in output.values or () if isinstance(file, bytes)]
    try:
        b"".join(files).decode()
    except UnicodeDecodeError:
        coded = list(map(b64encode, files))
        return replace(output, values=coded, parameters={"content_type": b'"base64"'})
    return output


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    http_status = status if 400 <= status < 600 or status == 200 else 500
    body = orjson.dumps(value)
    return web.Response(body=body, status=http_status, content_type=_JSON, headers=headers)
