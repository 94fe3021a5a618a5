"""The protocol over REST."""

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from inference_store.local.ports import HOST

from .serving import (
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
    """The routes."""
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
    """Every refusal as the protocol has it: `{"error": …}`."""
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
    name = _checked(request)
    told = {"name": name, "versions": [VERSION], "platform": NAME}
    return _json({**told, "inputs": _PICTURES, "outputs": _PREDICTIONS})


async def _model_ready(request: web.Request) -> web.Response:
    _checked(request)
    return web.Response()


async def _infer(request: web.Request) -> web.Response:
    name = _checked(request)
    asked = asked_of(await request.read())
    version = request.match_info.get("version", "")
    outputs = await request.app[_SERVING].answer(name, version, inputs_of(asked))
    told = {"model_name": name, "model_version": VERSION, "outputs": [*map(_output, outputs)]}
    return _json(told | ({"id": asked["id"]} if "id" in asked else {}))


def _checked(request: web.Request) -> str:
    """The model's name. Raises NoSuchModel."""
    name = request.match_info["model"]
    request.app[_SERVING].check(name, request.match_info.get("version", ""))
    return name


def asked_of(body: bytes) -> dict[str, Any]:
    """The request's JSON. Raises BadRequest."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(asked, dict) or not isinstance(asked.get("inputs"), list):
        raise BadRequest("expected an object with a list `inputs`")
    return asked


def inputs_of(asked: dict[str, Any]) -> Sequence[Input]:
    """Raises BadRequest."""
    return [_input(place, one) for place, one in enumerate(asked["inputs"])]


def _input(place: int, one: Any) -> Input:
    match one:
        case {"name": str(name), "datatype": "BYTES", "data": [str(text)]}:
            try:
                return Input(name, base64.b64decode(text, validate=True))
            except ValueError as error:
                raise BadRequest(f"inputs[{place}].data is not base64: {error}") from error
    raise BadRequest(
        f"inputs[{place}]: expected name, datatype BYTES and data with one base64 text"
    )


def _output(one: Output) -> dict[str, Any]:
    findings = one.findings
    return {"name": one.name, "datatype": DATATYPE, "shape": [len(findings)], "data": findings}


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
