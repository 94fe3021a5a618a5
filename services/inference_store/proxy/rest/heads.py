"""What a proxy does beyond a server of its own: it tells an empty query, and does not let go of the
upstream while its caller may still read."""

from typing import Final

from inference_store.platform.serving.heads import MOST_HEAD_BYTES, BoundedHeads

EMPTY_QUERY: Final = "inference_store.empty_query"
"""The extension of a scope whose target ends with a question mark, behind which nothing stands."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# The first is answered by a reset if the caller has left, and the next fails by that.
_PROBES: Final = 3
_PROBE_SECONDS: Final = 0.3


class ForwardedHeads(BoundedHeads):
    """Requests that are passed on."""

    def on_headers_complete(self) -> None:
        if self.url.endswith(b"?"):
            self.scope["extensions"] = {EMPTY_QUERY: {}}
        super().on_headers_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A caller that says nothing more may read on (RFC 9112, section 9.6): if its request is
        whole it is answered, and then the connection ends."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme == "https":
            return False
        cycle.keep_alive = False
        self._look_for_caller(_PROBES)
        return True

    def _look_for_caller(self, times: int) -> None:
        """One that has left for good says the same as one that reads on. An interim answer, which
        nobody has to look at (RFC 9110, section 15.2), tells them apart."""
        cycle = self.cycle
        begun = self.pipeline or cycle.response_started or self.transport.is_closing()
        if begun or cycle.scope["http_version"] == "1.0":
            return
        self.transport.write(_CONTINUE)
        if times > 1:
            self.loop.call_later(_PROBE_SECONDS, self._look_for_caller, times - 1)


__all__ = ["EMPTY_QUERY", "MOST_HEAD_BYTES", "ForwardedHeads"]
