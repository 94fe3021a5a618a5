"""Request heads of a proxy: unlike other servers it recognises an empty query, and keeps the
upstream's call while its caller may still read."""

from typing import Final

from inference_store.platform.uvicorn_server import MOST_HEAD_BYTES, BoundedHeads

EMPTY_QUERY: Final = "inference_store.empty_query"
"""The extension of a scope whose target ends with a question mark."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# If the caller has left, it answers the first probe with a reset, which fails the next one.
_PROBES: Final = 3
_PROBE_SECONDS: Final = 0.3


class ForwardedHeads(BoundedHeads):
    """The heads of forwarded requests."""

    def on_headers_complete(self) -> None:
        if self.url.endswith(b"?"):
            self.scope["extensions"] = {EMPTY_QUERY: {}}
        super().on_headers_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection of a caller that has only stopped sending (RFC 9112, section 9.6): if
        its request is complete it is answered, and then the connection ends."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme == "https":
            return False
        cycle.keep_alive = False
        self._look_for_caller(_PROBES)
        return True

    def _look_for_caller(self, times: int) -> None:
        """Probe whether the caller still reads: one that has left sends the same as one that reads.
        An interim answer, which callers may ignore (RFC 9110, section 15.2), distinguishes them."""
        cycle = self.cycle
        begun = self.pipeline or cycle.response_started or self.transport.is_closing()
        if begun or cycle.scope["http_version"] == "1.0":
            return
        self.transport.write(_CONTINUE)
        if times > 1:
            self.loop.call_later(_PROBE_SECONDS, self._look_for_caller, times - 1)


__all__ = ["EMPTY_QUERY", "MOST_HEAD_BYTES", "ForwardedHeads"]
