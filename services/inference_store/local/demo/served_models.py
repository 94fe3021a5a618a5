"""The served models, and the steps that both transports share: find a model, and call it."""

import asyncio
import base64
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
from aiohttp import web
from PIL import Image, UnidentifiedImageError

from inference_store.local.demo.models import CHAT, DIGITS, LABELS
from inference_store.local.folder import HOST

VERSION = "1"
"""The version of every model."""
MOST_BYTES = 16 << 20
"""The most bytes of a request."""
DATATYPE = "BYTES"

Finding: TypeAlias = Mapping[str, Any]
Model: TypeAlias = Callable[[bytes], Sequence[Finding]]
"""Finds something in an encoded picture, a text, or messages in JSON. Raises Refusal."""


class NoSuchModel(Exception):
    """No model of this name is served here."""


class Refusal(Exception):
    """A request cannot be answered; the message says why."""


class Input(NamedTuple):
    """One picture of a request, in a format that the model reads, or a text in UTF-8."""

    name: str
    encoded: bytes


class Output(NamedTuple):
    """The objects found in the input of the same name."""

    name: str
    findings: Sequence[Finding]


class Serving:
    """Loaded models. Each runs in a thread of its own: no two threads may call it at once."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._threads = {name: ThreadPoolExecutor(1, name) for name in models}

    async def answer(self, model: str, inputs: Sequence[Input]) -> Sequence[Output]:
        """Return an output for each input, in order. Raises NoSuchModel, Refusal."""
        if model not in self._models:
            raise NoSuchModel(f"no model {model!r}; served are {', '.join(self._models)}")
        if not inputs:
            raise Refusal("there are no inputs")
        loop, thread = asyncio.get_running_loop(), self._threads[model]
        find = self._models[model]
        return [
            Output(each.name, await loop.run_in_executor(thread, find, each.encoded))
            for each in inputs
        ]


# A classifier of handwritten digits, which needs nothing of the extra `demo`.
#
# Its weights are learnt from scikit-learn's digits (tests/unit/local/test_small_model.py);
# digits.json holds a row of weights and an intercept for each digit.

MOST_PIXELS: Final = 256 * 256
_MODES: Final = {"L", "LA", "RGB", "RGBA"}
_SIDE = 8
_BRIGHTEST = 16


def small_models() -> Mapping[str, Model]:
    """Return the classifier, under its name in the demo."""
    return {DIGITS.model_id: SmallClassifier().classify}


class SmallClassifier:
    """Logistic regression on 8 x 8 greys, as scikit-learn's digits are: bright on dark."""

    def __init__(self) -> None:
        learnt = json.loads(files(__package__).joinpath("digits.json").read_text())
        self._weights: Sequence[Sequence[float]] = learnt["weights"]
        self._intercepts: Sequence[float] = learnt["intercepts"]

    def classify(self, encoded: bytes) -> Sequence[Finding]:
        """Return the ten classes with their probabilities, best first. Raises Refusal."""
        pixels = _shrink(encoded)
        powers = [
            intercept + sum(map(float.__mul__, weights, pixels))
            for weights, intercept in zip(self._weights, self._intercepts, strict=True)
        ]
        shares = [math.exp(power - max(powers)) for power in powers]
        scores = {label: share / sum(shares) for label, share in zip(LABELS, shares, strict=True)}
        best_first = sorted(scores, key=scores.__getitem__, reverse=True)
        return [{"label": label, "score": round(scores[label], 6)} for label in best_first]


def _shrink(encoded: bytes) -> list[float]:
    """Return the mean greys of 8 x 8 cells, in the steps of the data set, 0 to 1. Raises
    Refusal."""
    try:
        with Image.open(BytesIO(encoded), formats=["PNG"]) as picture:
            if picture.mode not in _MODES:
                raise Refusal("the input is a PNG with a palette, or not of 8 bits a channel")
            if picture.width * picture.height > MOST_PIXELS:
                size = f"{picture.width} x {picture.height}"
                raise Refusal(
                    f"the input is a PNG of {size} pixels, and {MOST_PIXELS} are the most"
                )
            grey = picture.convert("L").convert("F")
            cells = grey.resize((_SIDE, _SIDE), Image.Resampling.BOX)
    except UnidentifiedImageError:
        raise Refusal("the input is no PNG") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Refusal(f"the input is a broken PNG ({error})") from error
    levels = memoryview(cells.tobytes()).cast("f")
    return [round(level / 255 * _BRIGHTEST) / _BRIGHTEST for level in levels]


# The protocol over REST.

_SERVING = web.AppKey("serving", Serving)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
    app.router.add_get("/v2/health/live", _healthy)
    app.router.add_get("/v2/health/ready", _healthy)
    app.router.add_post("/v2/models/{model}/infer", _infer)
    app.router.add_post("/v1/chat/completions", _chat)
    return app


@web.middleware
async def _errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer every refusal as the protocol requires: `{"error": …}`."""
    try:
        return await handler(request)
    except NoSuchModel as error:
        return _json({"error": str(error)}, 404)
    except Refusal as error:
        return _json({"error": str(error)}, 400)
    except web.HTTPException as error:
        return _json({"error": error.reason}, error.status)


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response()  # it listens only when every model is loaded


async def _infer(request: web.Request) -> web.Response:
    document = parse_request(await request.read())
    name = request.match_info["model"]
    outputs = await request.app[_SERVING].answer(name, read_inputs(document))
    answer = {"model_name": name, "model_version": VERSION, "outputs": [*map(_output, outputs)]}
    return _json(answer | ({"id": document["id"]} if "id" in document else {}))


async def _chat(request: web.Request) -> web.Response:
    """Answer a chat as OpenAI's servers do; its id is the caller's `x-request-id`."""
    try:
        match orjson.loads(await request.read()):
            case {"model": CHAT.model_id, "messages": [*_, {"role": "user"}] as messages}:
                asked = Input(CHAT.input, orjson.dumps(messages))
            case _:
                raise Refusal(f"expected the model {CHAT.model_id!r} and a user's `messages`")
        [output] = await request.app[_SERVING].answer(CHAT.model_id, [asked])
    except (Refusal, orjson.JSONDecodeError) as error:
        refusal = {"message": str(error), "type": "invalid_request_error"}
        return _json({"error": refusal}, 400)
    text = output.findings[0]["text"]
    used = {
        "prompt_tokens": sum(len(message["content"].split()) for message in messages),
        "completion_tokens": len(text.split()),
    }
    said = {"role": "assistant", "content": text}
    return _json(
        {
            "id": request.headers.get("x-request-id", "chat"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": CHAT.model_id,
            "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
            "usage": used | {"total_tokens": sum(used.values())},
        }
    )


def parse_request(body: bytes) -> dict[str, Any]:
    """Return the request's JSON. Raises Refusal."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("inputs"), list):
        raise Refusal("expected an object with a list `inputs`")
    return document


def read_inputs(document: dict[str, Any]) -> Sequence[Input]:
    """Return the inputs of a request. Raises Refusal."""
    return [_input(index, tensor) for index, tensor in enumerate(document["inputs"])]


def _input(index: int, tensor: Any) -> Input:
    match tensor:
        case {"name": "text", "datatype": "BYTES", "data": [str(text)]}:
            return Input("text", text.encode())
        case {"name": str(name), "datatype": "BYTES", "data": [str(text)]}:
            try:
                return Input(name, base64.b64decode(text, validate=True))
            except ValueError as error:
                raise Refusal(f"inputs[{index}].data is not base64: {error}") from error
    raise Refusal(f"inputs[{index}]: expected name, datatype BYTES and data with one base64 text")


def _output(output: Output) -> dict[str, Any]:
    findings = output.findings
    return {"name": output.name, "datatype": DATATYPE, "shape": [len(findings)], "data": findings}


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
