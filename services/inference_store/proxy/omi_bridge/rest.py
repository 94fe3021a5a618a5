"""V2 over REST in front of a container."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson
from aiohttp import web

from inference_store.proxy.exchange import Body, Headers
from inference_store.proxy.protocols.v2.bodies import request_in
from inference_store.proxy.protocols.v2.writing import envelope_json

from . import answering
from .container import Container, ContainerFailed

_MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?(/infer|/ready)?/?")
_JSON: Final = "application/json"
_Answer = Callable[[web.Request], Awaitable[web.Response]]


def application(container: Container, *, most_bytes: int) -> web.Application:
    """Health, metadata and infer; bodies of at most `most_bytes`."""
    app = web.Application(client_max_size=most_bytes)
    app.router.add_route("*", "/{path:.*}", _guarded(container))
    return app


def _guarded(container: Container) -> _Answer:
    async def answer(request: web.Request) -> web.Response:
        try:
            return await _answer(container, request)
        except ContainerFailed as exc:
            headers = answering.headers_of(exc.run)
            return _json({"error": str(exc)}, exc.status, headers)

    return answer


async def _answer(container: Container, request: web.Request) -> web.Response:
    path = request.raw_path.partition("?")[0].rstrip("/")
    if path == "/v2":
        return _json(answering.server_metadata())
    if path == "/v2/health/live":
        return _json({"live": True})
    if path == "/v2/health/ready":
        return await _ready(container, {})
    found = _MODEL.fullmatch(path)
    if found is None:
        raise ContainerFailed(404, f"{path[:200]} is not here: the bridge answers /v2/models/…")
    name = unquote(found[1])
    if found[2] == "/infer":
        return await _infer(container, request, name)
    if found[2] == "/ready":
        return await _ready(container, {"name": name})
    return _json(answering.model_metadata(await container.about(), name))


async def _ready(container: Container, said: dict[str, Any]) -> web.Response:
    ready = await container.is_there()
    return _json({**said, "ready": ready}, 200 if ready else 503)


async def _infer(container: Container, request: web.Request, name: str) -> web.Response:
    if request.method != "POST":
        raise ContainerFailed(405, "infer takes a POST")
    raw = await request.read()
    headers: Headers = [(key.lower(), value) for key, value in request.headers.items()]
    # its body was decoded on the way in
    plain = [each for each in headers if each[0] != "content-encoding"]
    read = request_in(Body(parts=[raw], size=len(raw)), plain, flat=False)
    if read.request is None:
        raise ContainerFailed(400, read.problem or "the request is no V2")
    answer, run = await answering.infer(container, read.request, name)
    members = {"model_name": answer.model, "model_version": answer.version, "id": answer.id}
    written = envelope_json(members, answer.parameters, "outputs", answer.outputs)
    added = answering.headers_of(run)
    return web.Response(body=written.text, content_type=_JSON, headers=added)


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    known = status if 400 <= status < 600 or status == 200 else 500
    body = orjson.dumps(value)
    return web.Response(body=body, status=known, content_type=_JSON, headers=headers)
