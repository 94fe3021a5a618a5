"""Requests' heads, bounded: the parser below keeps headers until they end. And what of a head it
does not tell the application."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .framing import framed

MOST_HEAD_BYTES: Final = 1 << 20
"""Bytes of a request line and its headers; model servers take 8 to 64 KiB."""

EMPTY_QUERY: Final = "inference_store.empty_query"
"""The extension of a scope whose target ends with a question mark, behind which nothing stands."""


class BoundedHeads(HttpToolsProtocol):
    """Closes a connection whose head does not end."""

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.transport.close()
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.url.endswith(b"?"):
            self.scope["extensions"] = {EMPTY_QUERY: {}}
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, framed(app, cycle))
