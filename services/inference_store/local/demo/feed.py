"""Feeds missing inferences, and waits until the store has indexed them."""

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, cycle
from typing import Any

import aiohttp
import grpc

from inference_store.grpc_messages import message
from inference_store.local.folder import LocalStackError
from inference_store.local.stack import Stack

from .models import CHAT, DEMO_MODELS, FACES, LABELLED, PEOPLE, Request, Rest
from .sources import (
    digit_requests,
    digit_truth,
    frame_requests,
    frame_truth,
    specimen_requests,
)
from .texts import chat_requests, sentence_requests

_INDEXED_SECONDS = 300.0
_POLL_SECONDS = 0.2


def feed_missing(stack: Stack, rest: Rest, show: Callable[[str], None]) -> int:
    """Send a request for each missing inference to the models, through the proxy; return how many.

    Returns when all are indexed and their ground truth is loaded. Raises LocalStackError.
    """
    # others, such as a user's own pictures, do not count
    there = {
        model.model_id: {
            id for id in rest.inference_ids(model.model_id) if id.startswith(model.prefix)
        }
        for model in DEMO_MODELS
    }
    streams = (
        *(frame_requests(FACES), frame_requests(PEOPLE), specimen_requests()),
        *(digit_requests(), sentence_requests(), chat_requests()),
    )
    # an id that was fed is not fed again: with another time it would be another inference
    missing = [
        (each for each in stream if each.request_id not in there[each.model.model_id])
        for stream in streams
    ]
    total = sum(model.inferences - len(there[model.model_id]) for model in DEMO_MODELS)
    if total > 0:
        numbers = count(1)
        asyncio.run(
            _send_all(missing, stack, lambda: show(f"{next(numbers)} of {total} calls answered"))
        )
        _wait_indexed(stack, rest, show)
    truth = (frame_truth(FACES), frame_truth(PEOPLE), digit_truth())
    for model, rows in zip(LABELLED, truth, strict=True):
        rest.load_truth(model.model_id, rows)
    return total


def _wait_indexed(stack: Stack, rest: Rest, show: Callable[[str], None]) -> None:
    total = sum(model.inferences for model in DEMO_MODELS)
    deadline = time.monotonic() + _INDEXED_SECONDS
    while (indexed := sum(model.count(rest) for model in DEMO_MODELS)) < total:
        stack.check()
        if time.monotonic() > deadline:
            raise LocalStackError(
                f"After {_INDEXED_SECONDS:.0f} s only {indexed} of {total} inferences are "
                f"indexed; see {stack.running['ingester'].log}"
            )
        show(f"indexed {indexed} of {total}")
        time.sleep(_POLL_SECONDS)


_TIMEOUT_SECONDS = 60.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"


async def _send_all(
    streams: Sequence[Iterator[Request]], stack: Stack, on_answer: Callable[[], None]
) -> None:
    """Send every request of every stream, over REST and gRPC in turn; the streams run beside each
    other. Raises LocalStackError."""

    async def send(stream: Iterator[Request], client: Client) -> None:
        over = cycle((client.send_rest, client.send_grpc))
        # Taking a picture takes CPU: not in the loop that others wait for.
        while (request := await asyncio.to_thread(next, stream, None)) is not None:
            is_chat = request.model is CHAT
            await (client.send_chat if is_chat else next(over))(request)
            on_answer()

    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with (
        aiohttp.ClientSession(stack.url("proxy"), timeout=timeout) as session,
        grpc.aio.insecure_channel(stack.grpc("proxy")) as channel,
    ):
        client = Client(session, channel)
        await asyncio.gather(*(send(stream, client) for stream in streams))


class Client:
    """One connection of each kind."""

    def __init__(self, session: aiohttp.ClientSession, channel: grpc.aio.Channel) -> None:
        self._session = session
        self._infer: Any = channel.unary_unary(
            _INFER,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=message("inference.ModelInferResponse").FromString,
        )

    async def send_rest(self, request: Request) -> None:
        """Raises LocalStackError with what came in place of the expected answer."""
        path = f"/v2/models/{request.model.model_id}/infer"
        await self._post(path, rest_body(request), {}, request)

    async def send_chat(self, request: Request) -> None:
        """Raises LocalStackError with what came in place of the expected answer."""
        headers = {"x-request-id": request.request_id, "inference-store-metadata": request.metadata}
        body = {"model": request.model.model_id, "messages": json.loads(request.content)}
        await self._post("/v1/chat/completions", body, headers, request)

    async def _post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str], request: Request
    ) -> None:
        try:
            async with self._session.post(path, json=body, headers=headers) as answer:
                words = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LocalStackError(f"POST {path} was not answered: {error!r}") from error
        if answer.status != (400 if request.refused else 200):
            raise LocalStackError(f"POST {path} was answered {answer.status}: {words}")

    async def send_grpc(self, request: Request) -> None:
        """Raises LocalStackError with what came in place of the expected answer."""
        try:
            await self._infer(grpc_message(request), timeout=_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            if request.refused and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                return
            reason = f"{error.code().name}: {error.details()}"
            model = request.model.model_id
            raise LocalStackError(f"ModelInfer of {model} failed: {reason}") from error


def rest_body(request: Request) -> dict[str, Any]:
    """Return a request in JSON: a picture is base64, and the input has the metadata."""
    content = request.content
    is_text = request.model.input == "text"
    data = content.decode() if is_text else base64.b64encode(content).decode()
    parameters = {"metadata": request.metadata}
    return {
        "id": request.request_id,
        "inputs": [_describe_input(request) | {"parameters": parameters, "data": [data]}],
    }


def grpc_message(request: Request) -> Any:
    """Return a request as a `ModelInferRequest`, with the content as unchanged bytes."""
    parameters = {"metadata": {"string_param": request.metadata}}
    contents = {"bytes_contents": [request.content]}
    return message("inference.ModelInferRequest")(
        model_name=request.model.model_id,
        id=request.request_id,
        inputs=[_describe_input(request) | {"parameters": parameters, "contents": contents}],
    )


def _describe_input(request: Request) -> dict[str, Any]:
    return {"name": request.model.input, "shape": [1], "datatype": "BYTES"}
