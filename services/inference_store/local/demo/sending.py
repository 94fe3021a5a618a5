"""A client of a model server, over REST and gRPC in turn. It knows nothing of the store."""

import asyncio
import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp
import grpc

from inference_store.grpc_messages import message
from inference_store.local.errors import LocalStackError

from .requests import Request

OnAnswer = Callable[[], None]
"""Called after each answer."""
_TIMEOUT_SECONDS = 60.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"


def send_all(
    streams: Sequence[Iterator[Request]], *, rest: str, grpc_target: str, on_answer: OnAnswer
) -> None:
    """Send every request of every stream; the streams run beside each other.

    `rest`: `http://host:port`, `grpc_target`: `host:port`. Raises LocalStackError.
    """
    asyncio.run(_send_all(streams, rest, grpc_target, on_answer))


async def _send_all(
    streams: Sequence[Iterator[Request]], rest: str, target: str, on_answer: OnAnswer
) -> None:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with (
        aiohttp.ClientSession(rest, timeout=timeout) as session,
        grpc.aio.insecure_channel(target) as channel,
    ):
        client = Client(session, channel)
        await asyncio.gather(*(_send_stream(stream, client, on_answer) for stream in streams))


async def _send_stream(stream: Iterator[Request], client: "Client", on_answer: OnAnswer) -> None:
    over = (client.send_rest, client.send_grpc)
    sent = 0
    # Taking a picture takes CPU: not in the loop that others wait for.
    while (request := await asyncio.to_thread(next, stream, None)) is not None:
        await over[sent % len(over)](request)
        sent += 1
        on_answer()


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
        """Raises LocalStackError with what came in place of an answer."""
        path = f"/v2/models/{request.model_id}/infer"
        try:
            async with self._session.post(path, json=rest_body(request)) as answer:
                words = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LocalStackError(f"POST {path} was not answered: {error!r}") from error
        if answer.status != 200:
            raise LocalStackError(f"POST {path} was answered {answer.status}: {words}")

    async def send_grpc(self, request: Request) -> None:
        """Raises LocalStackError with what came in place of an answer."""
        try:
            await self._infer(grpc_message(request), timeout=_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            raise LocalStackError(f"ModelInfer of {request.model_id} failed: {reason}") from error


def rest_body(request: Request) -> dict[str, Any]:
    """Return a request in JSON: the picture is base64, and the input has the metadata."""
    image = {
        "name": "image",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": {"metadata": request.metadata},
        "data": [base64.b64encode(request.picture).decode()],
    }
    return {"id": request.request_id, "inputs": [image]}


def grpc_message(request: Request) -> Any:
    """Return a request as a `ModelInferRequest`, with the picture as unchanged bytes."""
    image = {
        "name": "image",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": {"metadata": {"string_param": request.metadata}},
        "contents": {"bytes_contents": [request.picture]},
    }
    return message("inference.ModelInferRequest")(
        model_name=request.model_id, id=request.request_id, inputs=[image]
    )
