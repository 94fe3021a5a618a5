"""The model server behind everything that is measured: a stub, which answers at once.

It reads the whole request, as every model server does, and answers the same bytes each time; no
model runs. REST is raw ASGI on uvicorn (httptools, uvloop), gRPC a handler of grpc.aio that takes
and gives bytes. `python -m benchmarks.proxy.upstream REST_PORT GRPC_PORT`.
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

import grpc
import uvicorn

from .workloads import METHOD, workloads

Message = MutableMapping[str, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
_LARGEST: Final = 16 << 20


class Answers:
    """The REST side."""

    def __init__(self) -> None:
        self._by_path: dict[str, tuple[Message, Message]] = {}
        for work in workloads().values():
            headers = [(b"content-type", b"application/json")]
            if work.answer_binary_header is not None:
                length = str(work.answer_binary_header).encode()
                headers = [(b"content-type", b"application/octet-stream")]
                headers.append((b"inference-header-content-length", length))
            self._by_path[work.path] = _whole(200, headers, work.answer)
        self._unknown = _whole(404, [(b"content-type", b"application/json")], b'{"error": "?"}')

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        while (await receive()).get("more_body", False):
            pass
        for part in self._by_path.get(scope["path"], self._unknown):
            await send(part)


def _whole(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[Message, Message]:
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [*headers, length]}
    return start, {"type": "http.response.body", "body": body}


class Infer(grpc.GenericRpcHandler):
    """The gRPC side: a request is told by its size."""

    def __init__(self) -> None:
        calls = (work for work in workloads().values() if work.transport == "grpc")
        self._by_size = {len(work.request): work.answer for work in calls}
        self._handler: Handler = grpc.unary_unary_rpc_method_handler(self._infer)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        return self._handler if handler_call_details.method == METHOD else None

    async def _infer(self, request: bytes, _: Any) -> bytes:
        return self._by_size[len(request)]


async def serve(rest: int, grpc_port: int) -> None:
    """Until the process is told to end."""
    limits = [("grpc.max_receive_message_length", _LARGEST), ("grpc.so_reuseport", 0)]
    messages = grpc.aio.server(handlers=(Infer(),), options=limits)
    messages.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await messages.start()
    config = uvicorn.Config(
        Answers(), host="127.0.0.1", port=rest, http="httptools", ws="none", lifespan="off",
        interface="asgi3", log_config=None, access_log=False, backlog=2048, timeout_keep_alive=3600,
    )  # fmt: skip
    await uvicorn.Server(config).serve()
    await messages.stop(0)


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
