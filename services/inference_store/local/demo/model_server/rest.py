"""The protocol over REST."""

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from inference_store.local.folder import HOST

from .models import (
    DATATYPE,
    MOST_BYTES,
    NAME,
    VERSION,
    BadRequest,
    Input,
    NoSuchModel,
    Output,
    Serving,
)

_SERVING = web.AppKey("serving", Serving)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_PICTURES = [{"name": "image", "datatype": DATATYPE, "shape": [-1]}]
_PREDICTIONS = [{"name": "image", "datatype": DATATYPE, "shape": [-1]}]


async def serve_rest(serving: Serving, port: int, host: str = HOST) -> web.AppRunner:
    """Listen on `port` until the runner is cleaned up."""
    runner = web.AppRunner(application(serving))
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


def application(serving: Serving) -> web.Application:
    """Return the application with its routes."""
    app = web.Application(middlewares=[_errors], client_max_size=MOST_BYTES)
    app[_SERVING] = serving
    app.router.add_get("/v2", _server)
    app.router.add_get("/v2/health/live", _healthy)
    app.router.add_get("/v2/health/ready", _healthy)
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        app.router.add_get(model, _model)
        app.router.add_get(f"{model}/ready", _model_ready)
        app.router.add_post(f"{model}/infer", _infer)
        app.router.add_post(f"{model}/infer/", _infer)
    return app


@web.middleware
async def _errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer every refusal as the protocol requires: `{"error": …}`."""
    try:
        return await handler(request)
    except NoSuchModel as error:
        return _json({"error": str(error)}, 404)
    except BadRequest as error:
        return _json({"error": str(error)}, 400)
    except web.HTTPException as error:
        return _json({"error": error.reason}, error.status)


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response()  # it listens only when every model is loaded


async def _server(_request: web.Request) -> web.Response:
    return _json({"name": NAME, "version": VERSION, "extensions": []})


async def _model(request: web.Request) -> web.Response:
    name = _check_model(request)
    fields = {"name": name, "versions": [VERSION], "platform": NAME}
    return _json({**fields, "inputs": _PICTURES, "outputs": _PREDICTIONS})


async def _model_ready(request: web.Request) -> web.Response:
    _check_model(request)
    return web.Response()


async def _infer(request: web.Request) -> web.Response:
    name = _check_model(request)
    document = parse_request(await request.read())
    version = request.match_info.get("version", "")
    outputs = await request.app[_SERVING].answer(name, version, read_inputs(document))
    answer = {"model_name": name, "model_version": VERSION, "outputs": [*map(_output, outputs)]}
    return _json(answer | ({"id": document["id"]} if "id" in document else {}))


def _check_model(request: web.Request) -> str:
    name = request.match_info["model"]
    request.app[_SERVING].check(name, request.match_info.get("version", ""))
    return name


def parse_request(body: bytes) -> dict[str, Any]:
    """Return the request's JSON. Raises BadRequest."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("inputs"), list):
        raise BadRequest("expected an object with a list `inputs`")
    return document


def read_inputs(document: dict[str, Any]) -> Sequence[Input]:
    """Return the inputs of a request. Raises BadRequest."""
    return [_input(index, tensor) for index, tensor in enumerate(document["inputs"])]


def _input(index: int, tensor: Any) -> Input:
    match tensor:
        case {"name": str(name), "datatype": "BYTES", "data": [str(text)]}:
            try:
                return Input(name, base64.b64decode(text, validate=True))
            except ValueError as error:
                raise BadRequest(f"inputs[{index}].data is not base64: {error}") from error
    raise BadRequest(
        f"inputs[{index}]: expected name, datatype BYTES and data with one base64 text"
    )


def _output(output: Output) -> dict[str, Any]:
    findings = output.findings
    return {"name": output.name, "datatype": DATATYPE, "shape": [len(findings)], "data": findings}


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
