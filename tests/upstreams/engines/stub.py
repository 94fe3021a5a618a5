"""A stub: OpenAI's and KServe V1's wire form with made-up answers, and a mirror: stub.py PORT.

/v1/chat/completions and /v1/completions say the prompt backwards, word by word; with `stream` as
server-sent events. /v1/models/NAME:predict counts each instance's numbers together. Every other
path answers with what came: method, path, headers and body (base64).

With the header `stub-echo` every other path answers with the request's own body and the headers
named there, in one piece, or in as many as `stub-echo-parts` says, with `stub-echo-status`.

On all of them the request's headers may ask for `stub-status` (that status and an error instead)
and `stub-encoding` (gzip or deflate).
"""

import base64
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

_LARGEST_BODY = 256 * 2**20
_CREATED = 1_700_000_000
_ENCODED = {"gzip": lambda body: gzip.compress(body, mtime=0), "deflate": zlib.compress}


async def chat(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    words = _backwards(asked["messages"][-1]["content"])
    if asked.get("stream"):
        events = ({"index": 0, "delta": {"content": word}} for word in words)
        return await _streamed(request, _events(asked, "chat.completion.chunk", events, words))
    message = {"role": "assistant", "content": " ".join(words)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return web.json_response(
        {**_head(asked, "chat.completion"), "choices": [choice], "usage": _usage(words)}
    )


async def completion(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    words = _backwards(asked["prompt"])
    if asked.get("stream"):
        events = ({"index": 0, "text": word} for word in words)
        return await _streamed(request, _events(asked, "text_completion", events, words))
    choice = {"index": 0, "text": " ".join(words), "finish_reason": "stop"}
    return web.json_response(
        {**_head(asked, "text_completion"), "choices": [choice], "usage": _usage(words)}
    )


def _backwards(text: str) -> list[str]:
    return text.split()[::-1]


def _head(asked: dict[str, Any], what: str) -> dict[str, Any]:
    return {"id": "stub-1", "object": what, "created": _CREATED, "model": asked.get("model")}


def _usage(words: list[str]) -> dict[str, int]:
    count = len(words)
    return {"prompt_tokens": count, "completion_tokens": count, "total_tokens": 2 * count}


def _events(
    asked: dict[str, Any], what: str, choices: Iterator[dict[str, Any]], words: list[str]
) -> Iterator[bytes]:
    head = _head(asked, what)
    for choice in choices:
        yield _event({**head, "choices": [{**choice, "finish_reason": None}]})
    yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield _event({**head, "choices": [], "usage": _usage(words)})
    yield b"data: [DONE]\n\n"


def _event(said: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


async def _streamed(request: web.Request, parts: Iterator[bytes]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for part in parts:
        await answer.write(part)
    await answer.write_eof()
    return answer


async def model(request: web.Request) -> web.Response:
    return web.json_response({"name": request.match_info["name"], "ready": True})


async def predict(request: web.Request) -> web.Response:
    asked = await request.json()
    return web.json_response({"predictions": [_sum(instance) for instance in asked["instances"]]})


def _sum(instance: Any) -> float:
    if isinstance(instance, list):
        return sum(_sum(one) for one in instance)
    return instance if isinstance(instance, int | float) else 0


async def mirror(request: web.Request) -> web.StreamResponse:
    if "stub-echo" in request.headers:
        return await _echoed(request)
    headers = [
        [name.decode("latin-1"), value.decode("latin-1")] for name, value in request.raw_headers
    ]
    body = base64.b64encode(await request.read()).decode()
    said = {"method": request.method, "path": request.raw_path, "headers": headers, "body": body}
    return web.json_response(said)


async def _echoed(request: web.Request) -> web.StreamResponse:
    body, parts = await request.read(), int(request.headers.get("stub-echo-parts", 0))
    named = request.headers["stub-echo"].lower().split(",")
    headers = [
        (name.decode(), value.decode("utf-8", "surrogateescape"))
        for name, value in request.raw_headers
        if name.decode().lower() in named
    ]
    status = int(request.headers.get("stub-echo-status", 200))
    if not parts:
        return web.Response(body=body, headers=CIMultiDict(headers), status=status)
    answer = web.StreamResponse(headers=CIMultiDict(headers), status=status)
    await answer.prepare(request)
    size = len(body) // parts + 1
    for at in range(0, len(body), size):
        await answer.write(body[at : at + size])
    await answer.write_eof()
    return answer


@web.middleware
async def as_asked(request: web.Request, handler: Any) -> web.StreamResponse:
    """What the request's own headers ask of any answer."""
    asked = request.headers
    if "stub-status" in asked:
        return web.json_response({"error": "as it was asked"}, status=int(asked["stub-status"]))
    answer: web.StreamResponse = await handler(request)
    if isinstance(answer, web.Response):
        _encode(answer, asked.get("stub-encoding", ""))
    return answer


def _encode(answer: web.Response, encoding: str) -> None:
    if encoding and isinstance(answer.body, bytes):
        answer.body = _ENCODED[encoding](answer.body)
        answer.headers["Content-Encoding"] = encoding


def main() -> None:
    # A mirror decodes nothing: what came is shown as it came.
    application = web.Application(
        client_max_size=_LARGEST_BODY,
        middlewares=[as_asked],
        handler_args={"auto_decompress": False},
    )
    application.add_routes(
        [
            web.post("/v1/chat/completions", chat),
            web.post("/v1/completions", completion),
            web.get("/v1/models/{name}", model),
            web.post("/v1/models/{name}:predict", predict),
            web.route("*", "/{path:.*}", mirror),
        ]
    )
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
