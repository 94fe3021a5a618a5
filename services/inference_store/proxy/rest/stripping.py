"""Removes metadata from requests, which are held whole for that, within bounds.

If there is no room, a request is forwarded unchanged, and is counted: serving comes first.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from inference_store.platform.metrics import UNSTRIPPED, from_zero
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols.protocol import MOST_STRIPPED, Strip

# Bodies parsed at once: parsing takes many times a body's bytes.
_AT_ONCE: Final = 2
_REASONS: Final = ("large", "no_room")


class Stripping:
    """The room for all requests of a proxy; `most`: the most bytes held at once."""

    def __init__(self, most: int) -> None:
        self.free = most
        # in threads: parsing a large body would delay all other calls
        self.threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="strip")
        from_zero(UNSTRIPPED, _REASONS)

    def hold(self) -> "HeldRequest":
        """Begin to hold a request, which the caller must release."""
        return HeldRequest(self)


class HeldRequest:
    """The parts of one request."""

    def __init__(self, stripping: Stripping) -> None:
        self._stripping = stripping
        self._reserved = 0
        self.parts: list[bytes] = []

    def add(self, part: bytes) -> bool:
        """Hold a part; return False if the request must be forwarded unchanged, with all its
        parts."""
        self.parts.append(part)
        large = self._reserved + len(part) > MOST_STRIPPED
        if large or len(part) > self._stripping.free:
            UNSTRIPPED.labels("large" if large else "no_room").inc()
            return False
        self._reserved += len(part)
        self._stripping.free -= len(part)
        return True

    async def strip_metadata(self, strip: Strip, headers: Headers) -> tuple[bytes, Headers | None]:
        """Return the body without metadata, and its headers if it contained any."""
        body = b"".join(self.parts)
        self.parts.clear()  # otherwise memory holds it twice
        loop = asyncio.get_running_loop()
        stripped = await loop.run_in_executor(self._stripping.threads, strip, body, headers)
        return (body, None) if stripped is None else stripped

    def release(self) -> None:
        """Free the memory of a request that was forwarded or given up."""
        self._stripping.free += self._reserved
        self._reserved = 0
