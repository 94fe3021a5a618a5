"""The bridge's two ports, which listen only on this machine."""

from types import TracebackType
from typing import Final, Self

import grpc
from aiohttp import web

from inference_store.platform.serving.heads import MOST_HEAD_BYTES

from .container import Container
from .grpc_methods import handlers
from .rest import application

_HERE: Final = "127.0.0.1"
_MESSAGE_BYTES: Final = 256 << 20
_GRACE_SECONDS: Final = 5.0


class Bridge:
    """A container as a V2 server: `async with Bridge(container) as bridge`; `bridge.url`,
    `bridge.target`. It uses free ports of the loopback interface."""

    def __init__(self, container: Container, *, message_bytes: int = _MESSAGE_BYTES) -> None:
        self._container = container
        self._message_bytes = message_bytes
        self.url = ""
        """The address that answers REST."""
        self.target = ""
        """The address that answers gRPC."""

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(
            application(self._container, most_bytes=self._message_bytes),
            access_log=None,
            max_line_size=MOST_HEAD_BYTES,  # the proxy passes on no larger heads
            max_field_size=MOST_HEAD_BYTES,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, _HERE, 0).start()
        self.url = f"http://{_HERE}:{self._runner.addresses[0][1]}"
        self._server = grpc.aio.server(
            handlers=(handlers(self._container),),
            options=(
                ("grpc.max_receive_message_length", self._message_bytes),
                ("grpc.max_send_message_length", self._message_bytes),
                ("grpc.so_reuseport", 0),
            ),
        )
        self.target = f"{_HERE}:{self._server.add_insecure_port(f'{_HERE}:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.stop(_GRACE_SECONDS)
        await self._runner.cleanup()
        await self._container.close()
