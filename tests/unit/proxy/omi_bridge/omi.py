"""An OMI container, written from its public specification, and a bridge before it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import orjson

from inference_store.grpc_messages import message
from inference_store.proxy.omi_bridge import Bridge, start_bridge
from inference_store.proxy.omi_container import Container

NAMES = ("Status", "Run", "Shutdown")


@dataclass
class Omi:
    """Counts the bytes of `input.txt`; `bad` fails as an item, `late` never ends."""

    batch_size: int = 2
    run: str = "60s"
    inputs: tuple[tuple[str, str], ...] = (("input.txt", "text/plain"),)
    broken: int = 0
    """So many calls of Status fail."""
    result: dict[str, Any] | None = None
    """What results.json holds; left out: the size."""
    code: int | None = None
    """The status of a Run with items; left out: 422 if all failed."""
    refuses: str | None = None
    """A Run is a 422 that says this."""
    called: list[str] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)

    async def answer(self, name: str, request: Any) -> Any:
        self.called.append(name)
        return self._status() if name == "Status" else await self._run(request)

    def _status(self) -> Any:
        if self.broken:
            self.broken -= 1
            return message("StatusResponse")(status_code=500, message="no weights")
        return message("StatusResponse")(
            status_code=200,
            model_info={"model_name": "Counter", "model_version": "1.2.0"},
            inputs=[
                {"filename": name, "accepted_media_types": [kind]} for name, kind in self.inputs
            ],
            outputs=[{"filename": "results.json", "media_type": "application/json"}],
            timeout={"status": "60s", "run": self.run},
            features={"batch_size": self.batch_size},
        )

    async def _run(self, request: Any) -> Any:
        self.runs.append(request)
        if self.refuses is not None:
            return message("RunResponse")(status_code=422, message=self.refuses)
        contents = [b"".join(item.input.values()) for item in request.inputs]
        if b"late" in contents:
            await asyncio.sleep(600)
        outputs = [_make_item(content, request.explain, self.result) for content in contents]
        code = self.code or (200 if any(output["success"] for output in outputs) else 422)
        return message("RunResponse")(status_code=code, outputs=outputs, message="no item is good")


def _make_item(content: bytes, explain: bool, result: dict[str, Any] | None) -> dict[str, Any]:
    if content == b"bad":
        return {"success": False, "output": {"error": b"bad is bad"}}
    if content == b"binary":
        return {"success": True, "output": {"results.json": b"\xff"}}
    output = result or {"size": len(content)} | ({"why": "it is so long"} if explain else {})
    return {"success": True, "output": {"results.json": orjson.dumps(output)}}


@asynccontextmanager
async def served(omi: Omi) -> AsyncIterator[str]:
    """The container on a free port."""
    server = grpc.aio.server()
    methods = {name: _make_method(omi, name) for name in NAMES}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ModzyModel", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def open_bridge(omi: Omi) -> AsyncIterator[Bridge]:
    async with served(omi) as target, grpc.aio.insecure_channel(target) as channel:
        await channel.channel_ready()  # a probe has nothing to wait for
        async with start_bridge(Container(channel)) as bridge:
            yield bridge


def _make_method(omi: Omi, name: str) -> Any:
    async def answered(request: Any, _context: Any) -> Any:
        return await omi.answer(name, request)

    return grpc.unary_unary_rpc_method_handler(
        answered,
        request_deserializer=message(f"{name}Request").FromString,
        response_serializer=message(f"{name}Response").SerializeToString,
    )
