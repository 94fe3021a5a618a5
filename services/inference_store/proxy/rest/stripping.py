"""Requests that lose their metadata on the way: held whole for it, within bounds.

Where there is no room a request goes on as it came, and is counted: serving comes first.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from inference_store.platform.metrics import UNSTRIPPED, from_zero
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols.protocol import MOST_STRIPPED, Strip

# Parsing takes many times a body's bytes: so many are parsed at once.
_AT_ONCE: Final = 2
_REASONS: Final = ("large", "no_room")


class Stripping:
    """The room for all requests of a proxy; `most`: bytes that are held at once."""

    def __init__(self, most: int) -> None:
        self.free = most
        # in threads: parsing a large body would hold up all other calls
        self.threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="strip")
        from_zero(UNSTRIPPED, _REASONS)

    def hold(self) -> "HeldRequest":
        """Begin to hold a request; it is to be released."""
        return HeldRequest(self)


class HeldRequest:
    """The parts of one request."""

    def __init__(self, stripping: Stripping) -> None:
        self._stripping = stripping
        self._reserved = 0
        self.parts: list[bytes] = []

    def add(self, part: bytes) -> bool:
        """Hold a part; False: the request is to go on as it came, with all its parts."""
        self.parts.append(part)
        large = self._reserved + len(part) > MOST_STRIPPED
        if large or len(part) > self._stripping.free:
            UNSTRIPPED.labels("large" if large else "no_room").inc()
            return False
        self._reserved += len(part)
        self._stripping.free -= len(part)
        return True

    async def stripped(self, strip: Strip, headers: Headers) -> tuple[bytes, Headers | None]:
        """The body, and its headers where there were metadata in it."""
        body = b"".join(self.parts)
        self.parts.clear()  # else all of it is there twice
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._stripping.threads, strip, body, headers)
        return (body, None) if found is None else found

    def release(self) -> None:
        """The request has gone, or is given up."""
        self._stripping.free += self._reserved
        self._reserved = 0
